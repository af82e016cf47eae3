"""Normalisation of rewards within the group of samples that answer one prompt.

Guarantee: samples are grouped by id, never by position, so groups may be interleaved and of different sizes. A sample
without a score (NaN) takes no part in its group's statistics and stays NaN. A group whose scores are all equal gives
exact zeros, decided by comparing the scores and not through a rounded standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError

Normalizer = Literal["group_mean_std", "group_mean", "group_leave_one_out", "none"]
NORMALIZERS: tuple[str, ...] = get_args(Normalizer)

STD_EPSILON = 1e-6
"""Added to the standard deviation."""


def group_codes(group_ids: Sequence[str] | NDArray) -> tuple[NDArray, NDArray[np.int64]]:
    """The distinct ids, sorted, and for each sample [N] the number of its id among them."""
    ids = np.asarray(group_ids, dtype=None if len(group_ids) else str)
    distinct, codes = np.unique(ids, return_inverse=True)
    return distinct, codes.reshape(-1).astype(np.int64)


def group_range(values: NDArray[np.float64], codes: NDArray[np.int64], groups: int) -> tuple[NDArray, NDArray]:
    """Least and greatest value of each group; (inf, -inf) for a group without values."""
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, codes, values)
    np.maximum.at(high, codes, values)
    return low, high


def normalize_rewards(
    rewards: NDArray[np.float64],
    group_ids: Sequence[str] | NDArray,
    *,
    kind: str,
    std: bool = True,
    expected_group_size: int | None = None,
) -> NDArray[np.float64]:
    """Rewards relative to those of their group.

    group_mean_std: (r - mean) / (s + 1e-6), s the unbiased standard deviation (divisor n - 1), as in Shao et al.,
    "DeepSeekMath" (2024), section 4.1.2; with ``std=False`` only r - mean, as in Liu et al., "Understanding
    R1-Zero-Like Training" (2025). group_mean: r - mean, the reward itself being part of the mean, as in Hu et al.,
    "REINFORCE++" (2025), its variant with a baseline. group_leave_one_out: r - mean of the *other* scores of the group
    = n / (n - 1) (r - mean), as in Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!" (2019), eq. 8.
    none: r.

    Args:
        rewards: [N]; NaN = no score.
        group_ids: [N].
        kind: one of ``NORMALIZERS``.
        std: divide by the standard deviation (group_mean_std only).
        expected_group_size: samples that every group must have, unscored ones included; None: any.

    Returns:
        [N] float64; NaN where the sample has no score, 0 where it is the only scored one of its group.

    Raises:
        UserError: an infinite reward, a group of another size, an unknown kind.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if kind not in NORMALIZERS:
        raise UserError(f"The reward normaliser is '{kind}'.", f"Choose one of {', '.join(NORMALIZERS)}.")
    if len(group_ids) != values.size:
        raise ValueError(f"{values.size} rewards but {len(group_ids)} group ids")
    if np.isinf(values).any():
        place = int(np.isinf(values).argmax())
        raise UserError(
            f"The reward of a sample of group {group_ids[place]} is {values[place]}.",
            "Return a finite number, or None for no score.",
        )
    if kind == "none" or values.size == 0:
        return values.copy()

    distinct, codes = group_codes(group_ids)
    groups = len(distinct)
    if expected_group_size is not None:
        sizes = np.bincount(codes, minlength=groups)
        if (sizes != expected_group_size).any():
            place = int((sizes != expected_group_size).argmax())
            raise UserError(
                f"Group {distinct[place]} has {sizes[place]} samples, --n-samples-per-prompt is {expected_group_size}.",
                "Give every sample of a dropped or failed request a row without a score.",
            )

    scored = ~np.isnan(values)
    scores, codes = values[scored], codes[scored]
    counts = np.bincount(codes, minlength=groups)
    means = np.bincount(codes, weights=scores, minlength=groups) / np.maximum(counts, 1)
    low, high = group_range(scores, codes, groups)
    centred = np.where((low == high)[codes], 0.0, scores - means[codes])
    if kind == "group_mean_std" and std:
        squares = np.bincount(codes, weights=centred**2, minlength=groups)
        deviation = np.sqrt(squares / np.maximum(counts - 1, 1))
        centred /= deviation[codes] + STD_EPSILON
    elif kind == "group_leave_one_out":
        centred *= (counts / np.maximum(counts - 1, 1))[codes]
    result = np.full(values.size, np.nan)
    result[scored] = centred
    return result
