"""From values of tokens to one number: the sample mean and the token mean over the global batch.

Guarantee: both are sums over tokens of ``value x weight`` whose weights know the size of the *global* batch. So the sum
of the results over micro-batches and data-parallel ranks is the result of the whole batch: how samples are packed or
split cannot change loss, gradient or metric. Masked tokens are left out by selection (their NaN stays theirs); a fully
masked sample adds exactly 0. No loops over samples, no atomics: deterministic on every device.

Layout: packed response tokens [T]; sample i owns ``offsets[i]:offsets[i + 1]``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core.algorithms.numerics import widen


def sample_token_counts(mask: Tensor, offsets: Tensor) -> Tensor:
    """Unmasked tokens of each sample.

    Args:
        mask: [T] of 0 and 1 (any type).
        offsets: [N + 1] int64.

    Returns:
        [N] int64.
    """
    running = torch.zeros(mask.numel() + 1, dtype=torch.int64, device=mask.device)
    torch.cumsum(mask.bool(), dim=0, dtype=torch.int64, out=running[1:])
    return running[offsets[1:]] - running[offsets[:-1]]


def sample_mean_weights(
    mask: Tensor, offsets: Tensor, *, global_samples: int, token_counts: Tensor | None = None
) -> Tensor:
    """Weight of each token in the mean over samples of their mean over tokens: mask / (tokens of its sample x B).

    Args:
        mask: [T] of 0 and 1.
        offsets: [N + 1] int64.
        global_samples: B, the samples of the whole optimiser step over all ranks, fully masked ones included.
        token_counts: [N] unmasked tokens of each whole sample, if this process holds only a part of its tokens
            (context parallelism). None: counted from ``mask``.

    Returns:
        [T] float32.
    """
    counts = sample_token_counts(mask, offsets) if token_counts is None else token_counts
    per_sample = 1.0 / (counts.clamp(min=1).double() * global_samples)
    weights = torch.repeat_interleave(per_sample.float(), offsets[1:] - offsets[:-1], output_size=mask.numel())
    return torch.where(mask.bool(), weights, 0.0)


def token_mean_weights(mask: Tensor, *, global_tokens: int) -> Tensor:
    """Weight of each token in the mean over all unmasked tokens: mask / max(global_tokens, 1).

    Args:
        mask: [T] of 0 and 1.
        global_tokens: unmasked tokens of the whole optimiser step over all ranks.

    Returns:
        [T] float32.
    """
    return mask.bool().float() / max(global_tokens, 1)


def weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """Sum of ``values x weights`` over the tokens of nonzero weight; a scalar of at least float32, with gradient.

    Args:
        values: [T] losses or metrics of tokens.
        weights: [T] from ``sample_mean_weights`` or ``token_mean_weights``.
    """
    values = widen(values)
    return (torch.where(weights != 0, values, 0.0) * weights.to(values.dtype)).sum()


def sample_mean(
    values: Tensor, mask: Tensor, offsets: Tensor, *, global_samples: int, token_counts: Tensor | None = None
) -> Tensor:
    """This micro-batch's part of ``1/B sum_i mean_t values`` (a scalar); arguments as in ``sample_mean_weights``."""
    weights = sample_mean_weights(mask, offsets, global_samples=global_samples, token_counts=token_counts)
    return weighted_sum(values, weights)


def token_mean(values: Tensor, mask: Tensor, *, global_tokens: int) -> Tensor:
    """This micro-batch's part of the mean over all unmasked tokens of the global batch (a scalar)."""
    return weighted_sum(values, token_mean_weights(mask, global_tokens=global_tokens))
