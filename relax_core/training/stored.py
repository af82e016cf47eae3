"""A stored batch as it is trained on: at once, or its first global batch slice by slice.

Guarantee: every row is there once; a slice is the same whether its rows come out of the stored batch or were handed on
before. Needs no Megatron.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from data.errors import UserError
from relax_core.training.batch import TrainingBatch


def opened(rows: Any) -> pa.Table:
    """The rows of a slice: a table, or what gives one when it is opened where it is used."""
    return rows if isinstance(rows, pa.Table) else rows.open()


@dataclass(frozen=True)
class StoredBatch:
    """A batch to train on, in the order in which it is.

    Attributes:
        whole: all of it; the slices come first.
        slices: of the first global batch; none where it is trained on at once.
        rest: what is behind the slices.
    """

    whole: TrainingBatch
    slices: Sequence[TrainingBatch] = ()
    rest: TrainingBatch | None = None

    @classmethod
    def from_table(cls, table: pa.Table, samples: int | None) -> "StoredBatch":
        """From a stored batch.

        Args:
            table: schema ``BATCH``.
            samples: of a global batch. None: numbers of slices do not count.

        Raises:
            UserError: numbers that are not 0, 1, ..., or whose rows are not one global batch; or as
                ``TrainingBatch.from_table``.
        """
        parts = [] if samples is None else split(table, samples)
        if not parts:
            return cls(TrainingBatch.from_table(table))
        whole = TrainingBatch.from_table(pa.concat_tables(parts))
        *slices, rest = [TrainingBatch.from_table(part) if part.num_rows else None for part in parts]
        return cls(whole, [part for part in slices if part is not None], rest)


def split(table: pa.Table, samples: int) -> list[pa.Table]:
    """The slices of a stored batch in the order of their numbers, and what is behind them, which may be empty.

    Args:
        table: schema ``BATCH``; rows without a number are behind the first global batch.
        samples: of a global batch.

    Returns:
        [slices + 1]; nothing where no row has a number.

    Raises:
        UserError: numbers that are not 0, 1, ..., or whose rows are not the first global batch.
    """
    if "slice" not in table.column_names or table["slice"].null_count == table.num_rows:
        return []
    numbers = table["slice"].fill_null(-1).to_numpy()
    found = np.unique(numbers[numbers >= 0])
    if not np.array_equal(found, np.arange(len(found))) or int((numbers >= 0).sum()) != samples:
        raise UserError(
            f"The batch has {int((numbers >= 0).sum())} samples in the slices {found.tolist()}, of a global batch of"
            f" {samples}.",
            "Make the batch anew.",
        )
    return [table.take(pa.array(np.flatnonzero(numbers == number))) for number in (*found.tolist(), -1)]
