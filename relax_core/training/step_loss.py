"""Which loss an optimiser step has: the policy's, the supervised one, or the user's.

Guarantee: the options alone decide; all of them are sums over tokens that know the whole optimiser step, so that
packing, micro-batches and ranks change neither loss nor metric beyond rounding. Importing it needs no Megatron.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from data.errors import UserError
from relax_core.algorithms.assemble import SupervisedObjective
from relax_core.algorithms.loss_parts import LossParts
from relax_core.algorithms.reduce import StepSize
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import Columns, MicroBatch, TrainingBatch
from relax_core.training.custom_loss import Gather, StepCustomLoss
from relax_core.training.hooks import LossFunctions
from relax_core.training.loss import Scores, StepLoss, weigh


def make_step_loss(
    config: RelaxConfig,
    batch: TrainingBatch,
    scores: Scores,
    functions: LossFunctions,
    gather: Gather,
    size: StepSize | None = None,
) -> Callable[[tuple[int, int], bool], Any]:
    """What makes the loss of each optimiser step, from its samples and whether it is the rollout's first.

    Args:
        functions: of the user.
        gather: a rank's small value to those of the ranks whose parts add up.
        size: of the optimiser step, where its samples here are a part of it; a loss of the user takes whole ones.

    Raises:
        UserError: a loss of the user without a function.
    """
    kind = config.algorithm.loss_type
    if kind == "custom_loss":
        if functions.loss is None:
            raise UserError("--loss-type custom_loss needs --custom-loss-function-path.", "Give it.")
        own, function = partial(StepCustomLoss, config, batch, scores), functions.loss
        return lambda samples, first: own(samples, function, gather)
    if kind in ("sft", "sft_loss"):
        return lambda samples, first: StepSupervisedLoss(config, batch, samples, size)
    return lambda samples, first: StepLoss(config, batch, scores, samples, first, functions, size)


class StepSupervisedLoss:
    """The supervised loss of one optimiser step: the mean negative log-likelihood of unmasked response tokens.

    Args:
        samples: first and last + 1 sample of the step: consecutive samples of the batch.
        size: of the step, where these samples are a part of it.
    """

    entropy_grad = False

    def __init__(
        self, config: RelaxConfig, batch: TrainingBatch, samples: tuple[int, int], size: StepSize | None = None
    ) -> None:
        self._objective = SupervisedObjective()
        _, self.weights = weigh(batch, samples, config.optimizer.calculate_per_token_loss, size)
        self._columns = Columns(mask=batch.mask, weights=self.weights)
        nothing = torch.zeros(0)
        self.sums = tuple(self._objective(nothing, nothing, nothing, nothing).sums)
        self.largest: tuple[str, ...] = ()

    def __call__(self, log_probs: Tensor, entropy: Tensor, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """A micro-batch's part of the loss; arguments and result as of ``StepLoss``."""
        mask, weights = (self._columns.take(name, micro.places) for name in ("mask", "weights"))
        parts: LossParts = self._objective(log_probs, mask, weights, entropy)
        sums = torch.stack([parts.sums[name] for name in self.sums])
        return parts.loss, sums, sums.new_zeros(0)

    def metrics(self, sums: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
        """``loss``, ``entropy_loss`` and ``ppl``, the perplexity of the learned tokens."""
        return self._objective.finish(sums, largest)
