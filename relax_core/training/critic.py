"""The critic: the policy's body with a head that gives one number for each token, and what it learns.

Guarantee: the value of a response token is read at the position that predicts it, in float32, and is divided by no
temperature. The head is whole on every tensor-parallel rank: gradients are those of one rank. Which samples the critic
learns from does not depend on their advantages.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from data.errors import UserError
from relax_core.algorithms.assemble import ValueObjective
from relax_core.algorithms.loss_parts import LossOptions
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import Columns, MicroBatch, TrainingBatch
from relax_core.training.loss import weigh
from relax_core.training.megatron import MegatronModule, TransformerConfig, tensor_parallel
from relax_core.training.model import ModelShape, PolicyModel, mark_split_weights, unwrap
from relax_core.training.readout import LossPart

_STANDARD_DEVIATION = 0.02


class ValueHead(torch.nn.Linear):
    """hidden -> 1, computed in float32 whatever the type of its weights."""

    def __init__(self, hidden: int, seed: int) -> None:
        super().__init__(hidden, 1)
        generator = torch.Generator().manual_seed(seed)  # of its own: the same on all ranks
        drawn = torch.empty(1, hidden, device="cpu").normal_(0.0, _STANDARD_DEVIATION, generator=generator)
        with torch.no_grad():
            self.weight.copy_(drawn)
            self.bias.zero_()

    def forward(self, hidden: Tensor) -> Tensor:
        """float32 [R] of hidden states [R, hidden]."""
        return torch.nn.functional.linear(hidden.float(), self.weight.float(), self.bias.float()).squeeze(-1)


class CriticModel(PolicyModel):
    """One pipeline stage of the critic. The last one has the head in place of the output layer.

    Args:
        shape: of the policy; whether that ties its output layer to its embedding matters to its own folder alone.
        seed: of the head.
    """

    def __init__(
        self, shape: ModelShape, config: TransformerConfig, pre_process: bool, post_process: bool, seed: int
    ) -> None:
        super().__init__(replace(shape, tie=False), config, pre_process, post_process)
        self.shape = replace(shape, values=True)
        if post_process:
            del self.output_layer
            self.value_head = ValueHead(shape.hidden, seed)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """What Megatron saves and loads. (The language model's own looks for an output layer.)"""
        return MegatronModule.sharded_state_dict(self, prefix, sharded_offsets, metadata)  # type: ignore[no-any-return]


def build_critic(
    shape: ModelShape, config: TransformerConfig, pre_process: bool, post_process: bool, seed: int
) -> CriticModel:
    """As ``relax_core.training.model.build_policy``; the head has its weights."""
    critic = CriticModel(shape, config, pre_process, post_process, seed).to(config.params_dtype)
    mark_split_weights(critic)
    return critic


class Values:
    """The readout of a critic.

    Args:
        model: the critic in Megatron's data-parallel wrapper.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def score(self, micro: MicroBatch, hidden: Tensor) -> Tensor:
        """[r] float32: the value at the position that predicts each response token."""
        critic: Any = unwrap(self._model)
        if critic.config.sequence_parallel:
            # Gathers the ranks' tokens; on the way back each rank, which has all of the gradient, keeps its own part.
            hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        # No operation that adds the ranks' gradients on the way back: the head is not cut.
        values: Tensor = critic.value_head(hidden.squeeze(1).index_select(0, micro.rows))
        return values

    def loss(self, micro: MicroBatch, hidden: Tensor, step: Any) -> LossPart:
        """``step(values, micro)``."""
        part: LossPart = step(self.score(micro, hidden), micro)
        return part


class ValueStep:
    """The critic's loss in one optimiser step; see ``relax_core.training.readout.Step``.

    Args:
        config: as ``role_config`` makes it.
        samples: first and last + 1 sample of the step.
        first: the step is the rollout's first; the loss is the same.

    Raises:
        UserError: the batch has no values.
    """

    def __init__(
        self, config: RelaxConfig, batch: TrainingBatch, samples: tuple[int, int], first: bool = False
    ) -> None:
        _, weights = weigh(batch, samples, config.optimizer.calculate_per_token_loss)
        self._columns = Columns(old=old_values(batch), returns=batch.returns, mask=batch.mask, weights=weights)
        self._objective = ValueObjective(LossOptions(value_clip=config.algorithm.value_clip))
        nothing = torch.zeros(0)
        parts = self._objective(*(nothing,) * 5)
        self.sums, self.largest = tuple(parts.sums), tuple(parts.largest)

    def __call__(self, values: Tensor, micro: MicroBatch) -> LossPart:
        """A micro-batch's part.

        Args:
            values: [r] of the critic that is trained.
        """
        columns = (self._columns.take(name, micro.places) for name in ("old", "returns", "mask", "weights"))
        parts = self._objective(values, *columns)
        sums = torch.stack([parts.sums[name].double() for name in self.sums])
        return parts.loss, sums, sums.new_zeros(0)

    def metrics(self, sums: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
        """``value_loss`` (also as ``loss``), ``value_clipfrac``, ``value_mean`` and ``return_mean``."""
        return self._objective.finish(sums, largest)


def old_values(batch: TrainingBatch) -> Tensor:
    """[R] of the critic before the rollout step's first update.

    Raises:
        UserError: the batch has none.
    """
    values = batch.stored.get("values")
    if values is None:
        raise UserError(
            "The batch has no column values, which the critic learns from.",
            "Delete the step's forward.parquet and batch.parquet, and run again with --advantage-estimator ppo.",
        )
    return values


def explained_variance(batch: TrainingBatch) -> dict[str, float]:
    """``explained_variance``: 1 - Var(returns - old values) / Var(returns) over the trained tokens of the batch.

    1 is a critic that knew all; 0 one that knew no more than the mean. Nothing where the returns do not differ.
    """
    mask, returns = batch.mask, batch.returns.double()
    if not mask.any() or not (spread := float(returns[mask].var(correction=0))):
        return {}
    error = (returns - old_values(batch).double())[mask]
    return {"explained_variance": 1.0 - float(error.var(correction=0)) / spread}
