"""Going through long columns of tokens in blocks, and leaving masked tokens out of a block.

Guarantee: the blocks of a column are consecutive, of about ``BLOCK`` tokens (a sample is never divided), and cover it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16
"""Tokens that are worked on at once, so that they stay in the processor's cache."""


def blocks(offsets: NDArray[np.int64], size: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Consecutive samples of about ``size`` tokens together (at least one sample), and their tokens.

    Args:
        offsets: [N + 1] bounds of the samples.
        size: None: ``BLOCK``.
    """
    size = BLOCK if size is None else size
    _keep_freed_memory()
    first, last = 0, len(offsets) - 1
    while first < last:
        stop = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        yield slice(first, stop), slice(int(offsets[first]), int(offsets[stop]))
        first = stop


def spans(tokens: int) -> Iterator[slice]:
    """0 to ``tokens`` in slices of at most ``BLOCK``, for work that looks at no samples."""
    _keep_freed_memory()
    for start in range(0, tokens, BLOCK):
        yield slice(start, min(start + BLOCK, tokens))


def clear_masked(values: NDArray[np.float32], kept: NDArray[np.bool_]) -> None:
    """Sets ``values`` [T] to 0 where they are not kept, whatever they hold.

    Their bits are multiplied by 0 or 1: numpy does that several times faster than it selects.
    """
    bits = values.view(np.int32)
    np.multiply(bits, kept, out=bits)


def _keep_freed_memory() -> None:
    """glibc gives memory of a block's size back when it is freed and has it anew, page by page, until it once has freed
    more: so much is freed here."""
    np.empty(1 << 24, dtype=np.uint8)
