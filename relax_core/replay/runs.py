"""Two runs, step by step: what differs between their stored tables, and where first.

Guarantee: both are only read; steps, tables and numbers that one of them has not are said and end nothing; rows are
matched by ``sample_id``. The first difference is that of the first step, in it of the first stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.replay.changes import Change, shown_differences
from relax_core.replay.columns import EXACT, Tolerance
from relax_core.replay.compare import Comparison, Difference, compare_tables, compare_values
from relax_core.replay.recorded import FILES, RecordedStep, numbers_of, recorded_config, recorded_steps

STAGE_OF = {"rollout": "generate", "reward": "reward", "forward": "forward", "batch": "advantage"}
"""Table -> the stage that writes it."""

_PASSING = ("prefix_cache_info", "spec_info")
"""Columns that say how an engine got to the samples, and not what they are."""


@dataclass(frozen=True)
class StepDifference:
    """A difference, and its step."""

    step: int
    difference: Difference


@dataclass
class StageSummary:
    """A stage over all steps.

    Attributes:
        compared: steps in which both runs have it.
        same: how many of them gave the same.
        samples: that differ, over all steps; of numbers, those that differ.
        largest: distance of two floats.
        first: the first step in which it differs.
        only: step -> which run alone has it (``A`` or ``B``).
    """

    stage: str
    compared: int = 0
    same: int = 0
    samples: int = 0
    largest: float | None = None
    first: int | None = None
    only: dict[int, str] = field(default_factory=dict)

    def add(self, step: int, found: Comparison) -> None:
        """Count a step."""
        self.compared += 1
        self.same += found.same
        self.samples += len(found.missing) + len(found.extra)
        self.samples += max((change.samples for change in found.changes), default=0)
        distances = [change.largest for change in found.changes if change.largest is not None]
        self.largest = max([*distances, *([] if self.largest is None else [self.largest])], default=None)
        if not found.same and self.first is None:
            self.first = step


@dataclass
class RunsDifference:
    """What ``diff_runs`` found.

    Attributes:
        options: that differ.
        steps: that both have and that were compared.
        only: which run (``A``, ``B``) -> steps that it alone has.
        stages: in the order of a step.
        notes: what could not be compared.
    """

    runs: tuple[str, str]
    options: Sequence[Change]
    steps: list[int]
    only: dict[str, list[int]]
    stages: list[StageSummary]
    first: StepDifference | None
    notes: list[str]

    @property
    def equal(self) -> bool:
        """Whether both have the same steps and tables, and these the same content. Options may differ."""
        lacking = any(self.only.values()) or any(stage.only for stage in self.stages)
        return self.first is None and not lacking and not self.notes

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "equal": self.equal}


def diff_runs(
    first: str, second: str, steps: tuple[int, int] | None = None, tolerance: Tolerance = EXACT
) -> RunsDifference:
    """Compare the runs at two URLs.

    Args:
        steps: first and last one to look at; None: all.
        tolerance: for floats; with one, identities of weights are not compared, since any other bit changes them.

    Raises:
        UserError: one of them is no run, or neither has such a step.
    """
    stores = RunStore(first), RunStore(second)
    there = [_steps(store, steps) for store in stores]
    for store, found in zip(stores, there, strict=True):
        if not found and not recorded_steps(store):
            raise UserError(f"{store.url} holds no steps of a run.", "Name the run directory of a run.")
    shared = sorted(set(there[0]) & set(there[1]))
    only = {"A": sorted(set(there[0]) - set(there[1])), "B": sorted(set(there[1]) - set(there[0]))}
    if not shared and steps is not None:
        raise UserError(
            f"Not both runs have a step from {steps[0]} to {steps[1]}.",
            f"A has {_span(recorded_steps(stores[0]))}, B {_span(recorded_steps(stores[1]))}.",
        )
    notes: list[str] = []
    summaries: dict[str, StageSummary] = {}
    found_first: StepDifference | None = None
    for step in shared:
        pair = RecordedStep(stores[0], step), RecordedStep(stores[1], step)
        for stage, one in _compared(*pair, tolerance, notes):
            summary = summaries.setdefault(stage, StageSummary(stage))
            if isinstance(one, str):
                summary.only[step] = one
                continue
            summary.add(step, one)
            if one.first is not None and found_first is None:
                found_first = StepDifference(step, one.first)
    options = _options(*stores, notes)
    return RunsDifference(
        (stores[0].url, stores[1].url), options, shared, only, list(summaries.values()), found_first, notes
    )


def _steps(store: RunStore, wanted: tuple[int, int] | None) -> list[int]:
    return [step for step in recorded_steps(store) if wanted is None or wanted[0] <= step <= wanted[1]]


def _span(steps: Sequence[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if steps else "none"


def _options(a: RunStore, b: RunStore, notes: list[str]) -> Sequence[Change]:
    configs: list[RelaxConfig] = []
    for name, store in (("A", a), ("B", b)):
        try:
            configs.append(recorded_config(store)[0])
        except UserError as error:
            notes.append(f"options of {name} are not compared: {error.problem}")
    return shown_differences(*configs) if len(configs) == 2 else []


def _compared(
    a: RecordedStep, b: RecordedStep, tolerance: Tolerance, notes: list[str]
) -> Iterator[tuple[str, Comparison | str]]:
    """Stage by stage of a step: what was found, or which run alone has it; stages that neither has are left out."""
    for name in FILES:
        yield from _tables(STAGE_OF[name], a.path(FILES[name]), a.store, b.store, tolerance, notes)
    for stage in ("train_critic", "train"):
        yield from _values(stage, _numbers(a.update(stage)), _numbers(b.update(stage)), tolerance)
    for folder in ("eval_before", "eval"):
        for file in sorted({*a.store.ls(a.path(folder)), *b.store.ls(b.path(folder))}):
            if file.endswith(".parquet"):
                stage = "evaluate" if folder == "eval" else "evaluate_before"
                yield from _tables(stage, a.path(f"{folder}/{file}"), a.store, b.store, tolerance, notes)
    yield from _values("manifest", _state(a, bool(tolerance)), _state(b, bool(tolerance)), tolerance)


def _tables(
    stage: str, path: str, a: RunStore, b: RunStore, tolerance: Tolerance, notes: list[str]
) -> Iterator[tuple[str, Comparison | str]]:
    there = a.exists(path), b.exists(path)
    if not any(there):
        return
    if not all(there):
        yield stage, "A" if there[0] else "B"
        return
    try:
        yield stage, _same_or_compared(stage, path, a, b, tolerance)
    except UserError as error:
        notes.append(f"{path} is not compared: {error.problem}")


def _same_or_compared(stage: str, path: str, a: RunStore, b: RunStore, tolerance: Tolerance) -> Comparison:
    if a.read_bytes(path) == b.read_bytes(path):
        rows = a.read_table(path, ["sample_id"]).num_rows
        return Comparison(stage, (rows, rows))
    old, new = a.read_table(path), b.read_table(path)
    for table in (old, new):
        if "sample_id" not in table.column_names or not pa.types.is_string(table.schema.field("sample_id").type):
            raise UserError("it has no column sample_id.")
    return compare_tables(stage, old, new, tolerance, ignore=_PASSING)


def _numbers(update: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if update is None else numbers_of(update)


def _state(step: RecordedStep, close: bool) -> Mapping[str, Any] | None:
    """Where a finished step has left the run: data cursor, versions and identities of weights."""
    manifest = step.manifest
    if not manifest:
        return None
    state: dict[str, Any] = {f"cursor.{name}": value for name, value in (manifest.get("cursor") or {}).items()}
    for entry in ("weights", "critic"):
        for name in ("version", *(() if close else ("id",))):
            if name in (manifest.get(entry) or {}):
                state[f"{entry}.{name}"] = manifest[entry][name]
    return state


def _values(
    stage: str, a: Mapping[str, Any] | None, b: Mapping[str, Any] | None, tolerance: Tolerance
) -> Iterator[tuple[str, Comparison | str]]:
    if a is None and b is None:
        return
    if a is None or b is None:
        yield stage, "A" if b is None else "B"
        return
    yield stage, compare_values(stage, a, b, tolerance)
