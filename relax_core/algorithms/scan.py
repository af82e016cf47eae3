"""Discounted sums along each sample of a ragged array, from its end.

Guarantee: equal to the loop over tokens to float64 rounding, in O(T) array operations and without a Python loop over
tokens; no sample sees another's values. Memory beside the result is bounded by ``BLOCK`` tokens or one sample.

How: samples are cut into chunks of ``CHUNK`` tokens that end where the sample ends. Within a chunk the recurrence is a
product with a triangular matrix of powers of the factor; from chunk to chunk it is the same recurrence again, with the
factor to the power ``CHUNK``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

CHUNK = 16
BLOCK = 1 << 16
"""Tokens that are worked on at once, so that they stay in the processor's cache."""


def discounted_sums(values: NDArray, offsets: NDArray[np.int64], factor: float) -> NDArray[np.float64]:
    """x_t = values_t + factor x_{t + 1}, where x is 0 after a sample's last token.

    Args:
        values: [T] finite.
        offsets: [N + 1] bounds of the samples.
        factor: from 0 to 1.

    Returns:
        [T] float64.
    """
    result = np.empty(len(values), dtype=np.float64)
    for samples, tokens in blocks(offsets):
        own = offsets[samples.start : samples.stop + 1] - offsets[samples.start]
        result[tokens] = _scan(np.asarray(values[tokens], dtype=np.float64), own, factor)
    return result


def blocks(offsets: NDArray[np.int64], size: int = BLOCK) -> Iterator[tuple[slice, slice]]:
    """Consecutive samples of about ``size`` tokens together (at least one sample), and their tokens."""
    first, last = 0, len(offsets) - 1
    while first < last:
        stop = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        yield slice(first, stop), slice(int(offsets[first]), int(offsets[stop]))
        first = stop


def _scan(values: NDArray[np.float64], offsets: NDArray[np.int64], factor: float) -> NDArray[np.float64]:
    lengths = np.diff(offsets)
    if factor == 0.0 or lengths.max(initial=0) <= 1:
        return values
    chunks = -(-lengths // CHUNK)
    bounds = np.zeros(len(chunks) + 1, dtype=np.int64)
    np.cumsum(chunks, out=bounds[1:])
    # Chunks are filled from the right: a sample's first chunk begins with what it lacks.
    lacks = chunks * CHUNK - lengths
    filled: NDArray[np.bool_] | slice = slice(None)
    padded = values
    if lacks.any():
        parts = np.stack((lacks, lengths), axis=1).reshape(-1)
        filled = np.repeat(np.tile(np.array([False, True]), len(lengths)), parts)
        padded = np.zeros(int(bounds[-1]) * CHUNK)
        padded[filled] = values
    later = np.arange(CHUNK)[:, None] - np.arange(CHUNK)  # [j, k]: how far token j lies behind token k
    sums = padded.reshape(-1, CHUNK) @ np.where(later >= 0, np.float64(factor) ** np.maximum(later, 0), 0.0)
    if chunks.max() > 1:
        whole = _scan(sums[:, 0].copy(), bounds, factor**CHUNK)
        following = np.append(whole[1:], 0.0)
        following[bounds[1:][chunks > 0] - 1] = 0.0  # nothing follows a sample's last chunk
        sums += following[:, None] * np.float64(factor) ** np.arange(CHUNK, 0, -1)
    return sums.reshape(-1)[filled]
