"""Discounted sums along ragged rows against the loop."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms import scan
from relax_core.algorithms.scan import blocks, discounted_sums


def offsets_of(lengths):
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def loop_reference(values, offsets, factor):
    result = np.zeros(len(values))
    for start, stop in pairwise(offsets):
        following = 0.0
        for t in range(stop - 1, start - 1, -1):
            following = float(values[t]) + factor * following
            result[t] = following
    return result


def test_by_hand():
    # [1, 2, 3] and [4], factor 1/2: 3, 2 + 1.5, 1 + 1.75; 4
    got = discounted_sums(np.array([1.0, 2, 3, 4]), np.array([0, 3, 3, 4]), 0.5)
    np.testing.assert_array_equal(got, [2.75, 3.5, 3, 4])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 3 * scan.CHUNK) | st.integers(250, 800), max_size=8),
    st.sampled_from([0.0, 0.3, 0.95, 1.0]) | st.floats(0, 1),
    st.integers(1, 2000),
    st.integers(0, 1000),
)
def test_equals_the_loop_for_any_lengths_and_blocks(lengths, factor, block, seed):
    offsets = offsets_of(lengths)
    values = np.random.default_rng(seed).standard_normal(offsets[-1]).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK", block)
        got = discounted_sums(values, offsets, factor)
    np.testing.assert_allclose(got, loop_reference(values, offsets, factor), rtol=1e-10, atol=1e-10)


def test_a_long_row_is_exact_where_the_sum_is():
    # 100,000 ones with factor 1: 100000, 99999, ... 1, over three levels of chunks
    got = discounted_sums(np.ones(100_000), np.array([0, 100_000]), 1.0)
    np.testing.assert_array_equal(got, np.arange(100_000, 0, -1))


def test_no_row_sees_another():
    values = np.array([1e300, 1e300, 1.0, 1.0, np.nan, 2.0])
    got = discounted_sums(values, np.array([0, 2, 4, 5, 6]), 0.5)
    np.testing.assert_array_equal(got[2:4], [1.5, 1.0])
    assert got[5] == 2.0


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 80))
def test_blocks_are_consecutive_and_bounded(lengths, size):
    offsets = offsets_of(lengths)
    found = list(blocks(offsets, size))
    assert [i for samples, _ in found for i in range(samples.start, samples.stop)] == list(range(len(lengths)))
    for samples, tokens in found:
        assert (tokens.start, tokens.stop) == (offsets[samples.start], offsets[samples.stop])
        assert tokens.stop - tokens.start <= size or samples.stop - samples.start == 1
