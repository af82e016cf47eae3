"""Metrics of scored rollouts by hand, on empty steps, and pass@k against brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms.metrics import (
    leave_one_out_metrics,
    length_stats,
    pass_at_k,
    repeats_itself,
    repetition_frac,
    staleness_stats,
    truncated_ratio,
    zero_spread_groups,
)

NAN = float("nan")


def test_pass_at_k_by_hand():
    # a: n 4, c 1: 1/4; 1 - C(3,2)/C(4,2) = 1/2; 1. b: n 4, c 0 (0.99 is not right): 0. Means 1/8, 1/4, 1/2
    got = pass_at_k(np.array([1.0, 0, 0, 0, 0, 0, 0, 0.99]), list("abababab"))
    assert got == pytest.approx({1: 0.125, 2: 0.25, 4: 0.5})


def brute(groups, rewards):
    """Fraction of the k-subsets of each group's scored samples that hold a reward of 1, averaged over groups."""
    result, k = {}, 1
    members = {g: [r for h, r in zip(groups, rewards, strict=True) if h == g and r == r] for g in groups}
    while any(len(m) >= k for m in members.values()):
        rates = []
        for m in members.values():
            if len(m) >= k:
                subsets = list(itertools.combinations(m, k))
                rates.append(sum(1.0 in s for s in subsets) / len(subsets))
        result[k] = sum(rates) / len(rates)
        k *= 2
    return result


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.5, NAN]), st.sampled_from("abc")), max_size=18))
def test_pass_at_k_equals_counting_all_subsets(scored):
    rewards, groups = [r for r, _ in scored], [g for _, g in scored]
    assert pass_at_k(np.array(rewards, dtype=float), groups) == pytest.approx(brute(groups, rewards))


def test_zero_spread_is_decided_exactly():
    # a: seven 0.1 (equal); b: 0.1 and the next float (not equal); c: one score only (not counted); d: two zeros
    rewards = [0.1] * 7 + [0.1, np.nextafter(0.1, 1)] + [1.0, NAN] + [0.0, -0.0]
    got = zero_spread_groups(np.array(rewards), list("aaaaaaabbccdd"))
    assert got == pytest.approx(
        {"zero_std/count": 2, "zero_std/fraction": 2 / 3, "zero_std/count_0.1": 1, "zero_std/count_0.0": 1}
    )


def test_lengths_and_truncation():
    assert length_stats([1, 2, 9, 4]) == {
        "response_len/mean": 4.0, "response_len/median": 3.0, "response_len/max": 9.0, "response_len/min": 1.0,
    }  # fmt: skip
    assert truncated_ratio(["completed", "truncated", "aborted", "truncated"]) == 0.5


def test_repetition_needs_a_long_text_that_compresses_tenfold():
    assert not repeats_itself("a" * 10_000)
    assert repeats_itself("a" * 10_001)
    varied = "".join(chr(33 + (i * i * 7919 + i) % 90) + str(hash((i, 1)) % 997) for i in range(5000))
    assert not repeats_itself(varied)
    assert repeats_itself(varied + "and so on " * 1000)  # only the end is looked at
    assert repetition_frac(["a" * 20_000, "short"]) == 0.5


def test_a_step_with_nothing_in_it_gives_empty_or_nan():
    assert pass_at_k(np.empty(0), []) == {}
    assert pass_at_k(np.array([NAN, NAN]), ["a", "a"]) == {}
    assert zero_spread_groups(np.empty(0), []) == {}
    assert zero_spread_groups(np.array([NAN, NAN]), ["a", "b"]) == {}
    assert length_stats([]) == {}
    assert math.isnan(truncated_ratio([]))
    assert math.isnan(repetition_frac([]))
    assert staleness_stats([], 3) == {}
    assert leave_one_out_metrics(np.empty(0), np.empty(0), [], np.empty(0)) == {}


def test_staleness_counts_updates():
    assert staleness_stats([7, 5, 6, 6], 7) == {"staleness/avg": 1.0, "staleness/max": 2.0, "staleness/min": 0.0}


def test_metrics_of_leave_one_out():
    # a: rewards 1, 0: advantages 1, -1, baselines 0, 1. b: 1, 1: 0, 0, baselines 1, 1. c: one score. d: none
    rewards = np.array([1.0, 0, 1, 1, 0.5, NAN, NAN])
    advantages = np.array([1.0, -1, 0, 0, 0, NAN, NAN])
    got = leave_one_out_metrics(rewards, advantages, list("aabbccd"), np.array([3, 0, 2, 2, 2, 2, 2]))
    assert got == pytest.approx(
        {
            "rloo/baseline_mean": (0 + 1 + 1 + 1 + 0.5) / 5,
            "rloo/adv_abs_mean": 2 / 5,
            "rloo/no_signal_frac": 3 / 5,
            "rloo/zero_adv_group_frac": 2 / 3,  # b and c, of the three with a score
            "rloo/dropped_group_frac": 2 / 4,  # c and d
            "rloo/empty_response_frac": 1 / 7,
        }
    )
    assert leave_one_out_metrics(np.array([NAN]), np.array([NAN]), ["a"], np.array([1])) == {
        "rloo/dropped_group_frac": 1.0, "rloo/empty_response_frac": 0.0,
    }  # fmt: skip
