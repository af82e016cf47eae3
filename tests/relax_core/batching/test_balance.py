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
from relax_core.batching.pack import pack
from relax_core.batching.swaps import narrow


def sums_of(lengths, parts):
    return [sum(lengths[i] for i in part) for part in parts]


def spread_of(lengths, parts):
    sums = sums_of(lengths, parts)
    return max(sums) - min(sums)


def karmarkar_karp_spread(lengths, parts, equal=False):
    """Sums only, from the 1982 paper's rule; of two partitions of equal spread the older one comes first.

    With ``equal`` the partial partitions start with an item for each part, in order of size.
    """
    ordered = sorted(lengths, reverse=True)
    step = parts if equal else 1
    heap = []
    for number, start in enumerate(range(0, len(ordered), step)):
        items = tuple(ordered[start : start + step])
        sums = items + (0,) * (parts - len(items))
        heap.append((sums[-1] - sums[0], number, sums))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        (_, _, a), (_, _, b) = heapq.heappop(heap), heapq.heappop(heap)
        merged = tuple(sorted((x + y for x, y in zip(a, reversed(b), strict=True)), reverse=True))
        heapq.heappush(heap, (merged[-1] - merged[0], number, merged))
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
        ([30, 30, 20, 20, 20], 2, False, [60, 60]),  # the same with a common factor
        ([5, 1, 1], 2, True, [5, 2]),  # counts of 1 and 2: the long one is alone, not with a short one (6, 1)
        # 20 cannot be shared; the rest, 12 over 2 parts, is even
        ([20, 5, 4, 2, 1], 3, False, [20, 6, 6]),
    ],
)
def test_perfect_partitions_are_found(lengths, parts, equal, want):
    assert sorted(sums_of(lengths, balance(lengths, parts, equal=equal))) == sorted(want)


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
@given(st.lists(st.integers(0, 1000), min_size=8, max_size=40), st.integers(2, 8), st.booleans())
def test_never_worse_than_differencing(lengths, parts, equal):
    assert spread_of(lengths, balance(lengths, parts, equal=equal)) <= karmarkar_karp_spread(lengths, parts, equal)


def test_not_worse_than_differencing_where_few_long_items_decide():
    # 3 items a part: the fullest and the emptiest part alone cannot be brought together
    lengths = np.random.default_rng(2).lognormal(7, 1, 192).astype(int).tolist()
    for equal in (True, False):
        assert spread_of(lengths, balance(lengths, 64, equal=equal)) <= karmarkar_karp_spread(lengths, 64, equal)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([3, -1], "length 1 is -1"), ([1.5, 2.0], "whole numbers, not float64"), ([[1, 2]], r"shape \(1, 2\)")],
)
def test_lengths_that_are_none_are_refused(lengths, message):
    for function in (balance, pack):
        with pytest.raises(ValueError, match=message):
            function(lengths, 1)


def test_pairs_are_exchanged_where_single_items_do_not_help():
    # 18 and 16: 1 has to move. No item of 4, 4, 10 is 1 more than one of 7, 1, 8 or than none, but 10 is than 1 + 8
    sizes, parts = np.array([4, 4, 10, 7, 1, 8]), [np.array([0, 1, 2]), np.array([3, 4, 5])]
    narrow(sizes, parts, equal=False)
    assert sums_of(sizes, parts) == [17, 17]


@pytest.mark.parametrize("equal", [True, False])
def test_exchanges_go_through_a_third_part(equal):
    # 6 + 6 and 6 + 2 differ by 4, and so does all they could exchange (0, 4 or more); a 6 for a 5 of 5 + 5 helps
    sizes, parts = np.array([6, 6, 6, 2, 5, 5]), [np.array([0, 1]), np.array([2, 3]), np.array([4, 5])]
    narrow(sizes, parts, equal)
    assert sums_of(sizes, parts) == [11, 8, 11]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=6), st.booleans())
def test_exchanges_lose_nothing_and_never_widen_the_spread(rows, equal):
    sizes = np.array([size for row in rows for size in row], dtype=np.int64)
    parts = np.split(np.arange(len(sizes)), np.cumsum([len(row) for row in rows])[:-1])
    before = spread_of(sizes, parts)
    narrow(sizes, parts, equal)
    assert sorted(i for part in parts for i in part) == list(range(len(sizes)))
    assert spread_of(sizes, parts) <= before
    assert min(len(part) for part in parts) >= 1
    if equal:
        assert sorted(len(part) for part in parts) == sorted(len(row) for row in rows)


def test_large_inputs_are_as_even_as_small_ones():
    lengths = np.random.default_rng(1).lognormal(7, 1, 4096).astype(int).tolist()
    assert spread_of(lengths, balance(lengths, 16, equal=False)) <= 1
    assert spread_of(lengths, balance(lengths, 16, equal=True)) <= 1


def test_another_process_gives_the_same_parts():
    code = (
        "from relax_core.batching.balance import balance; from relax_core.batching.pack import pack;"
        "from relax_core.batching.plan import plan_updates;"
        "lengths = [(i * 7919) % 97 + 1 for i in range(200)]; groups = [f'g{i % 40}' for i in range(200)];"
        "print(pack(lengths, 300), balance(lengths, 8), balance(lengths, 60, equal=False));"
        "print([plan_updates(lengths, dp_size=4, num_updates=2, max_tokens=300, balance=True, keep_together=groups,"
        " equal_counts=equal, micro_batch_multiple=3, min_micro_batches=5, align=align)"
        " for equal in (True, False) for align in ('split', 'dummy')])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
