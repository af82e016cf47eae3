"""Balancing: hand cases, comparison with plain Karmarkar-Karp, invariants."""

import heapq
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.batching.balance import balance


def sums_of(lengths, parts):
    return [sum(lengths[i] for i in part) for part in parts]


def spread_of(lengths, parts):
    sums = sums_of(lengths, parts)
    return max(sums) - min(sums)


def karmarkar_karp_spread(lengths, parts):
    """Sums only, from the 1982 paper's rule."""
    heap = [(-size, n, (size,) + (0,) * (parts - 1)) for n, size in enumerate(lengths)]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        (_, _, a), (_, _, b) = heapq.heappop(heap), heapq.heappop(heap)
        merged = sorted((x + y for x, y in zip(a, reversed(b), strict=True)), reverse=True)
        heapq.heappush(heap, (merged[-1] - merged[0], number, tuple(merged)))
        number += 1
    return heap[0][2][0] - heap[0][2][-1]


@pytest.mark.parametrize("equal", [True, False])
def test_counts_and_spread_of_206_items_over_4(equal):
    lengths = np.random.default_rng(0).lognormal(6, 1, 206).astype(int).tolist()
    parts = balance(lengths, 4, equal=equal)
    assert sorted(i for part in parts for i in part) == list(range(206))
    assert spread_of(lengths, parts) <= max(lengths)
    if equal:
        assert sorted(len(part) for part in parts) == [51, 51, 52, 52]


@pytest.mark.parametrize(
    ("lengths", "parts", "equal", "want"),
    [
        (list(range(1, 9)), 2, True, [18, 18]),
        (list(range(1, 17)), 4, True, [34] * 4),
        ([8, 7, 6, 5, 4], 2, False, [15, 15]),  # 8 + 7 and 6 + 5 + 4; differencing alone stops at 16, 14
        ([3, 3, 2, 2, 2], 2, False, [6, 6]),  # differencing alone stops at 7, 5
    ],
)
def test_perfect_partitions_are_found(lengths, parts, equal, want):
    assert sums_of(lengths, balance(lengths, parts, equal=equal)) == want


def test_fewer_items_than_parts_is_refused():
    with pytest.raises(UserError, match="3 samples cannot be shared between 4"):
        balance([1, 2, 3], 4)


def test_no_part_is_left_empty_by_zero_lengths():
    for equal in (True, False):
        assert all(balance([5, 0, 0], 3, equal=equal))
        assert all(balance([0] * 7, 3, equal=equal))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(1, 8), st.booleans())
def test_every_item_once_and_spread_bounded(lengths, parts, equal):
    parts = min(parts, len(lengths))
    result = balance(lengths, parts, equal=equal)
    assert len(result) == parts
    assert all(result)
    assert sorted(i for part in result for i in part) == list(range(len(lengths)))
    assert spread_of(lengths, result) <= max(lengths)
    if equal:
        counts = [len(part) for part in result]
        assert max(counts) - min(counts) <= 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=8, max_size=40), st.integers(2, 8))
def test_never_worse_than_differencing(lengths, parts):
    assert spread_of(lengths, balance(lengths, parts, equal=False)) <= karmarkar_karp_spread(lengths, parts)


def test_large_inputs_are_as_even_as_small_ones():
    lengths = np.random.default_rng(1).lognormal(7, 1, 4096).astype(int).tolist()
    assert spread_of(lengths, balance(lengths, 16, equal=False)) <= 1
    assert spread_of(lengths, balance(lengths, 16, equal=True)) <= 1


def test_another_process_gives_the_same_parts():
    code = (
        "from relax_core.batching.balance import balance; from relax_core.batching.plan import plan_updates;"
        "lengths = [(i * 7919) % 97 + 1 for i in range(200)];"
        "print(balance(lengths, 8), plan_updates(lengths, dp_size=4, num_updates=2, max_tokens=300, balance=True))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
