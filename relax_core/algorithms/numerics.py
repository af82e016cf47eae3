"""Differences and exponentials of log-probabilities that stay finite.

Guarantee: for any finite inputs, in any float type, both functions give finite values with finite gradients, and they
are exact (no bound is felt) wherever a language model's log-probabilities can be.

Half-precision inputs are widened to float32 first; float64 stays float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_LOG_DIFFERENCE = 1e6
"""Nats. A log-probability difference is bounded here so that its square stays finite in float32."""

MAX_EXPONENT = 20.0
"""Nats. Above it an exponential goes on as its tangent: float32 still holds products and squares of e^20 = 4.9e8."""


def widen(values: Tensor) -> Tensor:
    """``values`` in float32, or as they are if they are float64."""
    return values if values.dtype == torch.float64 else values.float()


def log_difference(left: Tensor, right: Tensor) -> Tensor:
    """``left - right`` in at least float32, bounded to ±``MAX_LOG_DIFFERENCE`` (infinite differences too)."""
    return (widen(left) - widen(right)).clamp(-MAX_LOG_DIFFERENCE, MAX_LOG_DIFFERENCE)


def safe_exp(exponent: Tensor) -> Tensor:
    """``exp(x)`` up to ``MAX_EXPONENT`` = c, then its tangent ``e^c (1 + x - c)``.

    A constant cap would make the gradient vanish, or change its sign once other terms are added, exactly at the tokens
    that drifted furthest; the tangent stays monotone with a continuous gradient.
    """
    excess = torch.relu(exponent - MAX_EXPONENT)
    return exponent.clamp(max=MAX_EXPONENT).exp() + math.exp(MAX_EXPONENT) * excess


def safe_expm1(exponent: Tensor) -> Tensor:
    """``safe_exp(x) - 1`` without the cancellation near 0."""
    excess = torch.relu(exponent - MAX_EXPONENT)
    return torch.expm1(exponent.clamp(max=MAX_EXPONENT)) + math.exp(MAX_EXPONENT) * excess


def keep_where(mask: Tensor | None, values: Tensor) -> Tensor:
    """``values`` where ``mask`` is set and 0 elsewhere, by selection: NaN and infinity in masked places do not leak,
    neither into the value nor into the gradient. No mask keeps everything."""
    return values if mask is None else torch.where(mask.bool(), values, 0.0)
