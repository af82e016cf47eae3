"""Which sample trains in which optimiser step, on which rank, in which micro-batch.

Guarantee: a pure function of its arguments, so that every rank computes the same plan and none is sent. Every sample
is in exactly one micro-batch; updates take samples in file order, and whole groups where asked; within an update all
ranks have the same number of micro-batches, some of which may be empty (dummies: a forward and backward pass of zero
loss that no metric counts).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from data.errors import UserError
from relax_core.batching.balance import balance as balance_parts
from relax_core.batching.pack import pack
from relax_core.batching.sizes import checked_sizes
from relax_core.batching.swaps import Ints


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


_Entry = tuple[int, tuple[int, ...], list[int]]
"""Micro-batch to be aligned: its tokens as a negative number, its place (a half is behind its whole's), its samples."""


def plan_updates(
    lengths: Sequence[int] | np.ndarray,
    *,
    dp_size: int,
    num_updates: int = 1,
    micro_batch_size: int | None = None,
    max_tokens: int | None = None,
    balance: bool = False,
    equal_counts: bool = True,
    micro_batch_multiple: int = 1,
    min_micro_batches: int = 1,
    align: Literal["split", "dummy"] = "split",
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
        balance: share an update's samples between ranks by tokens instead of in consecutive blocks.
        equal_counts: balanced ranks also get equal numbers of samples; free numbers balance few long samples better.
        micro_batch_multiple: the number of micro-batches is a multiple of this (virtual pipeline stages).
        min_micro_batches: and at least this (pipeline stages).
        align: how a rank with too few micro-batches gets more of them: by splitting its largest ones, with dummies
            where single samples are left, or by dummies alone, which leaves the packing as it is.
        keep_together: [N] ids; the samples of an id train in one update. Updates then take whole ids, in the order in
            which they first appear, and cut where it is nearest to equal numbers of samples; an update's samples are
            consecutive where those of each id are.

    Returns:
        ``num_updates`` plans.

    Raises:
        UserError: no samples, fewer samples (or ids) than updates, or not exactly one of the two sizes.
        ValueError: a negative length, or ids that are not one for each sample.
    """
    sizes = checked_sizes(lengths)
    if (micro_batch_size is None) == (max_tokens is None):
        raise UserError("A micro-batch is bounded either by samples or by tokens.",
                        "Give --micro-batch-size, or --use-dynamic-batch-size with --max-tokens-per-gpu.")  # fmt: skip
    if micro_batch_size is not None and micro_batch_size < 1:
        raise UserError(f"--micro-batch-size is {micro_batch_size}.", "Give at least 1.")
    if dp_size < 1 or micro_batch_multiple < 1:
        raise ValueError(f"dp_size {dp_size} and micro_batch_multiple {micro_batch_multiple} must be at least 1")

    plans = []
    for update in _updates(sizes.size, num_updates, keep_together):
        ranks = []
        for part in _share(sizes, update, dp_size, balance, equal_counts):
            samples = part.tolist()
            if max_tokens is None:
                assert micro_batch_size is not None
                ranks.append([samples[i : i + micro_batch_size] for i in range(0, len(samples), micro_batch_size)])
            else:
                ranks.append([[samples[i] for i in contents] for contents in pack(sizes[part], max_tokens)])
        count = max(min_micro_batches, *(len(rank) for rank in ranks), 1)
        count = -(-count // micro_batch_multiple) * micro_batch_multiple
        plans.append(
            UpdatePlan([_align(sizes, rank, count, align == "split", sort=max_tokens is not None) for rank in ranks])
        )
    return plans


def _updates(total: int, num_updates: int, keep_together: Sequence[Hashable] | None) -> Iterator[Ints]:
    """Ascending samples of each update: units of samples that stay together, in the order in which they begin."""
    if keep_together is None:
        unit = np.arange(total)
    else:
        if len(keep_together) != total:
            raise ValueError(f"keep_together has {len(keep_together)} ids for {total} samples")
        numbers: dict[Hashable, int] = {}
        unit = np.array([numbers.setdefault(name, len(numbers)) for name in keep_together], dtype=np.int64)
    ends = np.cumsum(np.bincount(unit)) if total else unit  # samples up to the end of each unit
    if num_updates < 1 or len(ends) < num_updates:
        name = "samples" if keep_together is None else "groups of samples that stay together"
        raise UserError(f"{len(ends)} {name} cannot fill {num_updates} optimiser steps.",
                        "Lower --num-steps-per-rollout, or look at why samples were dropped.")  # fmt: skip
    base, extra = divmod(total, num_updates)
    start = 0
    for number in range(1, num_updates + 1):
        # The end of a unit that is nearest to an even share; each later update needs one unit at least.
        last = len(ends) - (num_updates - number)
        distance = np.abs(ends[start:last] - (number * base + min(number, extra)))
        stop = last if number == num_updates else start + 1 + int(distance.argmin())
        yield np.flatnonzero((unit >= start) & (unit < stop))
        start = stop


def _share(sizes: Ints, samples: Ints, dp_size: int, balanced: bool, equal_counts: bool) -> list[Ints]:
    """Samples of each rank; ranks beyond the number of samples get none."""
    if balanced and samples.size >= dp_size:
        return [samples[part] for part in balance_parts(sizes[samples], dp_size, equal=equal_counts)]
    return np.array_split(samples, dp_size)


def _align(sizes: Ints, micro_batches: list[list[int]], count: int, split: bool, sort: bool) -> list[list[int]]:
    """Exactly ``count`` micro-batches: the largest are split in two while any holds two samples, then dummies follow.

    Args:
        split: otherwise only dummies are added.
        sort: the largest comes first: ranks then work on similar sizes at the same time, and a lack of memory shows in
            the first micro-batch.
    """
    if len(micro_batches) == count and not sort:
        return micro_batches
    result: list[_Entry] = [(-int(sizes[m].sum()), (place,), m) for place, m in enumerate(micro_batches)]
    splittable = [entry for entry in result if len(entry[2]) > 1]
    if split and splittable and len(result) < count:
        result = [entry for entry in result if len(entry[2]) < 2]
        heapq.heapify(splittable)
        while splittable and len(result) + len(splittable) < count:
            _, place, whole = heapq.heappop(splittable)
            for number, half in enumerate(balance_parts(sizes[whole], 2, equal=False)):
                entry: _Entry = (-int(sizes[whole][half].sum()), (*place, number), [whole[i] for i in half])
                if len(half) > 1:
                    heapq.heappush(splittable, entry)
                else:
                    result.append(entry)
        result += splittable
    if sort:
        result.sort(key=lambda entry: (entry[0], entry[2]))
    else:
        result.sort(key=lambda entry: entry[1])
    return [samples for _, _, samples in result] + [[] for _ in range(count - len(result))]
