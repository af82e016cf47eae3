"""Reward normalisation: cases derived by hand, and a plain-loop reference."""

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.algorithms.rewards import NORMALIZERS, normalize_rewards

NAN = float("nan")


def loop_reference(rewards, groups, kind, std):
    """The definition, sample by sample, with the statistics module."""
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == group and r == r]
        if reward != reward or kind == "none":
            result.append(reward)
        elif len(set(members)) == 1:
            result.append(0.0)
        else:
            centred = reward - statistics.fmean(members)
            if kind == "group_leave_one_out":  # the definition: minus the mean of the others
                others = list(members)
                others.remove(reward)
                centred = reward - statistics.fmean(others)
            result.append(centred / (statistics.stdev(members) + 1e-6) if kind == "group_mean_std" and std else centred)
    return np.array(result)


def test_interleaved_groups_of_different_sizes():
    # A = [1, 1, 0]: mean 2/3, s = sqrt((1/9 + 1/9 + 4/9) / 2) = 0.57735: (1/3)/s = 0.577, (-2/3)/s = -1.155
    # B = [0, 1]: mean 1/2, s = sqrt(1/4 + 1/4) = 0.70711: -+0.707
    got = normalize_rewards(np.array([1.0, 0, 1, 1, 0]), ["A", "B", "A", "B", "A"], kind="group_mean_std")
    np.testing.assert_allclose(got, [0.57735, -0.70711, 0.57735, 0.70711, -1.15470], atol=5e-6)


def test_standard_deviation_is_unbiased():
    # [1, 0, 0, 0]: mean 1/4, s = sqrt((9 + 1 + 1 + 1)/16 / 3) = 1/2: 1.5, -0.5
    got = normalize_rewards(np.array([1.0, 0, 0, 0]), ["g"] * 4, kind="group_mean_std")
    np.testing.assert_allclose(got, [1.5, -0.5, -0.5, -0.5], atol=1e-5)


def test_leave_one_out():
    # [1, 0, 0, 0]: 1 - 0 = 1; 0 - 1/3. Interleaved with B = [0, 1], whose others are one each: -1, 1
    got = normalize_rewards(np.array([1.0, 0, 0, 1, 0, 0]), list("ABABAA"), kind="group_leave_one_out")
    np.testing.assert_allclose(got, [1, -1, -1 / 3, 1, -1 / 3, -1 / 3], rtol=1e-15)


def test_leave_one_out_of_a_missing_score_and_of_a_single_survivor():
    # [1, NaN, 0, 0.5]: 1 - 0.25, 0 - 0.75, 0.5 - 0.5; and [0.4, NaN, NaN] has no other score
    got = normalize_rewards(np.array([1.0, NAN, 0, 0.5]), ["g"] * 4, kind="group_leave_one_out")
    np.testing.assert_allclose(got, [0.75, NAN, -0.75, 0.0], atol=1e-15)
    got = normalize_rewards(np.array([0.4, NAN, NAN]), ["g"] * 3, kind="group_leave_one_out")
    np.testing.assert_array_equal(got, [0.0, NAN, NAN])


def test_epsilon_is_added_to_the_deviation():
    # [0, 2e-6]: mean 1e-6, s = sqrt(2) 1e-6: 1e-6 / (1.41421e-6 + 1e-6) = 0.41421
    got = normalize_rewards(np.array([0.0, 2e-6]), ["g", "g"], kind="group_mean_std")
    np.testing.assert_allclose(got, [-0.41421356, 0.41421356], rtol=1e-6)


def test_missing_scores_stay_missing_and_a_single_survivor_gets_zero():
    got = normalize_rewards(np.array([0.4, NAN, NAN]), ["g"] * 3, kind="group_mean_std", expected_group_size=3)
    np.testing.assert_array_equal(got, [0.0, NAN, NAN])
    assert normalize_rewards(np.array([0.4]), ["g"], kind="group_mean_std")[0] == 0.0
    assert np.isnan(normalize_rewards(np.array([NAN]), ["g"], kind="group_mean_std")).all()


def test_missing_scores_take_no_part_in_the_statistics():
    # [1, 0] without the NaN: mean 1/2
    got = normalize_rewards(np.array([1.0, NAN, 0.0]), ["g"] * 3, kind="group_mean")
    np.testing.assert_array_equal(got, [0.5, NAN, -0.5])


@pytest.mark.parametrize("kind", ["group_mean_std", "group_mean", "group_leave_one_out"])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e30, -7.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_scores_give_exact_zeros(kind, value, dtype):
    rewards = np.full(7, value, dtype=dtype)  # the mean of seven 0.1's is not 0.1
    assert (normalize_rewards(rewards, ["g"] * 7, kind=kind) == 0).all()


def test_without_std_and_without_normalisation():
    rewards = np.array([1.0, 0, 0, 0])
    np.testing.assert_array_equal(
        normalize_rewards(rewards, ["g"] * 4, kind="group_mean_std", std=False), [0.75, -0.25, -0.25, -0.25]
    )
    np.testing.assert_array_equal(normalize_rewards(rewards, ["g"] * 4, kind="none"), rewards)


def test_no_samples():
    assert normalize_rewards(np.empty(0), [], kind="group_mean_std", expected_group_size=4).shape == (0,)


def test_group_of_another_size_is_refused_by_name():
    with pytest.raises(UserError, match="Group b has 1 samples, --n-samples-per-prompt is 2"):
        normalize_rewards(np.zeros(3), ["a", "b", "a"], kind="group_mean", expected_group_size=2)


def test_infinite_reward_and_unknown_kind_are_refused():
    with pytest.raises(UserError, match="group b is inf"):
        normalize_rewards(np.array([0.0, np.inf]), ["a", "b"], kind="group_mean")
    with pytest.raises(UserError, match="'batch'"):
        normalize_rewards(np.zeros(1), ["a"], kind="batch")


SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 0.1, -0.5, 2.75, NAN]) | st.floats(-100, 100), st.sampled_from("abcd")),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(SCORES, st.sampled_from(NORMALIZERS), st.booleans())
def test_equals_the_plain_loop(scored, kind, std):
    rewards, groups = np.array([r for r, _ in scored]), [g for _, g in scored]
    got = normalize_rewards(rewards, groups, kind=kind, std=std)
    # near-equal scores amplify rounding by 1 / (s + 1e-6) <= 1e6
    np.testing.assert_allclose(got, loop_reference(rewards, groups, kind, std), rtol=1e-7, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(SCORES, st.sampled_from(NORMALIZERS), st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(scored, kind, random):
    order = list(range(len(scored)))
    random.shuffle(order)
    rewards, groups = np.array([r for r, _ in scored]), np.array([g for _, g in scored], dtype=str)
    got = normalize_rewards(rewards, groups, kind=kind)
    shuffled = normalize_rewards(rewards[order], groups[order], kind=kind)
    np.testing.assert_allclose(shuffled, got[order], rtol=1e-7, atol=1e-7)
