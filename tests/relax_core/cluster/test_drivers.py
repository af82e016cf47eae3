"""Drivers of this machine: what `relax status` finds."""

import json
import os
from pathlib import Path

import pytest

from relax_core.cluster import drivers


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAX_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT__FLOW_RUN_ID", raising=False)
    return tmp_path


def test_a_driver_is_found_while_it_drives_and_not_after() -> None:
    with drivers.driving("a-1", "/runs/a", 4, 1):
        drivers.note(ray="127.0.0.1:1")
        (found,) = drivers.living()
        assert (found.id, found.run, found.steps, found.max_staleness) == ("a-1", "/runs/a", 4, 1)
        assert (found.pid, found.ray) == (os.getpid(), "127.0.0.1:1")
    assert drivers.living() == []


def test_what_a_kill_left_behind_counts_for_nothing(own_home: Path) -> None:
    with drivers.driving("a-1", "/runs/a"):
        path = own_home / "drivers" / "a-1.json"
        row = json.loads(path.read_text())
        path.with_name("b-1.json").write_text(json.dumps({**row, "id": "b-1", "created": row["created"] - 1000}))
        path.with_name("c-1.json").write_text("{")
        assert [driver.id for driver in drivers.living()] == ["a-1"]


def test_what_a_later_driver_of_the_run_wrote_is_left(own_home: Path) -> None:
    with drivers.driving("a-1", "/runs/a"):
        path = own_home / "drivers" / "a-1.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 1}))
    assert path.exists()


def test_a_folder_that_cannot_be_written_stops_no_run(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own_home / "drivers").write_text("a file")
    with drivers.driving("a-1", "/runs/a"):
        drivers.note(ray="127.0.0.1:1")
    assert "`relax status` will not show this run" in capsys.readouterr().err
    assert drivers.living() == []


def test_without_a_run_there_is_nothing_to_note(own_home: Path) -> None:
    drivers.note(ray="127.0.0.1:1")
    assert not (own_home / "drivers").exists()
