"""Where a run is, by its timeline."""

import json
from pathlib import Path
from typing import Any

import pytest

from relax_core.tracking import position
from relax_core.tracking.position import Running


def event(time: float, kind: str, step: int | None = None, who: str = "driver", **more: Any) -> dict[str, Any]:
    return {"time": time, "kind": kind, "step": step, "who": who, **more}


def step_events(step: int, at: float) -> list[dict[str, Any]]:
    """A step that is finished; its weights are version ``step + 1``."""
    return [
        event(at, "stage_started", step, "generate"),
        event(at + 1, "stage_finished", step, "generate"),
        event(at + 2, "stage_started", step, "train"),
        event(at + 3, "stage_finished", step, "train"),
        event(at + 4, "weight_sync", step, version=step + 1),
        event(at + 5, "step_committed", step, seconds=5.0),
    ]


def test_the_stage_that_runs_and_what_is_done() -> None:
    events = [event(0, "driver_started", first_step=0), *step_events(0, 1), event(7, "stage_started", 1, "generate")]
    found = position.position(events)
    assert found.running == [Running(1, "generate", 7)]
    assert (found.done, found.version, found.step_seconds) == (1, 1, 5.0)
    assert found.staleness == 0  # step 1 is generated with version 1


def test_steps_that_overlap_are_all_shown_and_their_staleness() -> None:
    # Steps 1 and 2 generate and train at a time; the engines have version 1, so step 2 is made by weights one behind.
    events = [
        event(0, "driver_started", first_step=0),
        *step_events(0, 1),
        event(7, "stage_started", 1, "train"),
        event(8, "stage_started", 2, "generate"),
    ]
    found = position.position(events)
    assert [(one.step, one.stage) for one in found.running] == [(1, "train"), (2, "generate")]
    assert found.staleness == 1


def test_between_stages_the_last_event_is_told() -> None:
    found = position.position([event(0, "driver_started"), *step_events(0, 1)[:2]])
    assert (found.running, found.last, found.staleness) == ([], "generate finished", None)
    assert position.position(step_events(0, 1)).last == "step committed"
    waiting = event(1, "waiting", who="step 1", cause="for the end of ensure_engines", seconds=60)
    assert position.position([waiting]).last == "waiting for the end of ensure_engines"


def test_what_a_former_driver_left_open_does_not_count() -> None:
    events = [
        event(0, "driver_started"),
        event(1, "stage_started", 3, "train"),
        event(2, "driver_started", first_step=3),
    ]
    found = position.position(events)
    assert (found.running, found.done) == ([], 3)


def test_of_a_long_timeline_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event(0, "driver_started"), *[one for step in range(50) for one in step_events(step, 10.0 * step)]]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events) + '{"time": 1, "ki')
    monkeypatch.setattr(position, "TAIL_BYTES", 2000)
    found = position.position_of(str(tmp_path))
    assert (found.done, found.version, found.running) == (50, 50, [])


def test_a_run_without_a_timeline_is_nowhere(tmp_path: Path) -> None:
    assert position.position_of(str(tmp_path)) == position.Position()
