"""Standardising advantages over all trained tokens of all data-parallel ranks.

Guarantee: the result does not depend on how samples are ordered or divided over ranks, beyond rounding; masked tokens
count for nothing and get 0, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from relax_core.algorithms.blockwise import clear_masked, spans

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
    add = (lambda sums: sums) if sum_over_ranks is None else sum_over_ranks
    kept = loss_mask != 0
    whole = bool(kept.all())
    # Each block about its own mean, so that one reading is enough. Float32 values that are all equal have an exact
    # mean: the sum of fewer than 2^29 of them is exact in float64.
    rows = [_moments(values[tokens], None if whole else kept[tokens]) for tokens in spans(len(values))]
    counts, totals, squares = np.array(rows, np.float64).reshape(-1, 3).T
    count, total = add(np.array([counts.sum(), totals.sum()]))
    mean = total / max(count, 1.0)
    between = counts * np.square(totals / np.maximum(counts, 1.0) - mean)
    (squares_of_all,) = add(np.array([squares.sum() + between.sum()]))
    if form == "whiten":
        scale = np.sqrt(squares_of_all / max(count - 1.0, 1.0) + VARIANCE_FLOOR)
    else:
        scale = np.sqrt(max(squares_of_all / max(count, 1.0), VARIANCE_FLOOR))
    result = np.empty(len(values), np.float32)
    for tokens in spans(len(values)):
        centred = values[tokens].astype(np.float64)
        centred -= mean
        centred *= 1.0 / scale  # several times faster than a division
        with np.errstate(over="ignore"):  # masked tokens may hold anything
            result[tokens] = centred
        if not whole:
            clear_masked(result[tokens], kept[tokens])
    return result


def _moments(values: NDArray[np.float32], kept: NDArray[np.bool_] | None) -> tuple[float, float, float]:
    """Number of the values that are kept (None: all), their sum, and their summed squared distances from their mean."""
    if kept is not None:
        values = values.astype(np.float32)
        clear_masked(values, kept)
    wide = values.astype(np.float64)
    count = len(wide) if kept is None else int(np.count_nonzero(kept))
    total = float(wide.sum())
    wide -= total / max(count, 1)
    if kept is not None:
        wide *= kept
    return count, total, float(np.square(wide, out=wide).sum())
