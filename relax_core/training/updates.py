"""The optimiser steps of one rollout step.

Guarantee: gradients are plain sums over micro-batches and ranks of an already normalised loss; nothing in Megatron
scales them. A step whose loss or gradient is not finite is not applied.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import TrainingBatch
from relax_core.training.errors import NonFiniteUpdate
from relax_core.training.loss import DIFFERENCE, Scores, StepLoss
from relax_core.training.megatron import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    TransformerConfig,
    finalize_model_grads,
)
from relax_core.training.optimizer import apply, gradient_norm
from relax_core.training.state import Update
from relax_core.training.work import Work


def wrap(config: RelaxConfig, megatron: TransformerConfig, policy: torch.nn.Module) -> torch.nn.Module:
    """The policy in Megatron's data-parallel wrapper: float32 gradients in one buffer, summed over ranks."""
    options = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=config.optimizer.use_distributed_optimizer
    )
    model = DistributedDataParallel(megatron, options, policy)
    megatron.finalize_model_grads_func = _finalize
    megatron.no_sync_func = model.no_sync
    return model  # type: ignore[no-any-return]


def _finalize(model: list[torch.nn.Module], num_tokens: Any = None, **kwargs: Any) -> None:
    """Reduce gradients over ranks; never divide by a number of tokens, which the loss has done."""
    finalize_model_grads(model, None, **kwargs)


def apply_updates(
    config: RelaxConfig,
    parts: Any,
    batch: TrainingBatch,
    work: Sequence[Work],
    scores: Scores,
    target: int,
    update: Update,
    phase: Callable[[str], AbstractContextManager[None]],
) -> dict[str, float]:
    """Take the optimiser steps of a rollout step.

    Args:
        parts: has ``model``, ``optimizer``, ``schedule`` and ``passes``.
        work: one for each optimiser step.
        target: version that they make, for the error's text.
        update: told when the first weight is about to change.
        phase: measures the time spent in a named phase.

    Returns:
        Metrics of ``relax_core.training.loss`` as means over the steps (``lr`` of the last one, largest values as
        such), ``grad_norm`` before clipping, and ``tokens``.

    Raises:
        NonFiniteUpdate: see there.
    """
    rows: list[dict[str, float]] = []
    largest = 0.0
    for number, part in enumerate(work):
        step = StepLoss(config, batch, scores, part.samples, first=number == 0)
        with phase("forward_backward"):
            parts.model.zero_grad_buffer()
            parts.optimizer.zero_grad()
            row = parts.passes.gradient(batch, part.learn, part.watch, step)
        with phase("optimizer"):
            if not math.isfinite(row["loss"]):
                raise NonFiniteUpdate(target, number, row["loss"], None)
            norm = gradient_norm(parts.optimizer)
            if not math.isfinite(norm):
                raise NonFiniteUpdate(target, number, row["loss"], norm)
            update.begun = True
            rate = apply(parts.optimizer, parts.schedule, norm, config.optimizer.clip_grad)
        largest = max(largest, row.pop("largest_difference"))
        rows.append({**row, "grad_norm": norm, "lr": rate})
    metrics = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    metrics["lr"] = rows[-1]["lr"]
    if scores.trainer is None:  # only the first step's weights are those that generated
        metrics[DIFFERENCE] = rows[0][DIFFERENCE]
    metrics[f"{DIFFERENCE}_max"] = largest
    if scores.reference is None:
        del metrics["kl_loss"]
    metrics["tokens"] = float(len(batch.tokens.values))
    return metrics
