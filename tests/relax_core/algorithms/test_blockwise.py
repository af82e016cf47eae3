"""Columns in blocks: they cover a column in order, and masked tokens are cleared whatever they hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.algorithms import blockwise
from relax_core.algorithms.advantages import Advantages, subtract_reverse_kl
from relax_core.algorithms.blockwise import blocks, clear_masked, spans


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 80))
def test_blocks_are_consecutive_and_bounded(lengths, size):
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    found = list(blocks(offsets, size))
    assert [i for samples, _ in found for i in range(samples.start, samples.stop)] == list(range(len(lengths)))
    for samples, tokens in found:
        assert (tokens.start, tokens.stop) == (offsets[samples.start], offsets[samples.stop])
        assert tokens.stop - tokens.start <= size or samples.stop - samples.start == 1


@given(st.integers(0, 50), st.integers(1, 20))
def test_spans_are_consecutive_and_bounded(tokens, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "BLOCK", size)
        found = list(spans(tokens))
    assert [t for span in found for t in range(span.start, span.stop)] == list(range(tokens))
    assert all(span.stop - span.start <= size for span in found)


def test_masked_tokens_become_zero_whatever_they_hold():
    values = np.array([1.5, np.nan, np.inf, -np.inf, -2.5, -0.0], dtype=np.float32)
    clear_masked(values, np.array([True, False, False, False, True, False]))
    np.testing.assert_array_equal(values, [1.5, 0, 0, 0, -2.5, 0])
    assert not np.signbit(values[5])


def test_the_reverse_kl_names_the_token_of_the_batch_and_not_of_its_block(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK", 2)
    zeros, ones = np.zeros(5, np.float32), np.ones(5, np.uint8)
    teacher = np.array([-1, -1, -1, np.nan, -1], dtype=np.float32)
    with pytest.raises(UserError, match=r"token 3 of the batch has log-probability 0\.0 by the student and nan"):
        subtract_reverse_kl(Advantages(zeros, zeros), zeros, teacher, ones, 1.0)
    # masked there: its advantage stays, those of the others are 0 - (0 - -1) = -1
    masked = np.array([1, 1, 1, 0, 1], dtype=np.uint8)
    got = subtract_reverse_kl(Advantages(zeros, zeros), zeros, teacher, masked, 1.0)
    np.testing.assert_array_equal(got.advantages, [-1, -1, -1, 0, -1])
