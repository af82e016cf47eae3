"""One column of two tables, row by row: which rows differ, by how much, and in which token first.

Guarantee: NaN equals NaN, null equals null alone; a column of numbers is never turned into Python values.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data.ragged import Ragged

ABSENT = "absent"
"""Stands for the value of a sample, token or metric that one side does not have."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Tolerance:
    """How far floats may be apart and still be called equal: ``|old - new| <= atol + rtol |old|``; 0: not at all."""

    rtol: float = 0.0
    atol: float = 0.0

    def __bool__(self) -> bool:
        return self.rtol > 0 or self.atol > 0

    def apart(self, old: NDArray[Any], new: NDArray[Any]) -> Bools:
        """[n] whether the values differ by more. Numbers that are not finite are equal or not."""
        differs = unequal(old, new)
        if self and differs.any() and old.dtype.kind == "f":
            a, b = old.astype(np.float64), new.astype(np.float64)
            with np.errstate(invalid="ignore"):  # infinity less infinity
                near = np.abs(a - b) <= self.atol + self.rtol * np.abs(a)
            differs &= ~(near & np.isfinite(a) & np.isfinite(b))
        return differs


EXACT = Tolerance()


@dataclass(frozen=True)
class ColumnChange:
    """A column (or metric) whose values are not all the same bits.

    Attributes:
        samples: that differ by more than the tolerance.
        values: that do (tokens of a list, else samples).
        largest: ``|old - new|`` of finite floats, at most; None for ids, counts and texts.
    """

    name: str
    samples: int
    values: int
    largest: float | None


def unequal(old: NDArray[Any], new: NDArray[Any]) -> Bools:
    """[n] whether the values differ; NaN equals NaN."""
    differs = old != new
    if old.dtype.kind == "f" and new.dtype.kind == "f":
        differs &= ~(np.isnan(old) & np.isnan(new))
    return np.asarray(differs, dtype=bool)


def largest(old: NDArray[Any], new: NDArray[Any]) -> float | None:
    """Largest distance of finite floats; None without any."""
    if old.dtype.kind != "f" or not len(old):
        return None
    a, b = old.astype(np.float64), new.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    return float(np.abs(a[finite] - b[finite]).max()) if finite.any() else None


class Column:
    """A column of both sides, [M] rows each in the same order.

    Attributes:
        rows: [M] whether a row differs by more than the tolerance.
    """

    def __init__(self, old: pa.ChunkedArray, new: pa.ChunkedArray, tolerance: Tolerance) -> None:
        self.rows = np.zeros(len(old), dtype=bool)
        self._values, self._bits = 0, False
        self._largest: float | None = None
        both = self._nulls(old, new)
        if not both.any():
            return
        mask = pa.array(both)
        a, b = (old.filter(mask), new.filter(mask)) if not both.all() else (old, new)
        if not old.type.equals(new.type):
            self._each(both, a, b)
        elif pa.types.is_list(old.type) and _is_number(old.type.value_type):
            self._lists(both, Ragged.from_arrow(a), Ragged.from_arrow(b), tolerance)
        elif _is_number(old.type):
            self._numbers(both, a.to_numpy(), b.to_numpy(), tolerance)
        else:
            self._each(both, a, b)

    def change(self, name: str) -> ColumnChange | None:
        """What is not the same, if anything is."""
        if not self._bits:
            return None
        return ColumnChange(name, int(self.rows.sum()), self._values, self._largest)

    def _nulls(self, old: pa.ChunkedArray, new: pa.ChunkedArray) -> Bools:
        """[M] rows where neither is null; where one is, the row differs."""
        null_old, null_new = (column.is_null().to_numpy() for column in (old, new))
        self.rows |= null_old != null_new
        self._values += int(self.rows.sum())
        self._bits |= self._values > 0
        return np.asarray(~(null_old | null_new))

    def _numbers(self, both: Bools, old: NDArray[Any], new: NDArray[Any], tolerance: Tolerance) -> None:
        apart, differs = tolerance.apart(old, new), unequal(old, new)
        self.rows[both] |= apart
        self._values += int(apart.sum())
        self._bits |= bool(differs.any())
        if differs.any():
            self._largest = largest(old[differs], new[differs])

    def _lists(self, both: Bools, old: Ragged, new: Ragged, tolerance: Tolerance) -> None:
        even = old.lengths == new.lengths
        if even.all():
            a, b = old, new
        else:
            a, b = old.take(np.flatnonzero(even)), new.take(np.flatnonzero(even))
        apart, differs = tolerance.apart(a.values, b.values), unequal(a.values, b.values)
        counts = np.diff(np.append(0, np.cumsum(apart))[a.offsets])
        rows = np.ones(len(old), dtype=bool)
        rows[even] = counts > 0
        self.rows[both] |= rows
        self._values += int(apart.sum())
        self._bits |= bool(differs.any()) or not even.all()
        if differs.any():
            self._largest = largest(a.values[differs], b.values[differs])
        for row in np.flatnonzero(~even):
            self._values += _uneven(old[int(row)], new[int(row)], tolerance)

    def _each(self, both: Bools, old: Any, new: Any) -> None:
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        apart = np.array([a != b for a, b in pairs], dtype=bool)
        self.rows[both] |= apart
        self._values += int(apart.sum())
        self._bits |= bool(apart.any())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _uneven(old: NDArray[Any], new: NDArray[Any], tolerance: Tolerance) -> int:
    """Values that differ in two lists of unequal length: also those that one of them has not."""
    shared = min(len(old), len(new))
    return int(tolerance.apart(old[:shared], new[:shared]).sum()) + abs(len(old) - len(new))


def first_token(old: Any, new: Any, kind: pa.DataType, tolerance: Tolerance) -> tuple[int | None, Any, Any]:
    """The first token where two values of a column differ, and what both are there."""
    if not (pa.types.is_list(kind) and isinstance(old, list) and isinstance(new, list)):
        return None, old, new
    dtype = kind.value_type.to_pandas_dtype() if _is_number(kind.value_type) else object
    shared = min(len(old), len(new))
    a, b = np.array(old[:shared], dtype=dtype), np.array(new[:shared], dtype=dtype)
    apart = tolerance.apart(a, b)
    if apart.any():
        token = int(np.argmax(apart))
        return token, old[token], new[token]
    return shared, old[shared] if shared < len(old) else ABSENT, new[shared] if shared < len(new) else ABSENT
