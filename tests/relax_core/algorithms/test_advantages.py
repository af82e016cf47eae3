"""Advantages and returns: cases by hand, plain loops in Python floats, masks, and the order of the stage."""

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.algorithms import blockwise
from relax_core.algorithms.advantages import (
    AdvantageInputs,
    AdvantageOptions,
    compute_advantages,
    discounted_returns,
    generalized_advantages,
    spread_over_trained_tokens,
    subtract_reverse_kl,
)
from relax_core.algorithms.registry import get_estimator

NAN = float("nan")


def inputs_of(rewards, masks, **more):
    """Samples given as lists of masks, other columns as lists of lists."""
    lengths = [len(mask) for mask in masks]
    flat = {name: np.array(list(chain(*rows)), dtype=np.float32) for name, rows in more.items() if name != "options"}
    options = AdvantageOptions(**more.get("options", {}))
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    mask = np.array(list(chain(*masks)), dtype=np.uint8)
    return AdvantageInputs(np.array(rewards, dtype=float), offsets, mask, options, **flat)


# -- GAE ---------------------------------------------------------------------------------------------------------------


def test_gae_stops_at_the_last_trained_token():
    # mask 1 1 0, V = 0 0 100, reward 1 on the second, gamma 1, lambda 0.95: delta = 0 + 0 - 0, 1 + 0 - 0
    # A_1 = 1, A_0 = 0.95; the masked value 100 is in neither
    got = generalized_advantages(inputs_of([1], [[1, 1, 0]], values=[[0, 0, 100]], options={"lambd": 0.95}))
    np.testing.assert_allclose(got.advantages, [0.95, 1.0, 0], rtol=1e-6)
    np.testing.assert_allclose(got.returns, [0.95, 1.0, 0], rtol=1e-6)


def test_gae_steps_over_masked_tokens_in_the_middle():
    # trained: V = .5 .4 .6, reward 1 at the end: delta = -.1, .2, .4; A_4 = .4, A_1 = .2 + .95 .4 = .58,
    # A_0 = -.1 + .95 .58 = .451; returns A + V
    got = generalized_advantages(
        inputs_of([1], [[1, 1, 0, 0, 1]], values=[[0.5, 0.4, 9, 9, 0.6]], options={"lambd": 0.95})
    )
    np.testing.assert_allclose(got.advantages, [0.451, 0.58, 0, 0, 0.4], rtol=1e-6)
    np.testing.assert_allclose(got.returns, [0.951, 0.98, 0, 0, 1.0], rtol=1e-6)


def test_gae_needs_values():
    with pytest.raises(ValueError, match="critic"):
        generalized_advantages(inputs_of([1], [[1]]))


# -- discounted returns ------------------------------------------------------------------------------------------------


def test_returns_cross_masked_tokens_without_a_discount():
    # rewards [0, 0, 1], mask [1, 0, 1], gamma 0.5: the first trained token is one step before the last: 0.5
    got = discounted_returns(inputs_of([1], [[1, 0, 1]], options={"gamma": 0.5}))
    np.testing.assert_array_equal(got.advantages, [0.5, 0, 1.0])
    got = discounted_returns(inputs_of([1], [[1, 1, 0, 0, 1, 1]]))
    np.testing.assert_array_equal(got.advantages, [1, 1, 0, 0, 1, 1])


