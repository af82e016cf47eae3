"""The timeline of a run: kept at a kill, whole on every storage, in order, a table at the end."""

import json
import logging
from pathlib import Path

import pytest

from data.errors import UserError
from data.store import RunStore
from flows.cli.main import main
from relax_core.tracking import events as module
from relax_core.tracking.events import FILE, KINDS, TABLE, EventLog, event_text, read_events


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
    return RunStore(str(tmp_path) if request.param == "folder" else f"memory://events-{tmp_path.name}")


def test_an_event_is_there_when_add_returns_and_says_who_told_it(store: RunStore) -> None:
    log = EventLog(store)
    log.add("rewind", 3, "trainer", "it was new", version=2, at=float("nan"))
    [event] = read_events(store)
    assert {key: event[key] for key in ("kind", "step", "who", "cause", "version", "at")} == {
        "kind": "rewind",
        "step": 3,
        "who": "trainer",
        "cause": "it was new",
        "version": 2,
        "at": None,  # JSON has no NaN
    }
    assert event["pid"] > 0
    assert event["host"]


def test_events_of_several_drivers_come_by_time(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    first, second = EventLog(store), EventLog(store)
    second._began += 1  # another driver of the same process id: of another start
    for place, log in enumerate([first, second, second, first, second, second, first]):
        monkeypatch.setattr(module.time, "time", lambda place=place: 100.0 + place)
        log.add("stage_started", place, "generate")
    assert [event["step"] for event in read_events(store)] == list(range(7))
    assert [event["step"] for event in read_events(store, step=4)] == [4]
    assert read_events(store, kind="rewind") == []


def test_a_line_that_a_kill_cut_off_spoils_no_other(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    EventLog(store).add("driver_started")
    with open(tmp_path / FILE, "ab") as file:
        file.write(b'{"time": 1.0, "kind": "stage_st')
    EventLog(store).add("driver_ended", cause="finished")
    assert [event["kind"] for event in read_events(store)] == ["driver_started", "driver_ended"]


def test_a_timeline_that_cannot_be_written_stops_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    log = EventLog(RunStore(str(tmp_path)))
    with caplog.at_level(logging.WARNING):
        log.add("driver_started")
        log.add("driver_ended")
        log.close()
    assert [record.message for record in caplog.records if "no more events" in record.message].__len__() == 1


def test_the_table_has_a_row_an_event(store: RunStore) -> None:
    log = EventLog(store)
    log.add("driver_started", first_step=0)
    log.add("stage_finished", 0, "train", seconds=1.5)
    log.close()
    table = store.read_table(TABLE).to_pylist()
    assert [(row["kind"], row["step"], row["who"]) for row in table] == [
        ("driver_started", None, "driver"),
        ("stage_finished", 0, "train"),
    ]
    assert json.loads(table[1]["details"]) == {"seconds": 1.5}


def test_an_unknown_kind_is_a_mistake_of_the_code(store: RunStore) -> None:
    with pytest.raises(ValueError, match="there is no event 'stage_begun'"):
        EventLog(store).add("stage_begun")


def test_without_a_run_directory_nothing_is_written() -> None:
    EventLog(None).add("driver_started")
    EventLog(None).close()


def test_a_line_for_people_says_when_where_what_who_and_why() -> None:
    event = {"time": 0.0, "kind": "rewind", "step": 4, "who": "critic", "cause": "it was new", "version": 2, "pid": 7}
    line = event_text(event)
    assert line.endswith("step 4     rewind              critic      it was new; version=2")


def test_the_command_prints_what_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(RunStore(str(tmp_path)))
    log.add("stage_started", 0, "generate")
    log.add("stage_finished", 0, "generate", seconds=2.0)
    log.add("stage_started", 1, "generate")
    assert main(["events", str(tmp_path), "--step", "0", "--kind", "stage_finished", "--json"]) == 0
    assert [json.loads(line)["seconds"] for line in capsys.readouterr().out.splitlines()] == [2.0]
    assert main(["events", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", str(tmp_path)]) == UserError("", "").exit_code
    assert "has no events.jsonl" in capsys.readouterr().err
    assert main(["events", str(tmp_path), "--kind", "rewinds"]) == UserError("", "").exit_code
    assert "Kinds: driver_started" in capsys.readouterr().err


def test_every_kind_is_told_somewhere() -> None:
    root = Path(module.__file__).parents[2]
    code = "".join(
        path.read_text() for folder in ("flows", "tasks", "relax_core") for path in (root / folder).rglob("*.py")
    )
    told = {kind for kind in KINDS for call in ("add(", "tell(", "tell(config, ") if f'{call}"{kind}"' in code}
    assert set(KINDS) - told == set()
