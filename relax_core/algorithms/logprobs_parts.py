"""What both ways to log-probabilities have in common: see :mod:`relax_core.algorithms.logprobs`.

Guarantee: all ranks of a group get the same sums, in two exchanges whatever the number of chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Options:
    """How log-probabilities are computed."""

    temperature: float
    group: dist.ProcessGroup | None
    chunk_rows: int
    """Rows whose logits exist at once."""
    keep: bool
    """Keep what the backward pass needs of the logits of all rows."""
    entropy: bool
    entropy_grad: bool
    first_id: int
    """Vocabulary id of this rank's first row."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """What a softmax of numbers of this type is computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def over_ranks(
    peak: Tensor, total: Tensor, target: Tensor, energy: Tensor, owned: Tensor, options: Options
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Log-probabilities and entropies from each rank's statistics.

    Args:
        peak, total, target, energy: [R] ``max z``, ``sum E``, ``z - max z`` of the target and ``sum E (z - max z)``,
            over this rank's part of the vocabulary.
        owned: [R] bool, this rank has the target.

    Returns:
        log_probs [R]; entropy [R] where ``options.entropy``; offset [R] with ``E exp(offset) = p`` on this rank.
    """
    # One exchange for all chunks: first the peak, then everything relative to it.
    local_peak = peak
    if options.group is not None:
        peak = peak.clone()
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=options.group)
    shift = local_peak - peak
    scale = shift.exp()
    sums = torch.stack((total * scale, torch.where(owned, target + shift, 0.0), (energy + total * shift) * scale))
    if options.group is not None:
        dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=options.group)
    total, target, energy = sums
    log_total = total.log()
    entropy = log_total - energy / total if options.entropy else None
    return target - log_total, entropy, shift - log_total


def finished(
    ctx: Any,
    hidden: Tensor,
    weight: Tensor,
    local: Tensor,
    owned: Tensor,
    statistics: tuple[Tensor, Tensor, Tensor, Tensor],
    options: Options,
    kept: Any,
) -> tuple[Tensor, Tensor | None]:
    """The results of a forward pass, which leaves in ``ctx`` what its backward pass takes.

    Args:
        ctx: of the autograd function.
        local, owned: as ``local_targets`` gives them.
        statistics: peak, total, target and energy, as ``over_ranks`` takes them.
        kept: of the logits.
    """
    log_probs, entropy, offset = over_ranks(*statistics, owned, options)
    ctx.options, ctx.kept = options, kept
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(hidden, weight, local, owned, statistics[0], offset, entropy)
    if entropy is not None and not options.entropy_grad:
        ctx.mark_non_differentiable(entropy)
    return log_probs, entropy


class Accumulator:
    """Sum over chunks of ``delta.T @ part``, in float32 if there are several chunks of a narrower type."""

    def __init__(self, weight: Tensor, chunks: int) -> None:
        self.weight = weight
        self.wide = chunks > 1 and weight.dtype not in (torch.float32, torch.float64)
        self.sum: Tensor | None = None

    def add(self, delta: Tensor, part: Tensor) -> None:
        """Add a chunk: [R, V] gradient of the logits and [R, H] hidden states."""
        if self.sum is None:
            product = delta.t() @ part
            self.sum = product.float() if self.wide else product
        elif self.wide:
            self.sum += delta.t() @ part
        else:
            self.sum.addmm_(delta.t(), part)

    def result(self) -> Tensor:
        """[V, H] in the type of the weight."""
        return torch.zeros_like(self.weight) if self.sum is None else self.sum.to(self.weight.dtype)


def local_targets(targets: Tensor, vocab: int, options: Options) -> tuple[Tensor, Tensor]:
    """Targets as row numbers of this rank's shard (0 where another rank owns them), and whether this rank owns them."""
    local = targets.long() - options.first_id
    owned = (local >= 0) & (local < vocab)
    return torch.where(owned, local, 0), owned


def slices(total: int, size: int) -> Iterator[slice]:
    """Ranges of at most ``size`` that cover ``total``, in order."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
