"""Timelines in Chrome's trace format."""

import json
import time
from pathlib import Path

import pytest

from relax_core.config import RelaxConfig, with_options
from relax_core.run.clock import StepClock
from relax_core.tracking.timeline import ROLES, Span, trace, write_timeline

SPANS = [Span("generate", 100.0, 2.5), Span("train", 102.5, 0.25), Span("reward", 103.0, 0.001)]


def test_a_stage_is_an_event_of_its_role() -> None:
    events = trace(4, SPANS)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert list(names.values()) == list(ROLES[:3])
    stages = [(event["name"], names[event["pid"]], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert stages == [
        ("generate", "rollout", 100_000_000, 2_500_000),
        ("train", "actor", 102_500_000, 250_000),
        ("reward", "driver", 103_000_000, 1_000),
    ]
    assert all(event["args"] == {"step": 4} for event in events if event["ph"] == "X")


def test_a_critic_is_a_process_where_it_worked() -> None:
    events = trace(0, [*SPANS, Span("train_critic", 104.0, 1.0)])["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == list(ROLES)
    assert [event["pid"] for event in events if event["name"] == "train_critic"] == [ROLES.index("critic")]


@pytest.mark.parametrize("folder", ["{tmp}/lines", "memory://timeline-test"])
def test_a_step_leaves_one_file(folder: str, tmp_path: Path) -> None:
    import fsspec

    folder = folder.format(tmp=tmp_path)
    write_timeline(with_options(RelaxConfig(), {"timeline_dump_dir": folder}), 12, SPANS)
    with fsspec.open(f"{folder}/timeline_step_12.json") as file:
        assert json.load(file) == trace(12, SPANS)


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_timeline(RelaxConfig(), 12, SPANS)
    assert list(tmp_path.iterdir()) == []


def test_the_clock_of_a_step_has_each_stage_once() -> None:
    clock = StepClock()
    clock.begin()
    before = time.time()
    started = time.perf_counter()
    time.sleep(0.01)
    assert clock.ran("a", started) == clock.seconds["a"] >= 0.01
    clock.ran("b", time.perf_counter())
    clock.ran("a", started)
    assert list(clock.seconds) == ["b", "a"]
    assert clock.elapsed >= clock.seconds["a"]
    assert abs(clock.spans[1].began - before) < 5
    clock.begin()
    assert clock.spans == []
