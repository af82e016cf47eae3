"""The optimiser steps of one rollout step.

Guarantee: gradients are plain sums over micro-batches and ranks of an already normalised loss; Megatron scales them in
float16 alone, and undoes it before anything looks at them. A step whose loss or gradient is not finite is not applied:
in float16 with a loss scale that can still be lowered it is passed over, else it is an error. When the last step is
done every rank has all weights.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import TrainingBatch
from relax_core.training.device_step import device_norm, step_where_finite
from relax_core.training.errors import NonFiniteUpdate
from relax_core.training.megatron import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    TransformerConfig,
    finalize_model_grads,
)
from relax_core.training.megatron_config import megatron_object
from relax_core.training.optimizer import (
    apply,
    current_rate,
    gradient_norm,
    loss_scale,
    may_lower_scale,
    reset_moments,
)
from relax_core.training.passes import Pending
from relax_core.training.readout import Step
from relax_core.training.state import Update
from relax_core.training.work import Work

if TYPE_CHECKING:
    from relax_core.training.build import Parts

MakeStep = Callable[[tuple[int, int], bool], Step]
"""Makes the loss of an optimiser step from its samples (first and last + 1) and whether it is the rollout's first."""

TAKEN = ("grad_norm", "lr")
"""Metrics that only a step which was taken has."""

LARGEST = "_max"
"""End of the names of metrics of which the largest counts, and not the mean."""


def wrap(config: RelaxConfig, megatron: TransformerConfig, policy: torch.nn.Module) -> torch.nn.Module:
    """The policy in Megatron's data-parallel wrapper: float32 gradients in buffers, summed over ranks.

    Raises:
        UserError: options that Megatron refuses.
    """
    options = config.optimizer
    own = {
        "grad_reduce_in_fp32": True,
        "use_distributed_optimizer": options.use_distributed_optimizer,
        "overlap_grad_reduce": options.overlap_grad_reduce,
        "overlap_param_gather": options.overlap_param_gather,
    }
    wrapper = megatron_object(DistributedDataParallelConfig, "ddp", config, own)
    model = DistributedDataParallel(megatron, wrapper, policy)
    megatron.finalize_model_grads_func = _finalize
    megatron.no_sync_func = model.no_sync
    return model  # type: ignore[no-any-return]


def _finalize(model: list[torch.nn.Module], num_tokens: Any = None, **kwargs: Any) -> None:
    """Reduce gradients over ranks; never divide by a number of tokens, which the loss has done."""
    finalize_model_grads(model, None, **kwargs)


def clear_gradients(parts: "Parts") -> None:
    """Before the first pass of an optimiser step."""
    parts.model.zero_grad_buffer()
    parts.optimizer.zero_grad()


@contextmanager
def unfinished(model: Any) -> Iterator[None]:
    """Passes in here add their gradients to the buffers of this rank alone: others follow, see ``finish_gradients``."""
    config = model.config
    kept = config.finalize_model_grads_func, config.no_sync_func
    # A schedule leaves its own no_sync before the last of its micro-batches, and thereby any other.
    config.finalize_model_grads_func, config.no_sync_func = _leave_unfinished, None
    try:
        with model.no_sync():
            yield
    finally:
        config.finalize_model_grads_func, config.no_sync_func = kept


def _leave_unfinished(*args: Any, **kwargs: Any) -> None:
    """In place of ``_finalize``. (Without any, Megatron would leave out more.)"""


def finish_gradients(model: Any, factor: float) -> None:
    """After ``unfinished`` passes: multiply the gradients by ``factor`` and reduce them over ranks. Collective."""
    if factor != 1:
        model.scale_gradients(factor)
    if model.ddp_config.overlap_grad_reduce:
        model.start_grad_sync()  # otherwise the last backward pass does
    _finalize([model])


@dataclass
class Applied:
    """What the optimiser steps of a rollout step did.

    Attributes:
        metrics: those of ``relax_core.training.loss`` as means over the steps that have them (``lr`` of the last one,
            largest values as such), ``grad_norm`` before clipping, ``tokens``; in float16 also ``loss_scale`` after the
            last step and ``skipped_steps``, in which it was too large.
        steps: steps that were taken.
    """

    metrics: dict[str, float]
    steps: int


