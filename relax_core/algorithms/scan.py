"""Discounted sums along each sample of a ragged array, from its end.

Guarantee: equal to the loop over tokens to float64 rounding, in O(T) array operations and without a Python loop over
tokens; no sample sees another's values; the same bits for any number of BLAS threads.

How: samples are cut into chunks that end where the sample ends. The chunks' first sums obey the same recurrence with
the factor to the power of a chunk's length, and are found first. Each chunk's last token takes what follows it; then a
product with a triangular matrix of powers of the factor gives all sums of a chunk.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CHUNK = 16
"""Tokens of a chunk; on the levels above, where less is to do and calls weigh more, ``UPPER_CHUNK``."""
UPPER_CHUNK = 32
_PRODUCT_VALUES = 8192
"""Elements of the left matrix of one product. BLAS takes one thread for so few; its threads cost more than they give
here, and very much more where another process keeps a core busy."""


def discounted_sums(
    values: NDArray[np.float64], offsets: NDArray[np.int64], factor: float, size: int = CHUNK
) -> NDArray[np.float64]:
    """x_t = values_t + factor x_{t + 1}, where x is 0 after a sample's last token.

    Args:
        values: [T] finite; they may be overwritten.
        offsets: [N + 1] bounds of the samples, from 0 to T.
        factor: from 0 to 1.
        size: tokens of a chunk.

    Returns:
        [T]; it may be ``values``.
    """
    lengths = np.diff(offsets)
    if factor == 0.0 or lengths.max(initial=0) <= 1:
        return values
    chunks = -(-lengths // size)
    bounds = np.zeros(len(chunks) + 1, dtype=np.int64)
    np.cumsum(chunks, out=bounds[1:])
    # Chunks are filled from the right: a sample's first chunk begins with what it lacks.
    lacks = chunks * size - lengths
    filled: NDArray[np.bool_] | None = None
    padded = values
    if lacks.any():
        parts, kinds = np.empty(2 * len(lengths), dtype=np.int64), np.zeros(2 * len(lengths), dtype=np.bool_)
        parts[0::2], parts[1::2], kinds[1::2] = lacks, lengths, True
        filled = np.repeat(kinds, parts)
        padded = np.zeros(int(bounds[-1]) * size)
        padded[filled] = values
    rows = padded.reshape(-1, size)
    powers, first = _powers(float(factor), size)
    if len(rows) > np.count_nonzero(chunks):
        following = discounted_sums(_product(rows, first), bounds, factor**size, UPPER_CHUNK)
        following[bounds[:-1][chunks > 0]] = 0.0  # a sample's first chunk follows none of its own
        rows[:-1, -1] += factor * following[1:]
    sums = _product(rows, powers).reshape(-1)
    return sums if filled is None else sums[filled]


@lru_cache(maxsize=64)
def _powers(factor: float, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[j, k]: what token j adds to the sum at token k; and its first column."""
    later = np.arange(size)[:, None] - np.arange(size)
    powers = np.where(later >= 0, np.float64(factor) ** np.maximum(later, 0), 0.0)
    return powers, powers[:, 0].copy()


def _product(rows: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """``rows @ right`` in products of ``_PRODUCT_VALUES`` elements."""
    count, size = rows.shape
    step = _PRODUCT_VALUES // size
    whole = count - count % step
    result = np.empty((count, *right.shape[1:]))
    if whole:
        stacked = (-1, step, *right.shape[1:])
        np.matmul(rows[:whole].reshape(-1, step, size), right, out=result[:whole].reshape(stacked))
    if whole < count:
        np.matmul(rows[whole:], right, out=result[whole:])
    return result
