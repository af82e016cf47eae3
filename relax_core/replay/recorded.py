"""A step as a run directory has it, only to be read.

Guarantee: nothing is ever written there, no probe either, so that a run that someone else drives, or that may only be
read, can be looked at. What is missing is None, or an error that says what is there.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from data.errors import UserError
from data.schema import FORWARD, FORWARD_COLUMNS
from data.store import RunStore, TableRef
from relax_core.config import RelaxConfig, Source, run_file
from relax_core.run.records import StageRecord, StageRecords

FILES = {
    "rollout": "rollout.parquet",
    "reward": "reward.parquet",
    "forward": "forward.parquet",
    "batch": "batch.parquet",
}
"""Table -> its file in the folder of a step."""

TABLE_OF = {
    "rollout": "generate/rollout",
    "reward": "reward/reward",
    "forward": "forward/forward",
    "batch": "advantage/batch",
}
"""Table -> its name in the step's manifest."""


def recorded_steps(store: RunStore) -> list[int]:
    """Steps that have a folder, finished or not."""
    return sorted(int(name) for name in store.ls("steps") if name.isdigit())


def recorded_config(store: RunStore) -> tuple[RelaxConfig, dict[str, Source]]:
    """The configuration of a run, as it resolved it.

    Raises:
        UserError: there is none, or it is not whole.
    """
    if not store.exists("config.yaml"):
        raise UserError(f"{store.url} holds no run: config.yaml is missing.", "Name the run directory of a run.")
    return run_file.load(store.read_bytes("config.yaml").decode(errors="replace"))


@dataclass(frozen=True)
class RecordedStep:
    """One step of a run."""

    store: RunStore
    step: int

    def path(self, name: str) -> str:
        """Of one of its files, below the run directory."""
        return self.store.step_path(self.step, name)

    def table(self, name: str) -> pa.Table | None:
        """A table by its name in ``FILES``; None where it is missing.

        Raises:
            UserError: it is damaged, or of a newer version.
        """
        path = self.path(FILES[name])
        return self.store.read_table(path) if self.store.exists(path) else None

    def needed(self, name: str) -> pa.Table:
        """``table``, where it must be there.

        Raises:
            UserError: it is missing.
        """
        found = self.table(name)
        if found is None:
            missing = f"{self.store.url} has no {FILES[name]} of step {self.step}"
            if not self.manifest:
                raise UserError(f"{missing}, which is not finished.", self._advice())
            raise UserError(f"{missing}.", "Restore the file, or choose another step.")
        return found

    def _advice(self) -> str:
        """What to do about a step that is not finished."""
        finished = [step for step in recorded_steps(self.store) if self.store.read_manifest(step)]
        done = f", or choose a finished step: {finished[0]} to {finished[-1]}" if finished else ""
        return f"Let the run finish it (`relax train` with --run-dir {self.store.url} goes on){done}."

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What the step's manifest says; nothing where the step is not finished."""
        return self.store.read_manifest(self.step) or {}

    def update(self, name: str) -> Mapping[str, Any] | None:
        """What the trainer said of an update (``train``, ``train_critic``); None where it is missing."""
        found = self.store.read_json(self.path(f"{name}.json"))
        return found if isinstance(found, dict) else None

    def record(self, stage: str) -> StageRecord | None:
        """The record of a stage; None where it, or a table that it names, is not there as it was written."""
        level, logger = logging.NOTSET, logging.getLogger("relax_core.run.records")
        level, logger.level = logger.level, logging.ERROR  # "runs again" is not what happens here
        try:
            return StageRecords(self.store).last(self.step, stage)
        finally:
            logger.level = level

    @property
    def named(self) -> Mapping[str, Any]:
        """References of the step's tables, by ``TABLE_OF``'s names; none where the step is not finished."""
        tables = self.manifest.get("tables")
        return tables if isinstance(tables, dict) else {}

    def as_named(self, name: str) -> bool:
        """Whether a table is the one that the step's manifest names; also where it names none."""
        row = self.named.get(TABLE_OF[name])
        return row is None or self.store.valid(TableRef.from_json(row))


def open_step(url: str, step: int) -> RecordedStep:
    """A step of the run at ``url``.

    Raises:
        UserError: there is no run, or no such step.
    """
    store = RunStore(url)
    steps = recorded_steps(store)
    if not steps:
        raise UserError(f"{store.url} holds no steps of a run.", "Name the run directory of a run.")
    if step not in steps:
        there = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        raise UserError(f"{store.url} has no step {step}.", f"It has {there}.")
    return RecordedStep(store, step)


def numbers_of(update: Mapping[str, Any]) -> dict[str, float]:
    """What of an update's answer is the same however often it is made: its metrics, and counts."""
    counts = {name: update[name] for name in ("optimizer_step", "tokens") if name in update}
    return {**update.get("metrics", {}), **counts}


def only(forward: pa.Table | None, columns: Sequence[str]) -> pa.Table | None:
    """Schema ``FORWARD`` with these columns, the others null; None where there are none."""
    if forward is None or not columns:
        return None
    for name in FORWARD_COLUMNS:
        if name not in columns:
            field = FORWARD.field(name)
            nothing = pa.nulls(forward.num_rows, field.type)
            forward = forward.set_column(forward.schema.get_field_index(name), field, nothing)
    return forward


def out_store(run: RunStore, out: str) -> RunStore:
    """Where results go.

    Raises:
        UserError: that is in the run directory.
    """
    store = RunStore(out)
    inside = f"{store.root}/".startswith(f"{run.root}/")
    if type(store.fs) is type(run.fs) and inside:
        raise UserError(f"--out {out} is in the run directory, which a replay does not touch.", "Name another folder.")
    return store
