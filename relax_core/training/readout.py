"""What is read of a model at the response tokens, from the last pipeline stage's hidden states.

Guarantee: a pass (``relax_core.training.passes``) knows nothing of log-probabilities or values: whatever reads the
hidden states gives a pass without gradient one number for each response token of a micro-batch, and a pass with one the
micro-batch's part of the loss, both the same on all tensor-parallel ranks.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from relax_core.algorithms.logprobs import CHUNK_BYTES, token_log_probs
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import MicroBatch
from relax_core.training.megatron import mpu, tensor_parallel
from relax_core.training.model import hidden_rows, lm_head_weight

LossPart = tuple[Tensor, Tensor, Tensor]
"""A micro-batch's part of the loss to differentiate; float64 [len(step.sums)] and [len(step.largest)] of metrics."""


class Step(Protocol):
    """The loss of one optimiser step, called by the readout with what it has read and the micro-batch.

    Attributes:
        sums: names of the metrics that add up over micro-batches and ranks.
        largest: names of those of which the step's is the largest.
    """

    sums: tuple[str, ...]
    largest: tuple[str, ...]

    def metrics(self, sums: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
        """The step's metrics from the totals over micro-batches and ranks."""


class Readout(Protocol):
    """What a pass asks, with the hidden states that the last stage returned."""

    def score(self, micro: MicroBatch, hidden: Tensor) -> Tensor:
        """[r] a number for each response token, without gradient."""

    def loss(self, micro: MicroBatch, hidden: Tensor, step: Any) -> LossPart:
        """The micro-batch's part of ``step``, which fits the readout."""


class LogProbs:
    """The policy's: log-probabilities and entropies.

    Args:
        model: the policy in Megatron's data-parallel wrapper.
    """

    def __init__(self, config: RelaxConfig, model: torch.nn.Module) -> None:
        self._config, self._model = config, model

    def score(self, micro: MicroBatch, hidden: Tensor) -> Tensor:
        """Log-probability of each response token."""
        return self._read(micro, hidden, with_entropy=False, entropy_grad=False)[0]

    def loss(self, micro: MicroBatch, hidden: Tensor, step: Any) -> LossPart:
        """``step(log_probs, entropy, micro)``; the entropy has a gradient where ``step.entropy_grad`` asks for it."""
        log_probs, entropy = self._read(micro, hidden, with_entropy=True, entropy_grad=step.entropy_grad)
        part: LossPart = step(log_probs, entropy, micro)
        return part

    def _read(
        self, micro: MicroBatch, hidden: Tensor, *, with_entropy: bool, entropy_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        """[r] each."""
        weight = lm_head_weight(self._model)
        self._await(weight)
        return token_log_probs(
            hidden_rows(self._model, hidden, micro.rows),
            weight,
            micro.targets,
            temperature=self._config.rollout.rollout_temperature,
            group=mpu.get_tensor_model_parallel_group(),
            chunk_size=self._chunk_rows(weight),
            with_entropy=with_entropy,
            entropy_grad=entropy_grad,
        )

    def _chunk_rows(self, weight: Tensor) -> int:
        """Rows whose logits exist at once; a number keeps nothing of them for the backward pass, -1 may."""
        options = self._config.training
        if options.log_probs_chunk_size <= 0 and options.recompute_loss_function:
            return max(CHUNK_BYTES // (4 * weight.shape[0]), 1)  # 4: float32
        return options.log_probs_chunk_size

    def _await(self, weight: Tensor) -> None:
        """Wait for the other ranks' parts of a weight that no module's forward pass, where Megatron waits, uses."""
        groups: Any = self._model
        if groups.ddp_config.overlap_param_gather and weight in groups.param_to_bucket_group:
            groups.param_to_bucket_group[weight].finish_param_sync()


class Logits(LogProbs):
    """The policy's, for a loss of the user: the logits themselves; its numbers are log-probabilities."""

    def loss(self, micro: MicroBatch, hidden: Tensor, step: Any) -> LossPart:
        """``step(logits, micro)``: float32 [r, vocabulary] over the temperature, the same on all tensor-parallel ranks.

        Every rank has the whole vocabulary, and of the gradient takes its part of it.
        """
        weight = lm_head_weight(self._model)
        self._await(weight)
        logits = hidden_rows(self._model, hidden, micro.rows) @ weight.t()
        if len(micro.rows) and mpu.get_tensor_model_parallel_world_size() > 1:
            logits = tensor_parallel.gather_from_tensor_model_parallel_region(logits)
        logits = logits.float()
        if (temperature := self._config.rollout.rollout_temperature) != 1:
            logits.div_(temperature)  # no second copy of them
        part: LossPart = step(logits, micro)
        return part