def test_kl_of_masked_tokens_is_in_no_return():
    # kl 1 each, coefficient 0.1, mask [1, 0, 1], reward 1: last 1 - 0.1 = 0.9, first 0.9 - 0.1 = 0.8
    got = discounted_returns(
        inputs_of(
            [1], [[1, 0, 1]], old_log_probs=[[-1, -1, -1]], ref_log_probs=[[-2, -2, -2]], options={"kl_coef": 0.1}
        )
    )
    np.testing.assert_allclose(got.returns, [0.8, 0, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(got.kl, [1, 0, 1])


def test_the_reward_is_on_the_last_trained_token_and_not_on_the_last_position():
    got = discounted_returns(inputs_of([2], [[1, 1, 0, 0]], options={"gamma": 0.5}))
    np.testing.assert_array_equal(got.advantages, [1, 2, 0, 0])


def test_kl_needs_both_log_probs():
    with pytest.raises(ValueError, match="log-prob"):
        discounted_returns(inputs_of([1], [[1]], old_log_probs=[[-1]], options={"kl_coef": 0.1}))


# -- all of them -------------------------------------------------------------------------------------------------------


def loop_reference(name, rewards, masks, values, olds, refs, options):
    """The estimators as their papers state them, over a list of the trained tokens, in Python floats."""
    all_advantages, all_returns = [], []
    for i, mask in enumerate(masks):
        trained = [t for t, m in enumerate(mask) if m] if rewards[i] == rewards[i] else []
        row_a, row_r = [0.0] * len(mask), [0.0] * len(mask)
        if name in ("grpo", "rloo"):
            row_a = row_r = [0.0 if rewards[i] != rewards[i] else rewards[i]] * len(mask)
        elif name == "reinforce_plus_plus_baseline":
            for t in trained:
                row_a[t] = row_r[t] = rewards[i]
        else:
            following_return = following_advantage = following_value = 0.0
            for t in reversed(trained):
                gap = olds[i][t] - refs[i][t]
                kl = gap if options["kl_loss_type"] == "k1" else math.exp(-gap) - 1 + gap
                rho = -options["kl_coef"] * kl + (rewards[i] if t == trained[-1] else 0.0)
                if name == "reinforce_plus_plus":
                    following_return = rho + options["gamma"] * following_return
                    row_a[t] = row_r[t] = following_return
                else:
                    value = values[i][t]
                    delta = rho + options["gamma"] * following_value - value
                    following_advantage = delta + options["gamma"] * options["lambd"] * following_advantage
                    following_value = value
                    row_a[t], row_r[t] = following_advantage, following_advantage + value
        all_advantages += row_a
        all_returns += row_r
    return np.array(all_advantages), np.array(all_returns)


TOKEN = st.tuples(st.booleans(), *[st.floats(-4, 0, width=32)] * 2, st.floats(-3, 3, width=32))
SAMPLES = st.lists(
    st.tuples(st.floats(-2, 2, width=32) | st.just(NAN), st.lists(TOKEN, max_size=20)), min_size=1, max_size=8
)
NAMES = ["grpo", "rloo", "reinforce_plus_plus_baseline", "reinforce_plus_plus", "ppo"]


@settings(max_examples=200, deadline=None)
@given(
    samples=SAMPLES,
    name=st.sampled_from(NAMES),
    gamma=st.sampled_from([1.0, 0.9, 0.0]),
    lambd=st.sampled_from([1.0, 0.95, 0.0]),
    kl=st.sampled_from([(0.0, "k1"), (0.2, "k1"), (0.2, "k3")]),
    block=st.sampled_from([1, 7, 1 << 20]),
)
def test_equals_the_plain_loop_and_nan_in_masked_places_stays_there(samples, name, gamma, lambd, kl, block):
    rewards = [reward for reward, _ in samples]
    masks = [[int(token[0]) for token in tokens] for _, tokens in samples]
    olds, refs, values = ([[token[k] for token in tokens] for _, tokens in samples] for k in (1, 2, 3))
    options = {"gamma": gamma, "lambd": lambd, "kl_coef": kl[0], "kl_loss_type": kl[1]}
    want = loop_reference(name, rewards, masks, values, olds, refs, options)
    for rows in (olds, refs, values):  # what masked places hold must not matter
        for row, mask in zip(rows, masks, strict=True):
            row[:] = [x if m else NAN for x, m in zip(row, mask, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "BLOCK", block)
        got = get_estimator(name).load_advantages()(
            inputs_of(rewards, masks, values=values, old_log_probs=olds, ref_log_probs=refs, options=options)
        )
    assert got.advantages.dtype == got.returns.dtype == np.float32
    np.testing.assert_allclose(got.advantages, want[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(got.returns, want[1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_fully_masked_sample_an_empty_one_and_one_without_a_score(name):
    one = inputs_of([1.0, 1.0, NAN, 2.0], [[0, 0], [], [1, 1], [1]], values=[[NAN, NAN], [], [1, 1], [1]])
    got = get_estimator(name).load_advantages()(one)
    trained = one.loss_mask != 0
    assert np.isfinite(got.advantages).all()
    assert (got.advantages[2:4] == 0).all()
    assert (got.returns[2:4] == 0).all()
    if name not in ("grpo", "rloo"):  # of these every token has its sample's number, and the loss selects
        assert (got.advantages[~trained] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_samples(name):
    got = get_estimator(name).load_advantages()(inputs_of([], [], values=[]))
    assert got.advantages.shape == got.returns.shape == (0,)


def test_values_in_read_only_memory_are_fine():
    inputs = inputs_of([1], [[1, 1]], values=[[0, 0]], old_log_probs=[[-1, -1]], ref_log_probs=[[-1, -2]],
                       options={"kl_coef": 0.5})  # fmt: skip
    for column in (inputs.rewards, inputs.loss_mask, inputs.values, inputs.old_log_probs, inputs.ref_log_probs):
        column.flags.writeable = False
    np.testing.assert_allclose(generalized_advantages(inputs).advantages, [0.5, 0.5])


def test_spread_over_trained_tokens_masks():
    got = spread_over_trained_tokens(inputs_of([0.5, -1], [[1, 0], [0, 1]]))
    np.testing.assert_array_equal(got.advantages, [0.5, 0, 0, -1])


# -- distillation and the stage ----------------------------------------------------------------------------------------


def test_distillation_lowers_the_advantage_by_the_reverse_kl_of_trained_tokens():
    # student -1, -2; teacher -2, -1.5: gaps 1, -0.5; A = 0.3 - 2 gap; the masked third keeps its own
    inputs = inputs_of([0.3], [[1, 1, 0]], old_log_probs=[[-1, -2, NAN]])
    result = get_estimator("grpo").load_advantages()(inputs)
    teacher = np.array([-2, -1.5, NAN], dtype=np.float32)
    got = subtract_reverse_kl(result, inputs.old_log_probs, teacher, inputs.loss_mask, 2.0)
    np.testing.assert_allclose(got.advantages, [-1.7, 1.3, 0.3], rtol=1e-6)
    np.testing.assert_array_equal(got.opd_reverse_kl, [1, -0.5, 0])
    assert got.returns is result.returns


@pytest.mark.parametrize("value", [NAN, -math.inf])
def test_a_teacher_that_lacks_a_trained_token_is_told(value):
    inputs = inputs_of([0.3], [[0, 1]], old_log_probs=[[-1, -2]])
    teacher = np.array([0, value], dtype=np.float32)
    with pytest.raises(UserError, match=r"token 1 .* by the teacher"):
        subtract_reverse_kl(
            get_estimator("grpo").load_advantages()(inputs), inputs.old_log_probs, teacher, inputs.loss_mask, 1
        )


def test_the_stage_distils_before_it_whitens():
    # advantages 1, 1, -1, -1 minus gaps 1, 0, 0, 1 = 0, 1, -1, -2: mean -1/2, squares .25 + 2.25 + .25 + 2.25 = 5
    inputs = inputs_of([1, -1], [[1, 1], [1, 1]], old_log_probs=[[-1, -1], [-1, -1]])
    teacher = np.array([-2, -1, -1, -2], dtype=np.float32)
    spec = get_estimator("grpo")
    got = compute_advantages(spec, inputs, teacher_log_probs=teacher, opd_kl_coef=1.0, normalize=True)
    np.testing.assert_allclose(got.advantages, np.array([0.5, 1.5, -0.5, -1.5]) / math.sqrt(5 / 3), rtol=1e-6)
    np.testing.assert_array_equal(got.returns, [1, 1, -1, -1])  # the estimator's
    got = compute_advantages(replace(spec, whitening="token_global"), inputs, normalize=True)
    np.testing.assert_allclose(got.advantages, [1, 1, -1, -1], rtol=1e-6)  # population variance 1
    with pytest.raises(ValueError, match="student"):
        compute_advantages(spec, inputs_of([1], [[1]]), teacher_log_probs=teacher)


def test_options_are_taken_from_a_namespace():
    options = type("Options", (), {"gamma": 0.9, "lambd": 0.8, "kl_coef": 0.1, "kl_loss_type": "k2", "other": 1})
    assert AdvantageOptions.of(options) == AdvantageOptions(0.9, 0.8, 0.1, "k2")


@settings(max_examples=50, deadline=None)
@given(SAMPLES, st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(samples, name, random):
    def run(order):
        chosen = [samples[i] for i in order]
        rows = [[[token[k] for token in tokens] for _, tokens in chosen] for k in range(4)]
        inputs = inputs_of(
            [reward for reward, _ in chosen], [[int(m) for m in row] for row in rows[0]],
            old_log_probs=rows[1], ref_log_probs=rows[2], values=rows[3], options={"kl_coef": 0.1, "gamma": 0.9},
        )  # fmt: skip
        result = compute_advantages(get_estimator(name), inputs, normalize=True)
        bounds = inputs.offsets
        return {i: result.advantages[bounds[k] : bounds[k + 1]] for k, i in enumerate(order)}

    order = list(range(len(samples)))
    want = run(order)
    random.shuffle(order)
    got = run(order)
    for i in want:
        np.testing.assert_allclose(got[i], want[i], rtol=1e-6, atol=1e-6)