def apply_updates(
    config: RelaxConfig,
    parts: "Parts",
    batch: TrainingBatch,
    work: Sequence[Work],
    make_step: MakeStep,
    target: int,
    update: Update,
    phase: Callable[[str], AbstractContextManager[None]],
    ready: Callable[[], None],
    first: Callable[[], Pending] | None = None,
) -> Applied:
    """Take the optimiser steps of a rollout step.

    Args:
        work: one for each optimiser step.
        make_step: the loss of each, which fits the readout of ``parts.passes``.
        target: version that they make, for the error's text.
        update: told when the first weight is about to change.
        phase: measures the time spent in a named phase.
        ready: called before the optimiser's state is read or changed, or a weight is.
        first: finishes the first step's gradient, where it was accumulated already, and gives the step's metrics.

    Raises:
        NonFiniteUpdate: see there.
    """
    if config.algorithm.reset_optimizer_states:
        ready()
        reset_moments(parts.optimizer)
    rows: list[dict[str, float]] = []
    for number, part in enumerate(work):
        with phase("forward_backward"):
            if first is not None and number == 0:
                pending = first()
            else:
                step = make_step(part.samples, number == 0)
                clear_gradients(parts)
                pending = parts.passes.gradient(batch, part.learn, part.watch, step)
            ready()
            launched = launch(config, parts, pending, update) if parts.decided_on_device else None
            row = pending.read() if launched is None else {}
        with phase("optimizer"):
            if launched is not None:
                row = launched.finish(parts, target, number)
            else:
                row = _step(config, parts, row, target, number, update)
            if "grad_norm" in row:
                _gather(parts.model, now=number == len(work) - 1 or not part.learn)
        rows.append(row)
    metrics = {name: _over_steps(name, rows) for row in rows for name in row if name not in TAKEN}
    taken = [row for row in rows if "grad_norm" in row]
    metrics["grad_norm"] = sum(row["grad_norm"] for row in taken) / len(taken) if taken else 0.0
    metrics["lr"] = taken[-1]["lr"] if taken else current_rate(parts.optimizer)
    if config.backend.fp16:
        metrics |= {"loss_scale": loss_scale(parts.optimizer), "skipped_steps": float(len(rows) - len(taken))}
    metrics["tokens"] = float(len(batch.tokens.values))
    return Applied(metrics, len(taken))


def _step(
    config: RelaxConfig, parts: "Parts", row: dict[str, float], target: int, number: int, update: Update
) -> dict[str, float]:
    """Take an optimiser step, or raise, or in float16 pass it over; the metrics with what the step adds."""
    if not math.isfinite(row["loss"]):
        raise NonFiniteUpdate(target, number, row["loss"], None)
    patient = may_lower_scale(parts.optimizer)
    norm = gradient_norm(parts.optimizer)
    if math.isfinite(norm):
        update.begun = True
        return {
            **row,
            "lr": apply(parts.optimizer, parts.schedule, norm, config.optimizer.clip_grad),
            "grad_norm": norm,
        }
    if not patient:
        raise NonFiniteUpdate(target, number, row["loss"], norm)
    return row


@dataclass
class Launched:
    """An optimiser step that the device takes where its numbers are finite; the host has not waited for it."""

    pending: Pending
    norm: Tensor
    update: Update
    begun: bool
    """Whether an earlier step of the rollout step has changed weights."""

    def finish(self, parts: "Parts", target: int, number: int) -> dict[str, float]:
        """Wait; the metrics with what the step adds.

        Raises:
            NonFiniteUpdate: the device has passed it over.
        """
        row, norm = self.pending.read(), float(self.norm)
        if not math.isfinite(row["loss"]) or not math.isfinite(norm):
            self.update.begun = self.begun
            raise NonFiniteUpdate(target, number, row["loss"], norm if math.isfinite(row["loss"]) else None)
        row |= {"lr": current_rate(parts.optimizer), "grad_norm": norm}
        parts.schedule.step(1)
        return row


def launch(config: RelaxConfig, parts: "Parts", pending: Pending, update: Update) -> Launched:
    """Let the device take an optimiser step, and wait until it has the gradient: what is behind it goes on."""
    backward = torch.cuda.Event() if pending.sums.is_cuda else None
    if backward is not None:
        backward.record()
    norm = device_norm(parts.optimizer, pending.sums.device)
    begun, update.begun = update.begun, True
    step_where_finite(parts.optimizer, norm, pending.loss, config.optimizer.clip_grad)
    if backward is not None:
        backward.synchronize()
    return Launched(pending, norm, update, begun)


def _over_steps(name: str, rows: Sequence[dict[str, float]]) -> float:
    """A metric of a rollout step from the optimiser steps that have it."""
    values = [row[name] for row in rows if name in row]
    return max(values) if name.endswith(LARGEST) else sum(values) / len(values)


def _gather(model: Any, now: bool) -> None:
    """With --overlap-param-gather the ranks exchange their new weights in the next pass with a gradient, or now."""
    if model.ddp_config.overlap_param_gather and now:
        model.start_param_sync(force_sync=True)
