"""Sharing of sequences between data-parallel ranks so that their sums are close.

Guarantee: every index is in exactly one part and no part is empty; the same input gives the same parts in every
process. The spread (largest minus smallest sum) is at most the largest length and at most that of largest differencing,
also with equal counts.

Method: longest first to the emptiest part, or largest differencing (N. Karmarkar, R. Karp, "The Differencing Method of
Set Partitioning", 1982), then exchanges (``relax_core/batching/swaps.py``).
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence

import numpy as np

from data.errors import UserError
from relax_core.batching.sizes import checked_sizes
from relax_core.batching.swaps import Ints, narrow, spread

_Subset = tuple[int, int]
"""Sum of a subset, and its number: that of its only item, or N + its place in the list of unions."""


def balance(lengths: Sequence[int] | np.ndarray, parts: int, equal: bool = True) -> list[list[int]]:
    """Partition of all indices into ``parts`` lists with nearly equal sums.

    Args:
        lengths: [N] sizes, not negative.
        parts: number of lists, at least 1.
        equal: also make the numbers of items equal (they differ by at most one if ``parts`` does not divide N).

    Returns:
        ``parts`` non-empty lists of ascending indices.

    Raises:
        UserError: fewer items than parts.
        ValueError: a length is negative or not a whole number.
    """
    sizes = checked_sizes(lengths)
    if parts < 1 or sizes.size < parts:
        raise UserError(
            f"{sizes.size} samples cannot be shared between {parts} data-parallel ranks.",
            "Use fewer ranks or a larger --global-batch-size.",
        )
    sizes //= max(int(np.gcd.reduce(sizes)), 1)  # so that sums that differ by 1 are as close as can be
    order = np.argsort(-sizes, kind="stable")
    best: list[Ints] | None = None
    for method in (_differencing, _rounds) if equal else (_longest_first, _differencing):
        found = method(sizes, order, parts, equal)
        narrow(sizes, found, equal)
        if best is None or spread(sizes, found) < spread(sizes, best):
            best = found
        if spread(sizes, best) <= 1:
            break
    assert best is not None
    return [np.sort(part).tolist() for part in best]


def _longest_first(sizes: Ints, order: Ints, parts: int, equal: bool) -> list[Ints]:
    """Each item, longest first, to the emptiest part; counts are free."""
    # (sum, items, number): among equal sums the part with fewest items, so that lengths of 0 leave no part empty
    heap = [(0, 0, number) for number in range(parts)]
    result: list[list[int]] = [[] for _ in range(parts)]
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        total, count, number = heap[0]
        result[number].append(index)
        heapq.heapreplace(heap, (total + size, count + 1, number))
    return [np.array(part, dtype=np.int64) for part in result]


def _rounds(sizes: Ints, order: Ints, parts: int, equal: bool) -> list[Ints]:
    """Longest first again and again an item for every part, the longest to the emptiest; counts are equal."""
    sums = np.zeros(parts, dtype=np.int64)
    owner = np.empty(sizes.size, dtype=np.int64)
    for start in range(0, sizes.size, parts):
        items = order[start : start + parts]
        emptiest = np.argsort(sums, kind="stable")[: items.size]
        owner[items] = emptiest
        sums[emptiest] += sizes[items]
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=parts))[:-1])


def _differencing(sizes: Ints, order: Ints, parts: int, equal: bool) -> list[Ints]:
    """Merges the two partial partitions of largest spread, largest sums against smallest, until one is left.

    A partial partition is the ascending list of its subsets that hold an item; the subsets without one, of sum 0, are
    left out, which makes the many small ones cheap. Subsets are numbers of a tree of unions until the end.

    The partial partitions start with one item each or, for equal counts, with one for each part, in order of size.
    """
    block = parts if equal else 1
    unions: list[tuple[int, int]] = []
    items: list[_Subset] = list(zip(sizes[order].tolist(), order.tolist(), strict=True))
    heap = []
    for number, start in enumerate(range(0, len(items), block)):
        partition = items[start : start + block][::-1]
        heap.append((_minus_spread(partition, parts), number, partition))
    heapq.heapify(heap)
    for number in range(len(heap), 2 * len(heap) - 1):
        _, _, first = heapq.heappop(heap)
        _, _, second = heap[0]
        merged = _merge(first, second, parts, sizes.size, unions)
        heapq.heapreplace(heap, (_minus_spread(merged, parts), number, merged))
    return [_items(root, unions, sizes.size) for _, root in heap[0][2]]


def _minus_spread(partition: list[_Subset], parts: int) -> int:
    return (partition[0][0] if len(partition) == parts else 0) - partition[-1][0]


def _merge(
    first: list[_Subset], second: list[_Subset], parts: int, items: int, unions: list[tuple[int, int]]
) -> list[_Subset]:
    """Unites the largest subset of one partition with the smallest of the other, and so on; uses up its arguments."""
    if len(first) < len(second):
        first, second = second, first
    overlap = len(first) + len(second) - parts  # subsets of both that meet no empty one: the smallest of each
    if len(second) == 1:
        total, number = second[0]
        if overlap > 0:
            smallest, other = first.pop(0)
            total, number = total + smallest, items + len(unions)
            unions.append((other, second[0][1]))
        insort(first, (total, number))
        return first
    if overlap <= 0:
        merged = first + second
    else:
        merged = first[overlap:] + second[overlap:]
        for (sum_a, a), (sum_b, b) in zip(first[:overlap], second[overlap - 1 :: -1], strict=True):
            merged.append((sum_a + sum_b, items + len(unions)))
            unions.append((a, b))
    merged.sort()
    return merged


def _items(root: int, unions: list[tuple[int, int]], items: int) -> Ints:
    """The items below a subset's number."""
    found: list[int] = []
    stack = [root]
    while stack:
        number = stack.pop()
        if number < items:
            found.append(number)
        else:
            stack.extend(unions[number - items])
    return np.array(found, dtype=np.int64)
