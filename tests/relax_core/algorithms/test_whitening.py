"""Standardised advantages: both forms by hand and by plain loops, exact zeros, and any division over ranks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms import blockwise
from relax_core.algorithms.whitening import whiten

NAN = float("nan")


def loop_reference(values, mask, form):
    kept = [float(v) for v, m in zip(values, mask, strict=True) if m]
    if not kept:
        return [0.0] * len(values)
    mean = sum(kept) / len(kept)
    squares = sum((v - mean) ** 2 for v in kept)
    if form == "whiten":
        scale = math.sqrt(squares / max(len(kept) - 1, 1) + 1e-8)
    else:
        scale = math.sqrt(max(squares / len(kept), 1e-8))
    return [(float(v) - mean) / scale if m else 0.0 for v, m in zip(values, mask, strict=True)]


def test_both_forms_by_hand():
    # 1, 3 and a masked NaN: mean 2, squares 2: unbiased variance 2, of the population 1
    values, mask = np.array([1, 3, NAN], dtype=np.float32), np.array([1, 1, 0], dtype=np.uint8)
    np.testing.assert_allclose(whiten(values, mask, "whiten"), [-(0.5**0.5), 0.5**0.5, 0], rtol=1e-6)
    np.testing.assert_allclose(whiten(values, mask, "token_global"), [-1, 1, 0], rtol=1e-6)


def test_a_tiny_spread_is_divided_by_its_floor():
    # +-1e-5: population variance 1e-10, below the floor: 1e-5 / 1e-4; unbiased 2e-10, added to: 1e-5 / sqrt(1.02e-8)
    values, mask = np.array([1e-5, -1e-5], dtype=np.float32), np.ones(2, np.uint8)
    np.testing.assert_allclose(whiten(values, mask, "token_global"), [0.1, -0.1], rtol=1e-6)
    np.testing.assert_allclose(whiten(values, mask, "whiten")[0], 1e-5 / math.sqrt(1.02e-8), rtol=1e-6)


@pytest.mark.parametrize("form", ["whiten", "token_global"])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_equal_values_and_a_single_token_give_exact_zeros(form, count, monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 3)
    assert (whiten(np.full(count, 0.1, np.float32), np.ones(count, np.uint8), form) == 0).all()


@pytest.mark.parametrize("form", ["whiten", "token_global"])
def test_nothing_trained(form):
    assert (whiten(np.full(3, NAN, np.float32), np.zeros(3, np.uint8), form) == 0).all()
    assert whiten(np.empty(0, np.float32), np.empty(0, np.uint8), form).shape == (0,)


VALUES = st.lists(st.tuples(st.floats(-50, 50, width=32), st.booleans(), st.integers(0, 2)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(VALUES, st.sampled_from(["whiten", "token_global"]), st.sampled_from([1, 3, 1 << 16]))
def test_equals_the_plain_loop_on_any_number_of_ranks_and_in_any_blocks(tokens, form, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "BLOCK", block)
        equals_the_plain_loop(tokens, form)


def equals_the_plain_loop(tokens, form):
    values = np.array([v if m else NAN for v, m, _ in tokens], dtype=np.float32)
    mask = np.array([m for _, m, _ in tokens], dtype=np.uint8)
    rank_of = np.array([rank for *_, rank in tokens], dtype=np.int64)
    want = loop_reference(values, mask, form)
    np.testing.assert_allclose(whiten(values, mask, form), want, rtol=1e-5, atol=1e-6)
    # The sums of three ranks: first all of them say what they have, then each gets the total.
    for rank in range(3):
        calls = []

        def add(own, rank=rank, calls=calls):
            calls.append(own)
            others = [other for other in range(3) if other != rank]
            return own + sum(sums_of(values, mask, rank_of, other, len(calls)) for other in others)

        here = rank_of == rank
        got = whiten(values[here], mask[here], form, add)
        np.testing.assert_allclose(got, np.array(want, dtype=np.float64)[here], rtol=1e-5, atol=1e-6)
        assert len(calls) == 2


def sums_of(values, mask, rank_of, rank, call):
    """What a rank adds in its first and second call."""
    kept = values[(mask != 0) & (rank_of == rank)].astype(np.float64)
    if call == 1:
        return np.array([kept.size, kept.sum()])
    everything = values[mask != 0].astype(np.float64)
    return np.array([np.square(kept - everything.sum() / max(everything.size, 1)).sum()])
