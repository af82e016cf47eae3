"""Discounted sums along ragged rows against the loop."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms import scan
from relax_core.algorithms.scan import discounted_sums


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
    st.integers(0, 1000),
)
def test_equals_the_loop_for_any_lengths(lengths, factor, seed):
    offsets = offsets_of(lengths)
    values = np.random.default_rng(seed).standard_normal(offsets[-1])
    want = loop_reference(values, offsets, factor)
    np.testing.assert_allclose(discounted_sums(values, offsets, factor), want, rtol=1e-10, atol=1e-10)


def test_a_long_row_is_exact_where_the_sum_is():
    # 100,000 ones with factor 1: 100000, 99999, ... 1, over three levels of chunks
    got = discounted_sums(np.ones(100_000), np.array([0, 100_000]), 1.0)
    np.testing.assert_array_equal(got, np.arange(100_000, 0, -1))


def test_no_row_sees_another():
    values = np.array([1e300, 1e300, 1.0, 1.0, np.nan, 2.0])
    got = discounted_sums(values, np.array([0, 2, 4, 5, 6]), 0.5)
    np.testing.assert_array_equal(got[2:4], [1.5, 1.0])
    assert got[5] == 2.0


def test_products_in_parts_equal_one_of_all(monkeypatch):
    # 100,000 tokens are 6,250 rows of a chunk: thirteen products; with a bound above it is one
    values = np.random.default_rng(0).standard_normal(100_000)
    offsets = offsets_of([31, 0, 99_969])
    several = discounted_sums(values.copy(), offsets, 0.97)
    monkeypatch.setattr(scan, "_PRODUCT_VALUES", 1 << 30)
    np.testing.assert_allclose(discounted_sums(values, offsets, 0.97), several, rtol=1e-12, atol=1e-12)


def test_the_same_bits_for_any_number_of_blas_threads():
    code = (
        "import numpy as np\n"
        "from relax_core.algorithms.scan import discounted_sums\n"
        "values = np.random.default_rng(0).standard_normal(300_000)\n"
        "print(hash(discounted_sums(values, np.array([0, 31, 100_000, 300_000]), 0.97).tobytes()))\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": "0"},
            cwd=Path(scan.__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "4")
    }
    assert len(printed) == 1
