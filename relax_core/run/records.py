"""Stage records: which stages of a step are finished, with what identity and what output.

Guarantee: a record is written after its artefact is visible, is found again only under the same key and only while
every table that it names still exists with the recorded content, and survives without any database: it is a JSON file
in the run directory, ``steps/000012/stages/<stage>.json``.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data.store import RunStore, TableRef

log = logging.getLogger(__name__)


def fingerprint(value: Any) -> str:
    """Short SHA-256 of a JSON value; equal values give equal fingerprints, whatever the order of their keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class StageRecord:
    """A finished stage.

    Attributes:
        key: identity of the stage: options that change its output, its inputs, its code where that is the user's.
        tables: the tables that it wrote, by name.
        values: its other results (metrics, versions).
        seconds: wall time of the computation.
    """

    stage: str
    key: str
    tables: dict[str, TableRef] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def table(self) -> TableRef:
        """The main table of a stage: the only one, or the rollout where a buffer is beside it."""
        if len(self.tables) > 1:
            return self.tables["rollout"]
        (reference,) = self.tables.values()
        return reference

    @property
    def inputs(self) -> dict[str, TableRef]:
        """The tables that other stages of the step read: a buffer is for the next one."""
        return {name: reference for name, reference in self.tables.items() if name != "buffer"}

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "key": self.key,
            "tables": {name: reference.to_json() for name, reference in self.tables.items()},
            "values": self.values,
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "StageRecord":
        tables = {name: TableRef.from_json(reference) for name, reference in row["tables"].items()}
        return cls(row["stage"], row["key"], tables, dict(row["values"]), float(row["seconds"]))


class StageRecords:
    """The stage records of one run."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def _path(self, step: int, stage: str) -> str:
        return self._store.step_path(step, f"stages/{stage}.json")

    def last(self, step: int, stage: str) -> StageRecord | None:
        """The record of a stage whatever its key, or None when it is missing, damaged or its tables are gone."""
        row = self._store.read_json(self._path(step, stage))
        if row is None:
            return None
        try:
            record = StageRecord.from_json(row)
        except (KeyError, TypeError, ValueError):
            log.warning("step %d: the record of %s is damaged; the stage runs again", step, stage)
            return None
        for reference in record.tables.values():
            if not self._store.valid(reference):
                log.warning("step %d: %s is missing or was changed; %s runs again", step, reference.path, stage)
                return None
        return record

    def find(self, step: int, stage: str, key: str) -> StageRecord | None:
        """The record of a stage with this identity."""
        record = self.last(step, stage)
        if record is not None and record.key != key:
            log.info("step %d: %s runs again: its options, inputs or code changed", step, stage)
            return None
        return record

    def write(self, step: int, record: StageRecord) -> None:
        """Make a finished stage durable."""
        self._store.write_json(self._path(step, record.stage), record.to_json())
