"""All standing services at once."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.errors import UserError
from relax_core.cluster import services, standing
from relax_core.cluster.standing import Wish

REGISTER = [sys.executable, "-c", "print('registered work pool relax')"]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Services as records of this process; what was started, with its arguments, in order."""
    monkeypatch.setenv("RELAX_HOME", str(tmp_path))
    monkeypatch.setattr(services, "has_pool", lambda server: True)
    calls: dict[str, Any] = {}

    def start(name: str, address: str) -> Any:
        def do(*args: Any, **kwargs: Any) -> services.Service:
            standing_one = services.recorded().get(name)
            if standing_one is not None:
                return standing_one
            calls[name] = (args, kwargs)
            process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            created = psutil.Process(process.pid).create_time()
            service = services.Service(name, address, process.pid, created, f"{name}.log")
            with services._lock:
                services.record({**services.remembered(), name: service})
            return service

        return do

    monkeypatch.setattr(services, "start_ray", start("ray", "127.0.0.1:1"))
    monkeypatch.setattr(services, "start_prefect", start("prefect", "http://127.0.0.1:2/api"))
    monkeypatch.setattr(services, "start_worker", start("worker", "http://127.0.0.1:2/api"))
    return calls


def end(service: services.Service) -> None:
    """Kill it, and wait until it is seen to be dead."""
    process = psutil.Process(service.pid)
    process.kill()
    process.wait(10)


def wish(tmp_path: Path, **more: Any) -> Wish:
    return Wish(str(tmp_path), more.pop("register", REGISTER), **more)


def test_all_is_started_told_and_ended_and_the_worker_ends_first(started: dict[str, Any], tmp_path: Path) -> None:
    said: list[str] = []
    found = standing.raise_services(wish(tmp_path, host="h", ray_port=1, prefect_port=2), said.append)
    assert sorted(found) == ["prefect", "ray", "worker"]
    assert started["ray"] == ((1,), {"host": "h", "ports": None})
    assert started["prefect"] == ((2, "h"), {})
    assert started["worker"] == ((found["prefect"], str(tmp_path)), {})
    assert "register work pool relax" in said
    assert sum("started in" in line for line in said) == 3

    again: list[str] = []
    standing.raise_services(wish(tmp_path), again.append)
    assert sum("stands already" in line for line in again) == 3

    services.remembered()["worker"]
    end(found["worker"])
    mended: list[str] = []
    standing.raise_services(wish(tmp_path), mended.append)
    assert ["worker" in line for line in mended if "started in" in line] == [True]

    ended: list[str] = []
    order = [service.name for service in standing.end_services(ended.append)]
    assert order == ["worker", "prefect", "ray"]
    assert not any(service.alive() for service in found.values())
    assert standing.end_services(ended.append) == []


def test_the_folder_of_a_worker_stays_until_relax_down(started: dict[str, Any], tmp_path: Path) -> None:
    """Runs of a worker that died go on where they are, wherever `relax up` is called the next time."""
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    register = [sys.executable, "-c", "import os; print('registered in', os.path.basename(os.getcwd()))"]
    found = standing.raise_services(wish(first, register=register), lambda text: None)
    record = services.remembered()
    services.record({**record, "worker": replace(record["worker"], folder=str(first))})
    end(found["worker"])
    said: list[str] = []
    standing.raise_services(wish(other, register=register), said.append)
    assert started["worker"][0][1] == str(first)
    assert "register in first" in said

    record = services.remembered()
    services.record({**record, "worker": replace(record["worker"], folder=str(tmp_path / "gone"))})
    with pytest.raises(UserError, match="which is gone"):
        standing.raise_services(wish(other), said.append)
    standing.end_services(said.append)


def test_a_machine_that_only_serves_has_no_worker(started: dict[str, Any], tmp_path: Path) -> None:
    found = standing.raise_services(wish(tmp_path, worker=False), lambda text: None)
    assert sorted(found) == ["prefect", "ray"]
    standing.end_services(lambda text: None)


def test_what_fails_is_told_and_the_rest_stays(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise UserError("The ray service ended at once.")

    monkeypatch.setattr(services, "start_ray", fail)
    with pytest.raises(UserError, match="ray service ended"):
        standing.raise_services(wish(tmp_path), lambda text: None)
    assert sorted(services.recorded()) == ["prefect", "worker"]
    standing.end_services(lambda text: None)


def test_registering_is_tried_again_and_its_failure_shows_the_log(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing.time, "sleep", lambda seconds: None)
    once = f"import pathlib, sys; p = pathlib.Path({str(tmp_path / 'tried')!r}); first = not p.exists(); p.touch()"
    flaky = [sys.executable, "-c", f"{once}; print('registered it' if not first else 'busy'); sys.exit(first)"]
    said: list[str] = []
    standing.raise_services(wish(tmp_path, register=flaky, worker=False), said.append)
    assert "register it" in said
    never = [sys.executable, "-c", "print('it is not right'); raise SystemExit(1)"]
    with pytest.raises(UserError, match=r"were not registered(?s:.*)it is not right"):
        standing.raise_services(wish(tmp_path, register=never, worker=False), said.append)
    standing.end_services(said.append)


def test_what_was_registered_is_told_by_kind() -> None:
    made = ["work pool relax", "deployment train/a", "deployment train/b", "automation relax: goes on"]
    assert standing._by_kind(made).splitlines() == [
        "work pool relax",
        "         deployments train/a, train/b",
        "         automation relax: goes on",
    ]


def test_long_waits_are_told(started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "TELL_SECONDS", 0.01)
    start, said = services.start_ray, []  # type: ignore[var-annotated]

    def slow(*args: Any, **kwargs: Any) -> services.Service:
        while not any("the Ray head" in line for line in said):
            time.sleep(0.01)
        return start(*args, **kwargs)

    monkeypatch.setattr(services, "start_ray", slow)
    standing.raise_services(wish(tmp_path, worker=False), said.append)
    assert any(line.startswith("waiting for ") for line in said)
    standing.end_services(said.append)


def test_flow_runs_of_the_worker_are_asked_to_end_before_it(
    started: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with a child that notes its SIGTERM; the worker itself would have killed it without a word."""
    note = tmp_path / "note"
    child = (
        "import pathlib, signal, sys, time\n"
        f"def end(*_): pathlib.Path({str(note)!r}).write_text('ended in order'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    created = psutil.Process(process.pid).create_time()
    services.record({"worker": services.Service("worker", "", process.pid, created, "")})
    said: list[str] = []
    standing.end_services(said.append)
    assert note.read_text() == "ended in order"
    assert said[0] == "ending 1 flow run of the worker, in order"
    process.stdout.close()
