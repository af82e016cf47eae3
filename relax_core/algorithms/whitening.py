"""Standardising advantages over all trained tokens of all data-parallel ranks.

Guarantee: the result does not depend on how samples are ordered or divided over ranks, beyond rounding; masked tokens
count for nothing and get 0, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Whitening = Literal["whiten", "token_global"]

VARIANCE_FLOOR = 1e-8
"""Added to the variance (``whiten``), or its least value (``token_global``)."""

SumOverRanks = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Adds up a vector over data-parallel ranks and gives every rank the sum."""


def whiten(
    values: NDArray[np.float32],
    loss_mask: NDArray[np.uint8],
    form: Whitening,
    sum_over_ranks: SumOverRanks | None = None,
) -> NDArray[np.float32]:
    """Standardised over all trained tokens: mean 0, variance about 1; 0 where masked.

    ``whiten``: (A - mean) / sqrt(v + 1e-8), v the unbiased variance. ``token_global``: (A - mean) / sqrt(max(v, 1e-8)),
    v the variance of the population, as in Hu et al., "REINFORCE++" (2025), global advantage normalisation. Equal
    values give exact zeros, and so does a single token.

    Args:
        values: [T].
        loss_mask: [T].
        form: see above.
        sum_over_ranks: where other ranks hold other samples; called twice, by all ranks. None: all are here.

    Returns:
        [T] float32.
    """
    keep = loss_mask != 0
    own = values[keep].astype(np.float64)
    add = (lambda sums: sums) if sum_over_ranks is None else sum_over_ranks
    count, total = add(np.array([own.size, own.sum()]))
    result = np.zeros(len(values), np.float32)
    # Float32 values that are all equal have an exact mean: the sum of fewer than 2^29 of them is exact in float64.
    centred = own - total / max(count, 1.0)
    (squares,) = add(np.array([np.square(centred).sum()]))
    if form == "whiten":
        scale = np.sqrt(squares / max(count - 1.0, 1.0) + VARIANCE_FLOOR)
    else:
        scale = np.sqrt(max(squares / max(count, 1.0), VARIANCE_FLOOR))
    result[keep] = centred / scale
    return result
