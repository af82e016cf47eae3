"""Sums over the tokens of each sample, whole samples also where their tokens lie on several ranks.

Guarantee: a sample's result depends on its own tokens only, is accumulated in float64 and in the order of the tokens
(no atomics: the same bits on every call), and is the same however samples are packed. With a context-parallel group
each rank holds a part of every sample's tokens and every rank gets the sums over all parts; the gradient goes back to
the tokens of all ranks. Without a group, or with a group of one, nothing is exchanged.

Layout: packed response tokens [T]; sample i owns ``offsets[i]:offsets[i + 1]`` of this rank's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from relax_core.algorithms.numerics import keep_where
from relax_core.algorithms.reduce import sample_token_counts


def _sums(values: Tensor, offsets: Tensor) -> Tensor:
    return torch.segment_reduce(values, "sum", offsets=offsets, axis=0, unsafe=True, initial=0.0)


def _spread(per_sample: Tensor, offsets: Tensor, tokens: int) -> Tensor:
    return torch.repeat_interleave(per_sample, offsets[1:] - offsets[:-1], output_size=tokens)


class _Sums(torch.autograd.Function):
    """Sums of samples; each one's gradient goes to all of its tokens."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.tokens = values.numel()
        return _sums(values, offsets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (offsets,) = ctx.saved_tensors
        return _spread(gradient, offsets, ctx.tokens), None


class _Spread(torch.autograd.Function):
    """The other way round. Autograd's own backward of ``repeat_interleave`` adds with atomics on an accelerator."""

    @staticmethod
    def forward(ctx: Any, per_sample: Tensor, offsets: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(offsets)
        return _spread(per_sample, offsets, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (offsets,) = ctx.saved_tensors
        return _sums(gradient.double(), offsets).to(gradient.dtype), None, None


class _SumOverRanks(torch.autograd.Function):
    """All-reduce whose gradient is the all-reduce of the gradients: the loss is the sum of all ranks' losses."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        values = values.clone()
        dist.all_reduce(values, group=group)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


@dataclass(frozen=True)
class Sequences:
    """Which tokens belong to which sample.

    Args:
        offsets: [N + 1] int64, on the device of the tokens.
        group: ranks that hold the other tokens of the same samples (context parallelism), all of which make the same
            calls in the same order. None: this process has all of them.
    """

    offsets: Tensor
    group: dist.ProcessGroup | None = None

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    def spread(self, per_sample: Tensor, tokens: int) -> Tensor:
        """[tokens]: each sample's value at each of its tokens; the gradient flows through it.

        Args:
            per_sample: [N].
            tokens: T, so that an accelerator need not be asked for it.
        """
        return _Spread.apply(per_sample, self.offsets, tokens)  # type: ignore[no-any-return]

    def sums(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sum of each sample's unmasked tokens.

        Args:
            values: [T]; the gradient flows through them.
            mask: [T] of 0 and 1; masked tokens may hold NaN. None: all tokens.

        Returns:
            [N] float64, over the ranks of the group.
        """
        wide = keep_where(mask, values).double()
        totals: Tensor = _Sums.apply(wide, self.offsets)
        if self.group is not None and dist.get_world_size(self.group) > 1:
            totals = _SumOverRanks.apply(totals, self.group)
        return totals

    def counts(self, mask: Tensor) -> Tensor:
        """[N] int64: unmasked tokens of each sample, over the ranks of the group."""
        counts = sample_token_counts(mask, self.offsets)
        if self.group is not None and dist.get_world_size(self.group) > 1:
            dist.all_reduce(counts, group=self.group)
        return counts

    def means(self, values: Tensor, mask: Tensor) -> Tensor:
        """Sum of each sample's unmasked tokens / max(their number, 1).

        Returns:
            [N] float64; 0 for a fully masked sample.
        """
        return self.sums(values, mask) / self.counts(mask).clamp(min=1)
