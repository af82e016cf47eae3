"""Lengths as the packer, the balancer and the planner take them.

Guarantee: what passes is a flat array of whole numbers that are not negative, in 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def checked_sizes(lengths: Sequence[int] | np.ndarray) -> NDArray[np.int64]:
    """[N] int64 of the given lengths.

    Raises:
        ValueError: more than one dimension, a negative length (which one), or lengths that are not whole numbers.
    """
    given = np.asarray(lengths)
    if given.ndim != 1:
        raise ValueError(f"lengths must have one dimension, not shape {given.shape}")
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"lengths must be whole numbers, not {given.dtype}")
    sizes = given.astype(np.int64)
    if (sizes < 0).any():
        wrong = int(np.argmax(sizes < 0))
        raise ValueError(f"length {wrong} is {sizes[wrong]}: lengths must not be negative")
    return sizes
