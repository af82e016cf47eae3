"""Sharing of sequences between data-parallel ranks so that their sums are close.

Guarantee: every index is in exactly one part; the same input gives the same parts in every process. The spread (largest
minus smallest sum) is at most the largest length, and no exchange between the fullest and the emptiest part narrows it.

Method: largest differencing (N. Karmarkar, R. Karp, "The Differencing Method of Set Partitioning", 1982) and, with free
counts, longest first to the emptiest part; then exchanges of two items (or moves of one) between extreme parts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from data.errors import UserError

DIFFERENCING_LIMIT = 1 << 14
"""With free counts largest differencing, the slower method, runs up to this many (items x parts)."""


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
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    if parts < 1 or sizes.size < parts:
        raise UserError(
            f"{sizes.size} samples cannot be shared between {parts} data-parallel ranks.",
            "Use fewer ranks or a larger --global-batch-size.",
        )
    candidates: list[list[list[int]]] = []
    order = np.argsort(-sizes, kind="stable")
    if equal:
        # Runs of `parts` items in order of size, one for each part, keep the counts equal through the differencing.
        candidates.append(_differencing(sizes, [order[i : i + parts] for i in range(0, sizes.size, parts)], parts))
    else:
        candidates.append(_longest_first(sizes, order, parts))
        if sizes.size * parts <= DIFFERENCING_LIMIT:
            candidates.append(_differencing(sizes, [order[i : i + 1] for i in range(sizes.size)], parts))
    best: list[list[int]] | None = None
    for candidate in candidates:
        _exchange(sizes, candidate, equal)
        if not all(candidate):
            continue  # differencing can leave a part without items where lengths are 0
        if best is None or _spread(sizes, candidate) < _spread(sizes, best):
            best = candidate
    assert best is not None
    return [sorted(part) for part in best]


def _longest_first(sizes: np.ndarray, order: np.ndarray, parts: int) -> list[list[int]]:
    # (sum, items, number): among equal sums the part with fewest items, so that lengths of 0 leave no part empty
    heap = [(0, 0, number) for number in range(parts)]
    result: list[list[int]] = [[] for _ in range(parts)]
    for index, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        total, count, number = heap[0]
        result[number].append(index)
        heapq.heapreplace(heap, (total + size, count + 1, number))
    return result


def _differencing(sizes: np.ndarray, starts: list[np.ndarray], parts: int) -> list[list[int]]:
    """Merges the two partial partitions of largest spread, largest sums against smallest, until one is left."""
    heap: list[tuple[int, int, list[int], list[list[int]]]] = []
    for number, items in enumerate(starts):
        sums = [int(sizes[i]) for i in items] + [0] * (parts - len(items))
        sets = [[int(i)] for i in items] + [[] for _ in range(parts - len(items))]
        heap.append((sums[-1] - sums[0], number, sums, sets))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        _, _, sums_a, sets_a = heapq.heappop(heap)
        _, _, sums_b, sets_b = heapq.heappop(heap)
        merged = [
            (sum_a + sum_b, set_a + set_b)
            for sum_a, set_a, sum_b, set_b in zip(sums_a, sets_a, reversed(sums_b), reversed(sets_b), strict=True)
        ]
        merged.sort(key=lambda pair: -pair[0])
        sums, sets = [pair[0] for pair in merged], [pair[1] for pair in merged]
        heapq.heappush(heap, (sums[-1] - sums[0], number, sums, sets))
        number += 1
    return heap[0][3]


def _exchange(sizes: np.ndarray, parts: list[list[int]], equal: bool) -> None:
    """Narrows the spread in place by the best exchange between the fullest and the emptiest part while there is one.

    Each exchange lowers the sum of squares of the part sums by at least 2, so this ends.
    """
    sums = np.array([int(sizes[part].sum()) for part in parts], dtype=np.int64)
    while True:
        full, empty = int(sums.argmax()), int(sums.argmin())
        gap = int(sums[full] - sums[empty])
        if gap <= 1:
            return
        giving = np.asarray(parts[full], dtype=np.int64)
        taking = np.asarray(parts[empty], dtype=np.int64)
        give, take = sizes[giving], sizes[taking]
        can_move = not equal and len(giving) > 1
        if can_move:  # an item of length 0 to take: a move
            taking, take = np.append(taking, -1), np.append(take, 0)
        if not take.size:
            return
        rank = np.argsort(take, kind="stable")
        take = take[rank]
        # Wanted: give - take as close to half the gap as possible; so for each item to give the two takes around it.
        wanted = give - gap // 2
        right = np.searchsorted(take, wanted).clip(0, len(take) - 1)
        left = (right - 1).clip(0)
        after = np.stack([np.abs(gap - 2 * (give - take[left])), np.abs(gap - 2 * (give - take[right]))])
        side, best = np.unravel_index(int(after.argmin()), after.shape)
        if after[side, best] >= gap:
            return
        item_out = int(giving[best])
        item_in = int(taking[rank[(left if side == 0 else right)[best]]])
        moved = int(sizes[item_out]) - (int(sizes[item_in]) if item_in >= 0 else 0)
        parts[full].remove(item_out)
        parts[empty].append(item_out)
        if item_in >= 0:
            parts[empty].remove(item_in)
            parts[full].append(item_in)
        sums[full] -= moved
        sums[empty] += moved


def _spread(sizes: np.ndarray, parts: list[list[int]]) -> int:
    sums = [int(sizes[part].sum()) for part in parts]
    return max(sums) - min(sums)
