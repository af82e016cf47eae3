"""Rows of unequal length as one flat array and its offsets: the shape in which Arrow keeps a list column.

Guarantee: going to and from Arrow copies no values (a column of several chunks is joined once), a slice of an Arrow
array gives the slice's rows and nothing else, and no row ever becomes a Python list. Arrays that come from Arrow are
read-only views of its memory: call ``copy()`` before changing them in place or handing them to code that might.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, DTypeLike, NDArray

_INT32_MAX = 2**31 - 1
_LONG_PIECE = 256
"""Values from which on a piece is copied faster as a whole than value by value."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """N rows with T values in all.

    Args:
        values: [T] the rows one after the other.
        offsets: [N+1] int64; row i is ``values[offsets[i]:offsets[i+1]]``, ``offsets[0] == 0``, ``offsets[N] == T``.

    Raises:
        ValueError: the offsets do not describe the values.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        offsets = np.ascontiguousarray(self.offsets, dtype=np.int64)
        object.__setattr__(self, "offsets", offsets)
        if self.values.ndim != 1 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError("values must have one dimension, offsets one dimension and at least one entry")
        if offsets[0] != 0 or offsets[-1] != len(self.values) or (np.diff(offsets) < 0).any():
            raise ValueError(f"offsets must rise from 0 to {len(self.values)}, the number of values")

    @classmethod
    def from_list(cls, rows: Sequence[ArrayLike], dtype: DTypeLike) -> Ragged:
        """Joins rows (arrays or sequences of numbers) into values of ``dtype``."""
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        if any(array.ndim != 1 for array in arrays):
            raise ValueError("every row must have one dimension")
        values = np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)
        return cls.from_lengths(values, [len(array) for array in arrays])

    @classmethod
    def from_lengths(cls, values: NDArray[Any], lengths: ArrayLike) -> Ragged:
        """``values`` [T] cut into rows of ``lengths`` [N], which must add up to T."""
        lengths = np.asarray(lengths, dtype=np.int64).reshape(-1)
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(values, offsets)

    @classmethod
    def concat(cls, parts: Iterable[Ragged]) -> Ragged:
        """The rows of all parts, in order; the parts share a dtype. At least one part."""
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        return cls.from_lengths(
            np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    @classmethod
    def from_arrow(cls, array: pa.Array | pa.ChunkedArray) -> Ragged:
        """A list column without nulls; a view of Arrow's memory when it has one chunk.

        Raises:
            TypeError: not a list column of numbers.
            ValueError: a row or a value is null (ask ``array.null_count`` first where null means "not there").
        """
        list_type = array.type
        if not (pa.types.is_list(list_type) or pa.types.is_large_list(list_type)):
            raise TypeError(f"not a list column: {list_type}")
        if array.null_count:
            raise ValueError(f"{array.null_count} of {len(array)} rows are null")
        if isinstance(array, pa.ChunkedArray):
            # Chunks are joined here and not by combine_chunks(), whose int32 offsets overflow at 2^31 values.
            if array.num_chunks:
                return cls.concat(cls.from_arrow(chunk) for chunk in array.chunks)
            return cls(np.empty(0, dtype=list_type.value_type.to_pandas_dtype()), np.zeros(1, dtype=np.int64))
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        # `.offsets` follows a slice, `.values` does not: cut the values to the slice and start the offsets at 0.
        child = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        if child.null_count:
            raise ValueError(f"{child.null_count} of {len(child)} values are null")
        values = child.to_numpy(zero_copy_only=not pa.types.is_boolean(child.type))
        return cls(values, offsets - offsets[0])

    def to_arrow(self) -> pa.ListArray:
        """An Arrow list array over the same memory.

        Raises:
            ValueError: more than 2^31 - 1 values, which a list array's 32-bit offsets cannot address.
        """
        if len(self.values) > _INT32_MAX:
            raise ValueError(f"{len(self.values)} values are too many for one Arrow list array: split the rows")
        return pa.ListArray.from_arrays(pa.array(self.offsets.astype(np.int32)), pa.array(self.values))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[N] int64: number of values of each row."""
        return np.diff(self.offsets)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Ragged: ...
    def __getitem__(self, index: int | slice) -> NDArray[Any] | Ragged:
        """Row i as a view; a slice of step 1 as a Ragged that shares the values."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            offsets = self.offsets[start : max(start, stop) + 1]
            return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        row = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        bounds = self.offsets.tolist()
        return (self.values[start:stop] for start, stop in pairwise(bounds))

    def take(self, indices: ArrayLike) -> Ragged:
        """The rows at ``indices`` [M] (they may repeat), in that order; copies the values."""
        rows = np.asarray(indices, dtype=np.int64).reshape(-1)
        starts, lengths = self.offsets[:-1][rows], self.lengths[rows]
        stops = starts + lengths
        result = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=result[1:])
        # Rows that follow one another here as there are one piece.
        breaks = np.flatnonzero(starts[1:] != stops[:-1])
        if result[-1] > _LONG_PIECE * (len(breaks) + 1):
            first, last = np.append(0, breaks + 1), np.append(breaks, len(rows) - 1)
            pieces = zip(starts[first].tolist(), stops[last].tolist(), strict=True)
            return Ragged(np.concatenate([self.values[start:stop] for start, stop in pieces]), result)
        # Output position p of row r reads the value at p - (start of r in the output) + (start of r in the input).
        positions = np.arange(result[-1]) + np.repeat(starts - result[:-1], lengths)
        return Ragged(self.values[positions], result)

    def copy(self) -> Ragged:
        """The same rows in memory of their own, which may be written."""
        return Ragged(self.values.copy(), self.offsets.copy())

    def astype(self, dtype: DTypeLike) -> Ragged:
        """The same rows with values of another type; shares memory where the type already fits."""
        return Ragged(self.values.astype(dtype, copy=False), self.offsets)

    def equals(self, other: Ragged) -> bool:
        """Same rows, values and dtype; NaN equals NaN."""
        return (
            self.dtype == other.dtype
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.values, other.values, equal_nan=self.dtype.kind == "f")
        )
