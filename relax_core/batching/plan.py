"""Which sample trains in which optimiser step, on which rank, in which micro-batch.

Guarantee: a pure function of its arguments, so that every rank computes the same plan and none is sent. Every sample
is in exactly one micro-batch; updates take samples in file order; within an update all ranks have the same number of
micro-batches, some of which may be empty (dummies: a forward and backward pass of zero loss that no metric counts).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from data.errors import UserError
from relax_core.batching.balance import balance as balance_parts
from relax_core.batching.pack import pack


@dataclass(frozen=True)
class UpdatePlan:
    """One optimiser step."""

    micro_batches: list[list[list[int]]]
    """[dp_rank][micro-batch] -> sample indices; an empty list is a dummy."""

    @property
    def samples(self) -> list[int]:
        """All samples of the step, ascending."""
        return sorted(index for rank in self.micro_batches for micro_batch in rank for index in micro_batch)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of every rank."""
        return len(self.micro_batches[0])


def plan_updates(
    lengths: Sequence[int] | np.ndarray,
    *,
    dp_size: int,
    num_updates: int = 1,
    micro_batch_size: int | None = None,
    max_tokens: int | None = None,
    balance: bool = False,
    micro_batch_multiple: int = 1,
    min_micro_batches: int = 1,
    keep_together: Sequence[Hashable] | None = None,
) -> list[UpdatePlan]:
    """Plan of the optimiser steps of one rollout.

    Args:
        lengths: [N] tokens of each sample (prompt and response), in file order.
        dp_size: data-parallel ranks.
        num_updates: optimiser steps; each takes N / num_updates consecutive samples (one more in the first ones if it
            does not divide N).
        micro_batch_size: samples of a micro-batch. Exclusive with ``max_tokens``.
        max_tokens: tokens of a micro-batch; the caller multiplies by the context-parallel size.
        balance: share an update's samples between ranks by tokens (equal counts) instead of in consecutive blocks.
        micro_batch_multiple: the number of micro-batches is a multiple of this (virtual pipeline stages).
        min_micro_batches: and at least this (pipeline stages).
        keep_together: [N] ids; consecutive samples of one id stay in one update.

    Returns:
        ``num_updates`` plans.

    Raises:
        UserError: no samples, fewer samples (or ids) than updates, or not exactly one of the two sizes.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    if (micro_batch_size is None) == (max_tokens is None):
        raise UserError("A micro-batch is bounded either by samples or by tokens.",
                        "Give --micro-batch-size, or --use-dynamic-batch-size with --max-tokens-per-gpu.")  # fmt: skip
    if micro_batch_size is not None and micro_batch_size < 1:
        raise UserError(f"--micro-batch-size is {micro_batch_size}.", "Give at least 1.")
    if dp_size < 1 or micro_batch_multiple < 1:
        raise ValueError(f"dp_size {dp_size} and micro_batch_multiple {micro_batch_multiple} must be at least 1")

    plans = []
    for start, stop in _update_ranges(sizes.size, num_updates, keep_together):
        ranks = []
        for samples in _share(sizes, start, stop, dp_size, balance):
            if max_tokens is None:
                assert micro_batch_size is not None
                ranks.append([samples[i : i + micro_batch_size] for i in range(0, len(samples), micro_batch_size)])
            else:
                bins = pack(sizes[samples], max_tokens)
                ranks.append([[samples[i] for i in contents] for contents in bins])
        count = max(min_micro_batches, *(len(rank) for rank in ranks), 1)
        count = -(-count // micro_batch_multiple) * micro_batch_multiple
        plans.append(UpdatePlan([_align(sizes, rank, count, sort=max_tokens is not None) for rank in ranks]))
    return plans


def _update_ranges(total: int, num_updates: int, keep_together: Sequence[Hashable] | None) -> list[tuple[int, int]]:
    """Consecutive [start, stop) of samples for each update, cut only where a unit begins."""
    if keep_together is None:
        starts = list(range(total))
    else:
        starts = [i for i in range(total) if i == 0 or keep_together[i] != keep_together[i - 1]]
    if num_updates < 1 or len(starts) < num_updates:
        unit = "samples" if keep_together is None else "rollouts"
        raise UserError(f"{len(starts)} {unit} cannot fill {num_updates} optimiser steps.",
                        "Lower --num-steps-per-rollout, or look at why samples were dropped.")  # fmt: skip
    base, extra = divmod(len(starts), num_updates)
    cuts = [starts[i * base + min(i, extra)] for i in range(num_updates)] + [total]
    return list(pairwise(cuts))


def _share(sizes: np.ndarray, start: int, stop: int, dp_size: int, balanced: bool) -> list[list[int]]:
    """Samples of each rank; ranks beyond the number of samples get none."""
    if balanced and stop - start >= dp_size:
        return [[start + i for i in part] for part in balance_parts(sizes[start:stop], dp_size, equal=True)]
    return [block.tolist() for block in np.array_split(np.arange(start, stop), dp_size)]


def _align(sizes: np.ndarray, micro_batches: list[list[int]], count: int, sort: bool) -> list[list[int]]:
    """Exactly ``count`` micro-batches: the largest are split in two while any holds two samples, then dummies follow.

    With ``sort`` the largest comes first: ranks then work on similar sizes at the same time, and a lack of memory shows
    in the first micro-batch.
    """
    result = [list(micro_batch) for micro_batch in micro_batches]
    while len(result) < count:
        splittable = [i for i, micro_batch in enumerate(result) if len(micro_batch) > 1]
        if not splittable:
            result += [[] for _ in range(count - len(result))]
            break
        chosen = max(splittable, key=lambda i: (int(sizes[result[i]].sum()), -i))
        whole = result[chosen]
        halves = balance_parts(sizes[whole], 2, equal=False)
        result[chosen : chosen + 1] = [[whole[i] for i in half] for half in halves]
    if sort:
        result.sort(key=lambda micro_batch: (-int(sizes[micro_batch].sum()), micro_batch[:1] or [sizes.size]))
    return result
