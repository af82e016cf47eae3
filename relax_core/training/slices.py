"""The gradient of a rollout step's first optimiser step, slice by slice, as its groups are finished.

Guarantee: the same slices in the same order give the same bits, whether they came before the batch was stored
(``Trainer.accumulate``) or all of them out of it; a slice is told by all that the loss reads of it. Nothing but the
gradient buffers changes, and they are cleared before the first slice: whatever ends in between costs its work alone.

With --calculate-per-token-loss the divisor is known with the last slice. Until then it is guessed from the first one,
and gradients and sums are put right at the end; the guess keeps a float16 gradient in range.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relax_core.algorithms.reduce import StepSize
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import TrainingBatch
from relax_core.training.distributed import gather_parts
from relax_core.training.errors import SliceRefused
from relax_core.training.hooks import LossFunctions
from relax_core.training.loss import Scores
from relax_core.training.passes import Pending
from relax_core.training.readout import Step
from relax_core.training.step_loss import make_step_loss
from relax_core.training.updates import clear_gradients, finish_gradients, unfinished
from relax_core.training.work import DataParallel, divide_slice

if TYPE_CHECKING:
    from relax_core.training.build import Parts

Phase = Callable[[str], AbstractContextManager[None]]

UNWEIGHTED = "_"
"""Beginning of the names of sums that are no means with the weights of the loss."""


@dataclass(frozen=True)
class Slice:
    """A slice whose gradient is in the buffers.

    Attributes:
        key: of its content.
        tokens: that are trained on.
        scores: that its loss compared with.
        names: of the step's metrics, as ``Step.sums`` and ``Step.largest``.
        sums, largest: of these, this rank's part.
    """

    key: str
    samples: int
    tokens: int
    scores: Scores
    names: tuple[tuple[str, ...], tuple[str, ...]]
    sums: Tensor
    largest: Tensor


class Accumulation:
    """The slices of one global batch, in their order.

    Args:
        config: resolved, with --global-batch-size.
        place: of this rank.
        parts: model and optimiser.
        functions: of the user.
        scores: the passes without gradient that a slice's loss asks for.
    """

    def __init__(
        self,
        config: RelaxConfig,
        place: DataParallel,
        parts: "Parts",
        functions: LossFunctions,
        scores: Callable[[TrainingBatch, Phase], Scores],
    ) -> None:
        assert config.batch.global_batch_size is not None
        self._config, self._place, self._parts, self._functions = config, place, parts, functions
        self._score, self._samples = scores, config.batch.global_batch_size
        self._guess = 0
        self._step: Step | None = None
        self.slices: list[Slice] = []

    def add(self, data: TrainingBatch, phase: Phase) -> None:
        """The next slice, forward and backward. Collective; of no use any more where it fails."""
        tokens = int(data.mask.sum())
        scores = self._score(data, phase)
        if not self.slices:
            self._guess = max((tokens or data.num_response_tokens) * self._samples // len(data), 1)
        size = StepSize(self._samples, self._guess)
        make = make_step_loss(self._config, data, scores, self._functions, gather_parts, size)
        step: Step = make((0, len(data)), True)
        learn, watch = divide_slice(self._config, self._place, data)
        with phase("forward_backward"):
            if not self.slices:
                clear_gradients(self._parts)
            with unfinished(self._parts.model):
                sums, largest = self._parts.passes.part(data, learn, watch, step)
        self._step = step
        names = (step.sums, step.largest)
        self.slices.append(Slice(data.fingerprint(), len(data), tokens, scores, names, sums, largest))

    def finish(self) -> Pending:
        """Put the gradients right and reduce them over ranks; the step's metrics. Collective."""
        factor, step, first = 1.0, self._step, self.slices[0]
        assert step is not None
        if self._config.optimizer.calculate_per_token_loss:
            factor = self._guess / max(sum(part.tokens for part in self.slices), 1)
        finish_gradients(self._parts.model, factor)
        sums, largest = first.sums.clone(), first.largest.clone()
        for part in self.slices[1:]:
            if part.names != first.names:
                raise RuntimeError(f"slices have the metrics {first.names} and {part.names}")
            sums += part.sums
            torch.maximum(largest, part.largest, out=largest)
        if factor != 1:
            factors = [1.0 if name.startswith(UNWEIGHTED) else factor for name in step.sums]
            sums *= torch.tensor(factors, dtype=sums.dtype, device=sums.device)
        return self._parts.passes.metrics(step, sums, largest)


def joined(scores: Sequence[Scores]) -> Scores:
    """The scores of consecutive parts of a batch as those of all of it."""

    def column(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in scores]
        return None if any(value is None for value in values) else torch.cat(values)

    return Scores(column("old"), column("reference"), column("trainer"))


def leading(held: Accumulation | None, slices: Sequence[TrainingBatch]) -> int:
    """How many slices of a stored batch are in the buffers already: all that are there, or none."""
    keys = [] if held is None else [part.key for part in held.slices]
    stored = [part.fingerprint() for part in slices[: len(keys)]]
    return len(keys) if keys == stored else 0


def require_room(config: RelaxConfig, slices: Sequence[Slice], data: TrainingBatch) -> None:
    """Raises ``SliceRefused`` for a slice that is too large for what is left of the global batch behind others."""
    size, before = config.batch.global_batch_size or 0, sum(part.samples for part in slices)
    if before + len(data) > size:
        raise SliceRefused(f"it has {len(data)} samples, and --global-batch-size {size} has room for {size - before}")
