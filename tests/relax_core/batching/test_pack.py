"""Packing: hand cases, equality with a quadratic first-fit decreasing, invariants."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.batching.pack import pack


def quadratic_first_fit(lengths, budget):
    """The textbook loop; sequences over the budget get a bin of their own first, as in ``pack``."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    bins, rooms = [], []
    for i in order:
        for number, room in enumerate(rooms):
            if lengths[i] <= room:
                bins[number].append(i)
                rooms[number] -= lengths[i]
                break
        else:
            bins.append([i])
            rooms.append(budget - lengths[i])
    return [sorted(contents) for contents in bins]


def test_hand_cases():
    # 8+2, 4+4+1+1: two bins of 10
    assert pack([4, 8, 1, 4, 2, 1], 10) == [[1, 4], [0, 2, 3, 5]]
    # 15 is over the budget and alone; three 3s fill a bin to 9
    assert pack([15] + [3] * 7, 10) == [[0], [1, 2, 3], [4, 5, 6], [7]]
    assert pack([], 10) == []
    assert pack([0, 0], 1) == [[0, 1]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 50))
def test_equals_first_fit_decreasing(lengths, budget):
    bins = pack(lengths, budget)
    assert bins == quadratic_first_fit(lengths, budget)
    assert sorted(i for contents in bins for i in contents) == list(range(len(lengths)))
    for contents in bins:
        assert sum(lengths[i] for i in contents) <= budget or len(contents) == 1


def test_a_budget_below_one_is_refused():
    with pytest.raises(UserError, match="budget of a micro-batch is 0"):
        pack([1], 0)
