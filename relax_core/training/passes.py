"""Passes of the model over micro-batches, through Megatron's pipeline schedules.

Guarantee: sequences are packed without padding, and what is made of the hidden states (see ``readout``) is made for
response tokens only. Both passes are collective: every rank calls them with its own micro-batches, of which all ranks
have the same number.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from relax_core.training.batch import MicroBatch, TrainingBatch
from relax_core.training.distributed import Layout, max_over_ranks, sum_over_ranks
from relax_core.training.megatron import get_forward_backward_func
from relax_core.training.readout import Readout, Step
from relax_core.training.work import MicroBatches


@dataclass(frozen=True)
class Pending:
    """Metrics of an optimiser step on the device.

    Attributes:
        sums, largest: float64, by the names of ``step``, over all ranks.
    """

    step: Step
    sums: Tensor
    largest: Tensor

    @property
    def loss(self) -> Tensor:
        """float64 []"""
        return self.sums[self.step.sums.index("loss")]

    def read(self) -> dict[str, float]:
        """The metrics; waits for the device."""
        sums, largest = self.sums.tolist(), self.largest.tolist()
        return self.step.metrics(
            dict(zip(self.step.sums, sums, strict=True)), dict(zip(self.step.largest, largest, strict=True))
        )


class Passes:
    """Passes of one model.

    Args:
        model: in Megatron's data-parallel wrapper.
        readout: of this model.
        device: where micro-batches go.
    """

    def __init__(self, model: torch.nn.Module, readout: Readout, layout: Layout, device: torch.device) -> None:
        self._model, self._readout, self._layout, self._device = model, readout, layout, device

    @torch.no_grad()
    def score(self, batch: TrainingBatch, micro_batches: MicroBatches) -> Tensor:
        """The readout's number for every response token under the present weights: a policy's log-probability.

        Args:
            micro_batches: those of this rank.

        Returns:
            float32 [R] on the CPU, on every rank.
        """
        scores = torch.zeros(batch.num_response_tokens)
        parts: list[tuple[Tensor, Tensor]] = []  # read when all passes are launched: the host waits once

        def loss(micro: MicroBatch, hidden: Tensor) -> tuple[Tensor, Tensor, None]:
            found = self._readout.score(micro, hidden)
            parts.append((micro.flat, found))
            return found.new_zeros(()), torch.zeros((), dtype=torch.int, device=hidden.device), None

        self._run(batch, micro_batches, loss, forward_only=True)
        for places, found in parts:
            scores[places] = found.cpu()
        return sum_over_ranks(scores.to(self._device)).cpu()

    def gradient(self, batch: TrainingBatch, learn: MicroBatches, watch: MicroBatches, step: Step) -> "Pending":
        """Forward and backward of one optimiser step; gradients are then in the model's buffers, reduced over ranks.

        Args:
            learn: this rank's micro-batches.
            watch: further ones, of samples without a gradient: forward only, for the metrics.

        Returns:
            The step's metrics, the same on every rank, which a GPU may not have computed yet.
        """
        return self.metrics(step, *self.part(batch, learn, watch, step))

    def part(self, batch: TrainingBatch, learn: MicroBatches, watch: MicroBatches, step: Step) -> tuple[Tensor, Tensor]:
        """As ``gradient``, of all of a step's samples or some; float64 [len(step.sums)] and [len(step.largest)] of this
        rank."""
        sums, largest = (
            torch.zeros(len(names), dtype=torch.float64, device=self._device) for names in (step.sums, step.largest)
        )

        def loss(micro: MicroBatch, hidden: Tensor) -> tuple[Tensor, Tensor, None]:
            value, parts, peaks = self._readout.loss(micro, hidden, step)
            sums.add_(parts)
            torch.maximum(largest, peaks, out=largest)
            if not len(micro.rows) and hidden.requires_grad:  # a dummy has no row that leads back to the model
                value = value + hidden[:1].sum() * 0
            return value, torch.zeros((), dtype=torch.int, device=hidden.device), None

        if learn:
            self._run(batch, learn, loss, forward_only=False)
        if watch:
            with torch.no_grad():
                self._run(batch, watch, loss, forward_only=True)
        return sums, largest

    def metrics(self, step: Step, sums: Tensor, largest: Tensor) -> "Pending":
        """A step's metrics from what ``part`` gave on each rank, the same on every rank. Collective."""
        return Pending(step, sum_over_ranks(sums), max_over_ranks(largest))

    def _run(
        self,
        batch: TrainingBatch,
        micro_batches: MicroBatches,
        loss: Callable[[MicroBatch, Tensor], Any],
        forward_only: bool,
    ) -> None:
        def forward(
            source: Iterator[MicroBatch], model: torch.nn.Module
        ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, None]]]:
            micro = next(source)
            return model(micro.tokens, micro.lengths), partial(loss, micro)

        with collecting_paused():
            get_forward_backward_func()(
                forward_step_func=forward,
                data_iterator=(batch.micro_batch(samples, self._device) for samples in micro_batches),
                model=self._model,
                num_microbatches=len(micro_batches),
                seq_length=self._layout.tp_size,  # stages tell each other the real sizes
                micro_batch_size=1,
                forward_only=forward_only,
            )


@contextmanager
def collecting_paused() -> Iterator[None]:
    """Keep Python's garbage collector out: a pass makes as many objects as set it off, and a GPU would wait for it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
