"""Two tables, or two sets of numbers, of the same stage: what differs, and where first.

Guarantee: rows are matched by ``sample_id`` and never by place; NaN equals NaN, null equals null alone and is neither
NaN nor 0; a sample that one side lacks is a difference and is named. The first difference is that of the first sample
in the order of the old table, in it of the first column of its schema, in that of the first token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from relax_core.replay.columns import ABSENT, EXACT, Column, ColumnChange, Tolerance, first_token, largest, unequal


@dataclass(frozen=True)
class Difference:
    """One place where the two sides differ.

    Attributes:
        stage: where.
        column: of the table, or a metric's name; ``sample_id`` for a sample that one side lacks.
        sample_id: None for a metric.
        token: its place, from 0: in prompt and response for ``tokens``, else in the response; None: no list.
        old, new: the two values; ``ABSENT`` where there is none.
    """

    stage: str
    column: str
    sample_id: str | None
    token: int | None
    old: Any
    new: Any


@dataclass(frozen=True)
class Comparison:
    """What ``compare_tables`` or ``compare_values`` found.

    Attributes:
        rows: samples, or metrics, of the old and of the new side.
        missing: samples that only the old side has, in its order.
        extra: samples that only the new side has.
        changes: columns that are not the same, in the order of the schema.
        skipped: columns that one side has not at all: a file of an older version.
        first: None when nothing differs by more than the tolerance.
    """

    stage: str
    rows: tuple[int, int]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    changes: tuple[ColumnChange, ...] = ()
    skipped: tuple[str, ...] = ()
    first: Difference | None = None

    @property
    def same(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return self.first is None

    @property
    def exact(self) -> bool:
        """Whether nothing differs at all."""
        return self.same and not self.changes

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "same": self.same, "exact": self.exact}


def compare_tables(
    stage: str, old: pa.Table, new: pa.Table, tolerance: Tolerance = EXACT, ignore: Iterable[str] = ()
) -> Comparison:
    """Compare two tables with a column ``sample_id`` each.

    Args:
        stage: for the differences.
        old, new: rows in any order.
        ignore: columns that are not looked at.
    """
    old_ids, new_ids = old["sample_id"].to_pylist(), new["sample_id"].to_pylist()
    places = {sample_id: place for place, sample_id in enumerate(new_ids)}
    known = set(old_ids)
    missing = tuple(sample_id for sample_id in old_ids if sample_id not in places)
    extra = tuple(sample_id for sample_id in new_ids if sample_id not in known)
    kept = [row for row, sample_id in enumerate(old_ids) if sample_id in places]
    left = old.take(pa.array(kept, pa.int64()))
    right = new.take(pa.array([places[old_ids[row]] for row in kept], pa.int64()))
    names = [name for name in old.column_names if name != "sample_id" and name not in ignore]
    shared = [name for name in names if name in new.column_names]
    skipped = [name for name in names if name not in new.column_names]
    skipped += [name for name in new.column_names if name not in old.column_names and name not in ignore]
    changes: list[ColumnChange] = []
    found: list[tuple[int, int, str]] = []  # row of the old table, order of the column, its name
    if missing:
        found.append((old_ids.index(missing[0]), -1, "sample_id"))
    for order, name in enumerate(shared):
        column = Column(left[name], right[name], tolerance)
        if (change := column.change(name)) is not None:
            changes.append(change)
        if column.rows.any():
            found.append((kept[int(np.argmax(column.rows))], order, name))
    first = None
    if found:
        row, order, name = min(found)
        sample_id = old_ids[row]
        if order < 0:
            first = Difference(stage, name, sample_id, None, sample_id, ABSENT)
        else:
            pair = (old[name][row].as_py(), new[name][places[sample_id]].as_py())
            first = Difference(stage, name, sample_id, *first_token(*pair, old[name].type, tolerance))
    elif extra:
        first = Difference(stage, "sample_id", extra[0], None, ABSENT, extra[0])
    rows = (len(old_ids), len(new_ids))
    return Comparison(stage, rows, missing, extra, tuple(changes), tuple(skipped), first)


def compare_values(
    stage: str, old: Mapping[str, Any], new: Mapping[str, Any], tolerance: Tolerance = EXACT
) -> Comparison:
    """Compare two objects of numbers, texts or None by their keys: metrics, or a cursor."""
    changes: list[ColumnChange] = []
    first: Difference | None = None
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name, ABSENT), new.get(name, ABSENT)
        distance = None
        if _are_numbers(before, after):
            pair = np.array([float(before)]), np.array([float(after)])
            apart, differs, distance = bool(tolerance.apart(*pair)[0]), bool(unequal(*pair)[0]), largest(*pair)
        else:
            apart = differs = before != after
        if differs:
            changes.append(ColumnChange(name, int(apart), int(apart), distance))
        if apart and first is None:
            first = Difference(stage, name, None, None, before, after)
    return Comparison(stage, (len(old), len(new)), changes=tuple(changes), first=first)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
