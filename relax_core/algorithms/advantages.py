"""Advantages and returns of response tokens.

Guarantee: pure functions of packed arrays [T]; sample i owns ``offsets[i]:offsets[i + 1]``. A sample without a score
gets zeros; that it also weighs nothing in the loss (whose KL term needs no advantage) is the loss mask's task.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AdvantageInputs:
    """What an estimator may use."""

    rewards: NDArray[np.float64]
    """[N] normalised rewards; NaN = no score."""
    offsets: NDArray[np.int64]
    """[N + 1] bounds of the samples among the T response tokens."""
    loss_mask: NDArray[np.uint8]
    """[T] 1 where the token is trained."""


@dataclass(frozen=True)
class Advantages:
    """What an estimator gives, both [T] float32."""

    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]


def spread_over_tokens(inputs: AdvantageInputs) -> Advantages:
    """A_t = r for every token of the response, and returns = advantages.

    Masked tokens get r too: an estimator of one number per sample has nothing to mask, and the loss selects the tokens.
    Source: Shao et al., "DeepSeekMath" (2024), section 4.1.2 (outcome supervision).
    """
    per_sample = np.nan_to_num(inputs.rewards, nan=0.0).astype(np.float32)
    values = np.repeat(per_sample, np.diff(inputs.offsets))
    return Advantages(values, values)
