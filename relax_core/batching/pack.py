"""Packing of sequences into micro-batches of bounded size.

Guarantee: first-fit decreasing in O(n log n), the same result in every process: ties are broken by index. Every index
is in exactly one bin and no bin holds more than the budget, except a bin of one sequence that is itself longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.errors import UserError
from relax_core.batching.sizes import checked_sizes


def pack(lengths: Sequence[int] | np.ndarray, budget: int) -> list[list[int]]:
    """Fill bins: longest sequence first, each into the first bin with room.

    Args:
        lengths: [N] tokens of each sequence, not negative.
        budget: tokens of a bin, at least 1.

    Returns:
        Bins of indices; indices ascend within a bin.

    Raises:
        UserError: the budget is below 1.
        ValueError: a length is negative or not a whole number.
    """
    if budget < 1:
        raise UserError(f"The token budget of a micro-batch is {budget}.", "Give --max-tokens-per-gpu at least 1.")
    sizes = checked_sizes(lengths)
    if sizes.size == 0:
        return []
    order = np.argsort(-sizes, kind="stable")
    bins: list[list[int]] = [[index] for index in order[sizes[order] > budget].tolist()]
    fitting = order[sizes[order] <= budget]
    if fitting.size:
        bins += _first_fit(fitting.tolist(), sizes[fitting].tolist(), budget)
    for contents in bins:
        contents.sort()
    return bins


def _first_fit(indices: list[int], sizes: list[int], budget: int) -> list[list[int]]:
    """First fit by tournament tree: a node holds the largest room of the bins below it; the leaves are the bins."""
    # Of two neighbouring bins the second was opened because its first item did not fit the first: together they hold
    # more than the budget, hence at most 2 total / budget + 1 bins.
    most_bins = min(len(sizes), 2 * sum(sizes) // budget + 1)
    leaves = 1 << (most_bins - 1).bit_length()
    room = [budget] * (2 * leaves)
    bins: list[list[int]] = []
    for index, size in zip(indices, sizes, strict=True):
        node = 1
        while node < leaves:
            node += node
            if room[node] < size:
                node += 1
        number = node - leaves
        if number == len(bins):
            bins.append([])
        bins[number].append(index)
        left = room[node] = room[node] - size
        while node > 1:
            other = room[node ^ 1]
            if other > left:
                left = other
            node >>= 1
            if room[node] == left:
                break
            room[node] = left
    return bins
