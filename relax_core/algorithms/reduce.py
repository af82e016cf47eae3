"""From values of tokens to one number: the sample mean, the token mean and other sums over the global batch.

Guarantee: all are sums over tokens of ``value x weight`` whose weights know the size of the *global* batch. So the sum
of the results over micro-batches and data-parallel ranks is the result of the whole batch: how samples are packed or
split cannot change loss, gradient or metric. Masked tokens are left out by selection (their NaN stays theirs); a fully
masked sample adds exactly 0. No loops over samples, no atomics: deterministic on every device.

Layout: packed response tokens [T]; sample i owns ``offsets[i]:offsets[i + 1]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from data.errors import UserError
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


@dataclass(frozen=True)
class StepSize:
    """What an optimiser step's weights must know of all its samples, over all ranks.

    Args:
        samples: B, fully masked ones included.
        tokens: unmasked tokens.
    """

    samples: int
    tokens: int

    def divisor(self, per_token: bool) -> int:
        """What a sum over samples (or, with ``per_token``, over tokens) is divided by."""
        return max(self.tokens if per_token else self.samples, 1)


def step_weights(
    mask: Tensor, offsets: Tensor, size: StepSize, *, per_token: bool, token_counts: Tensor | None = None
) -> Tensor:
    """Weight of each token in the loss and in its metrics: the token mean with ``per_token``, else the sample mean.

    Args:
        mask, offsets, token_counts: as in ``sample_mean_weights``; of any part of the step.
        size: of the whole step.
        per_token: ``--calculate-per-token-loss``.

    Returns:
        [T] float32.
    """
    if per_token:
        return token_mean_weights(mask, global_tokens=size.tokens)
    return sample_mean_weights(mask, offsets, global_samples=size.divisor(False), token_counts=token_counts)


def summed(weights: Tensor, size: StepSize, *, per_token: bool) -> Callable[[Tensor], Tensor]:
    """The reducer that a user's loss function gets as ``sum_of_sample_mean``: of values [T] the sum over samples of
    their means (with ``per_token`` over tokens), before the division by the step's samples (tokens).

    Args:
        weights: [T] from ``step_weights``.
        size, per_token: as there.
    """
    return lambda values: weighted_sum(values, weights) * size.divisor(per_token)


ListReducer = Callable[[Tensor], Tensor]
"""From the losses of a micro-batch's tokens [T] to a sum over its samples (or tokens), not yet divided."""

ReducerFactory = Callable[[Sequence[int], Sequence[int], Sequence[Tensor], bool], ListReducer]
"""``--custom-pg-loss-reducer-function-path``: ``(total_lengths, response_lengths, loss_masks, per_token) -> reducer``.

One entry for each sample of the micro-batch: its tokens with and without the prompt, and its mask. The reducer gets the
policy losses of all response tokens, packed, and gives a *sum* over the samples; Relax divides it by the samples of the
optimiser step (with ``per_token``, --calculate-per-token-loss: by its trained tokens), so that micro-batches add up. A
factory with a further parameter ``args`` gets all options in it.
"""


def with_options(factory: Callable[..., ListReducer], args: Any) -> ReducerFactory:
    """The factory, with ``args`` (a namespace of all options) filled in if it has a parameter of that name."""
    try:
        wanted = "args" in inspect.signature(factory).parameters
    except ValueError:  # a builtin without a signature
        wanted = False
    return partial(factory, args=args) if wanted else factory


def custom_reduction(
    factory: ReducerFactory,
    losses: Tensor,
    masks: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    size: StepSize,
    *,
    per_token: bool,
) -> Tensor:
    """A micro-batch's part of the policy loss by a user's reducer.

    Args:
        factory: the user's, see ``ReducerFactory``.
        losses: [T], 0 where masked.
        masks: each sample's mask.

    Returns:
        A scalar with gradient.

    Raises:
        UserError: the reducer gives no single number.
    """
    result: Any = factory(list(total_lengths), list(response_lengths), list(masks), per_token)(losses)
    if not isinstance(result, Tensor) or result.numel() != 1:
        found = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)
        raise UserError(
            f"The reducer of --custom-pg-loss-reducer-function-path gave {found}.",
            "It must give one number for all samples, as a tensor.",
        )
    return result.reshape(()) / size.divisor(per_token)


def constant_length(length: int) -> ReducerFactory:
    """The reducer of Dr.GRPO: the sum over tokens / a constant length, so that no response's tokens weigh less.

    Source: Liu et al., "Understanding R1-Zero-Like Training: A Critical Perspective" (2025), section 3.2 and its
    listing, where the length is the largest response length.

    Args:
        length: tokens, e.g. --rollout-max-response-len.

    Raises:
        ValueError: a length below 1.
    """
    if length < 1:
        raise ValueError(f"the constant length is {length} and must be at least 1")

    def factory(
        total_lengths: Sequence[int], response_lengths: Sequence[int], loss_masks: Sequence[Tensor], per_token: bool
    ) -> ListReducer:
        if per_token:
            raise UserError(
                "--calculate-per-token-loss divides by the trained tokens, and Dr.GRPO's reducer by a constant length.",
                "Leave --calculate-per-token-loss out.",
            )
        keep = torch.cat(list(loss_masks)).bool()
        return lambda losses: torch.where(keep, losses, 0.0).sum() / length

    return factory


def dr_grpo(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    per_token: bool,
    *,
    args: Any = None,
) -> ListReducer:
    """``constant_length`` of --rollout-max-response-len, to be named by --custom-pg-loss-reducer-function-path.

    Raises:
        UserError: the option is not set.
    """
    length = getattr(args, "rollout_max_response_len", None)
    if not length:
        raise UserError("Dr.GRPO's reducer divides by --rollout-max-response-len, which is not set.", "Set it.")
    return constant_length(int(length))(total_lengths, response_lengths, loss_masks, per_token)
