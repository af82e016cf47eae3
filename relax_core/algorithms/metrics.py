"""Metrics of scored rollouts, from arrays.

Guarantee: samples without a score (NaN) take no part in reward metrics; groups are matched by id. With nothing to
measure, a dictionary is empty and a single number is NaN; nothing raises.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relax_core.algorithms.rewards import group_codes, group_range

REPETITION_WINDOW = 10_000
"""Characters at the end of a text whose compressibility is measured; texts that are not longer never count."""
REPETITION_RATIO = 10.0
"""Bytes per compressed byte above which the window repeats itself."""


def pass_at_k(rewards: NDArray[np.float64], group_ids: Sequence[str] | NDArray) -> dict[int, float]:
    """Chance that at least one of k samples of a prompt is right, for k = 1, 2, 4, ... up to the largest group.

    The unbiased estimate 1 - C(n - c, k) / C(n, k) of a group with n scored samples, c of them right, averaged over the
    groups with n >= k. Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021), eq. 1.

    Args:
        rewards: [N]; right means exactly 1; NaN = no score.
        group_ids: [N].
    """
    values = np.asarray(rewards, dtype=np.float64)
    distinct, codes = group_codes(group_ids)
    scored = ~np.isnan(values)
    total = np.bincount(codes[scored], minlength=len(distinct))
    right = np.bincount(codes[values == 1.0], minlength=len(distinct))
    result: dict[int, float] = {}
    k = 1
    while k <= total.max(initial=0):
        n, wrong = total[total >= k], (total - right)[total >= k]
        drawn = np.arange(k)[:, None]
        # C(n - c, k) / C(n, k) is the product of (n - c - j) / (n - j): the j-th draw without replacement is wrong too
        all_wrong = (np.maximum(wrong - drawn, 0) / (n - drawn)).prod(axis=0)
        result[k] = float((1.0 - all_wrong).mean())
        k *= 2
    return result


def zero_spread_groups(rewards: NDArray[np.float64], group_ids: Sequence[str] | NDArray) -> dict[str, float]:
    """Groups of two or more scored samples whose rewards are all equal: they teach nothing.

    Returns:
        ``zero_std/count`` and ``zero_std/fraction`` (of the groups with two or more scores), and ``zero_std/count_<r>``
        for each reward r, rounded to one decimal. Empty if no group has two scores.
    """
    values = np.asarray(rewards, dtype=np.float64)
    distinct, codes = group_codes(group_ids)
    scored = ~np.isnan(values)
    counts = np.bincount(codes[scored], minlength=len(distinct))
    several = counts > 1
    if not several.any():
        return {}
    low, high = group_range(values[scored], codes[scored], len(distinct))
    equal = several & (low == high)
    result = {"zero_std/count": float(equal.sum()), "zero_std/fraction": float(equal.sum() / several.sum())}
    levels, numbers = np.unique(np.round(low[equal], 1) + 0.0, return_counts=True)  # + 0.0: -0.0 is 0.0
    return result | {f"zero_std/count_{level}": float(n) for level, n in zip(levels, numbers, strict=True)}


def length_stats(lengths: Sequence[int] | NDArray) -> dict[str, float]:
    """``response_len/{mean,median,max,min}`` in tokens; empty without samples."""
    values = np.asarray(lengths, dtype=np.float64)
    if values.size == 0:
        return {}
    return {
        "response_len/mean": float(values.mean()),
        "response_len/median": float(np.median(values)),
        "response_len/max": float(values.max()),
        "response_len/min": float(values.min()),
    }


def truncated_ratio(statuses: Sequence[str] | NDArray) -> float:
    """Fraction of the samples whose status is ``truncated``; NaN without samples."""
    return float((np.asarray(statuses) == "truncated").mean()) if len(statuses) else float("nan")


def repeats_itself(text: str) -> bool:
    """Whether zlib (level 9) packs the end of a text of more than 10,000 characters more than tenfold."""
    if len(text) <= REPETITION_WINDOW:
        return False
    window = text[-REPETITION_WINDOW:].encode(errors="surrogatepass")
    return len(window) / len(zlib.compress(window, 9)) > REPETITION_RATIO


def repetition_frac(texts: Sequence[str]) -> float:
    """Fraction of the texts that repeat themselves; NaN without texts."""
    return sum(map(repeats_itself, texts)) / len(texts) if texts else float("nan")


def effective_sample_fraction(weight_sum: float, weight_square_sum: float, count: float) -> float:
    """Effective sample size of importance weights, as a part of their number: (sum w)² / (n sum w²), from 1/n to 1.

    1: all weights are equal; 1/n: one weight is all there is. Source: Kish, "Survey Sampling" (1965), as used for
    importance sampling by Kong (1992).

    Args:
        weight_sum, weight_square_sum, count: of the unmasked tokens (``corrections.importance_sums``).

    Returns:
        NaN without tokens or where all weights are 0.
    """
    return weight_sum**2 / (count * weight_square_sum) if count and weight_square_sum else float("nan")


def staleness_stats(versions: Sequence[int] | NDArray, current: int) -> dict[str, float]:
    """``staleness/{avg,max,min}``: how many updates older than the current weights those are that made each sample.

    Args:
        versions: [N] of the oldest weights that made a token of the sample.
        current: version of the weights that are trained.

    Returns:
        Empty without samples.
    """
    ages = current - np.asarray(versions, dtype=np.float64)
    if ages.size == 0:
        return {}
    return {"staleness/avg": float(ages.mean()), "staleness/max": float(ages.max()), "staleness/min": float(ages.min())}


def leave_one_out_metrics(
    rewards: NDArray[np.float64],
    advantages: NDArray[np.float64],
    group_ids: Sequence[str] | NDArray,
    trained_tokens: NDArray[np.int64],
) -> dict[str, float]:
    """Metrics of RLOO, over samples and groups.

    Args:
        rewards: [N] before normalisation; NaN = no score.
        advantages: [N] leave-one-out advantages; NaN = no score.
        group_ids: [N].
        trained_tokens: [N] unmasked tokens.

    Returns:
        ``rloo/baseline_mean`` (reward - advantage) and ``rloo/adv_abs_mean`` over scored samples;
        ``rloo/no_signal_frac``: scored samples of advantage 0; ``rloo/zero_adv_group_frac``: groups with a score whose
        advantages are all 0; ``rloo/dropped_group_frac``: groups with fewer than two scores;
        ``rloo/empty_response_frac``: samples without a trained token. Empty without samples.
    """
    values, gains = np.asarray(rewards, dtype=np.float64), np.asarray(advantages, dtype=np.float64)
    if values.size == 0:
        return {}
    distinct, codes = group_codes(group_ids)
    scored = ~np.isnan(values)
    counts = np.bincount(codes[scored], minlength=len(distinct))
    signals = np.bincount(codes[scored & (gains != 0)], minlength=len(distinct))
    result = {
        "rloo/dropped_group_frac": float((counts < 2).mean()),
        "rloo/empty_response_frac": float((np.asarray(trained_tokens) == 0).mean()),
    }
    if scored.any():
        result |= {
            "rloo/baseline_mean": float((values - gains)[scored].mean()),
            "rloo/adv_abs_mean": float(np.abs(gains[scored]).mean()),
            "rloo/no_signal_frac": float((gains[scored] == 0).mean()),
            "rloo/zero_adv_group_frac": float((signals[counts > 0] == 0).mean()),
        }
    return result
