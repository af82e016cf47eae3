"""Columns of samples as the flat arrays of micro-batches, and back.

Guarantee: a column is copied once each way and no Python loop goes over its values; what is packed and unpacked again
has the rows, values and type that it had. A dummy micro-batch has no row and no value, so that no sum over values can
count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.ragged import Ragged
from relax_core.batching.swaps import Ints


@dataclass(frozen=True, eq=False)
class Packing:
    """Samples of B micro-batches, one behind the other.

    Args:
        samples: [M] int64, numbers of the samples in packed order, each once.
        offsets: [B + 1] int64; micro-batch b holds ``samples[offsets[b]:offsets[b + 1]]``.

    Raises:
        ValueError: a sample is there twice.
    """

    samples: Ints
    offsets: Ints

    def __post_init__(self) -> None:
        if np.unique(self.samples).size != self.samples.size:
            raise ValueError("a sample is in two micro-batches")

    @classmethod
    def of(cls, micro_batches: Sequence[Sequence[int]]) -> Packing:
        """Of the sample numbers of each micro-batch, as a plan has them for a rank."""
        joined = Ragged.from_list(micro_batches, np.int64)
        return cls(joined.values, joined.offsets)

    def __len__(self) -> int:
        """B."""
        return len(self.offsets) - 1

    def pack(self, column: Ragged) -> Ragged:
        """The M samples' rows in packed order, in memory of their own.

        Args:
            column: a row for every sample of the table.
        """
        return column.take(self.samples)

    def micro_batch(self, packed: Ragged, number: int) -> Ragged:
        """A micro-batch's rows as a view: flat values, and offsets from 0 (the "cumulative lengths" of attention)."""
        return packed[int(self.offsets[number]) : int(self.offsets[number + 1])]

    def unpack(self, packed: Ragged) -> Ragged:
        """The M rows in ascending order of their samples: the order of the table.

        Raises:
            ValueError: not one row for each sample.
        """
        if len(packed) != len(self.samples):
            raise ValueError(f"{len(packed)} rows for {len(self.samples)} samples")
        return packed.take(np.argsort(self.samples))
