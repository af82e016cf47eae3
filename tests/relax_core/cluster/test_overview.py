"""What `relax status` shows."""

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from relax_core.cluster import drivers, looking, overview, ports, services
from relax_core.cluster.access import basic, prefect_auth


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(overview, "device_memory", dict)
    return tmp_path / "home"


def this_process(name: str, address: str, **facts: Any) -> services.Service:
    created = psutil.Process().create_time()
    return services.Service(name, address, os.getpid(), created, "/logs/it.log", **facts)


def test_without_anything_it_says_so_and_needs_neither_ray_nor_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "relax_core.cluster.looking", None)  # an import of it would fail
    found = overview.overview()
    assert found == {"services": [], "runs": [], "actors": [], "queue": None}
    text = "\n".join(overview.lines(found))
    assert "nothing stands" in text
    assert "none" in text


def test_a_run_with_its_step_stage_weights_and_staleness(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    told = [
        {"time": 100, "kind": "driver_started", "step": None, "who": "driver", "first_step": 0},
        {"time": 101, "kind": "weight_sync", "step": 1, "who": "driver", "version": 2},
        {"time": 102, "kind": "step_committed", "step": 1, "who": "driver", "seconds": 3.5},
        {"time": 110, "kind": "stage_started", "step": 2, "who": "train"},
        {"time": 120, "kind": "stage_started", "step": 3, "who": "generate"},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    with drivers.driving("run-1", str(run), 8, 2):
        found = overview.overview()
    (row,) = found["runs"]
    assert (row["done"], row["version"], row["staleness"], row["max_staleness"]) == (2, 2, 1, 2)
    assert row["memory"] > 2**20
    json.dumps(found)
    text = "\n".join(overview.lines(found, now=130.0))
    assert "2 of 8 steps done" in text
    assert "step 3: train for 20 s" in text
    assert "step 4: generate for 10 s" in text
    assert "weights 2, staleness 1 (at most 2), last step 3.5 s" in text


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ("actor started", "    starting trainer and engines, after: actor started"),
        ("reward finished", "    between stages, after: reward finished"),
    ],
)
def test_a_run_that_computes_no_stage_says_what_came_last(last: str, text: str) -> None:
    row = {"run": "runs/a", "steps": 8, "running": [], "last": last, "done": 0, "pid": 1}
    row |= dict.fromkeys(("version", "staleness", "max_staleness", "step_seconds"))
    assert overview.lines({"services": [], "runs": [row], "actors": [], "queue": None})[-1] == text


def test_a_service_that_died_is_told_with_its_log() -> None:
    services.record({"worker": services.Service("worker", "http://127.0.0.1:1/api", 1, 0.0, "/logs/worker.log")})
    text = "\n".join(overview.lines(overview.overview()))
    assert "worker   died; `relax up` starts it again. Its log: /logs/worker.log" in text


def test_a_server_that_does_not_answer_holds_nothing_up(own_home: Path) -> None:
    services.record({"prefect": this_process("prefect", f"http://127.0.0.1:{ports.free_port()}/api")})
    found = overview.overview()
    assert "refused" in found["queue"]["problem"]
    assert any("does not say" in line for line in overview.lines(found))


@pytest.fixture
def server(own_home: Path) -> Iterator[services.Service]:
    """A Prefect server that knows three flow runs and a worker, and asks for the password."""
    now = datetime.now(UTC)
    runs = [
        {"id": "1", "name": "one", "state_type": "RUNNING", "state_name": "Running", "start_time": _ago(now, 60)},
        {"id": "2", "name": "two", "state_type": "SCHEDULED", "state_name": "AwaitingConcurrencySlot"},
        {"id": "3", "name": "later", "state_type": "SCHEDULED", "state_name": "Scheduled"},
    ]
    runs[1]["expected_start_time"], runs[2]["expected_start_time"] = _ago(now, 10), _ago(now, -3600)
    answers = {
        "/api/flow_runs/filter": runs,
        "/api/work_pools/relax/workers/filter": [{"name": "w", "status": "OFFLINE"}],
    }
    auth = basic(prefect_auth(own_home, {}))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            allowed = self.headers["Authorization"] == auth
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(answers[self.path] if allowed else {}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=listening.serve_forever, daemon=True).start()
    yield this_process("prefect", f"http://127.0.0.1:{listening.server_port}/api", protected=True)
    listening.shutdown()
    listening.server_close()


def _ago(now: datetime, seconds: float) -> str:
    return (now - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def test_flow_runs_that_run_wait_or_come_later(server: services.Service) -> None:
    found = overview.queue(server)
    assert [one["name"] for one in found["running"]] == ["one"]
    assert [(one["name"], one["state"]) for one in found["waiting"]] == [("two", "AwaitingConcurrencySlot")]
    assert found["scheduled"] == 1
    text = "\n".join(overview.lines({"services": [], "runs": [], "actors": [], "queue": found}))
    assert "runs    one  since 60 s" in text
    assert "waits   two  AwaitingConcurrencySlot, since 10 s" in text
    assert "1 scheduled for later" in text
    assert "no worker is online" in text


def test_without_the_password_the_server_refuses_and_that_is_told(server: services.Service, own_home: Path) -> None:
    (own_home / "secrets" / "prefect-auth").unlink()
    assert "401" in overview.queue(server)["problem"]


def test_an_actor_says_its_version_and_what_it_is_busy_with() -> None:
    trainer = {"version": 3, "busy_with": "train", "dirty": False, "broken": "", "epoch": 2}
    assert overview.describe(trainer) == {"version": 3, "busy_with": "train"}
    engine = SimpleNamespace(index=0, url="http://127.0.0.1:1", pid=7, weight_version=0)
    assert overview.describe(engine) == {"version": 0, "url": "http://127.0.0.1:1"}


def test_a_head_that_cannot_be_reached_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test of this process may have connected it to a head: that one would be asked then.
    monkeypatch.setattr(looking.ray, "is_initialized", lambda: False)
    (row,) = looking.actors_of(f"127.0.0.1:{ports.free_port()}", 5)
    assert "No Ray head answers" in row["problem"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (119, "119 s"),
        (150, "2 min"),
        (7500, "2 h 5 min"),
        (183600, "2 d 3 h"),
    ],  # 183600 = 2*86400 + 3*3600
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert overview.seconds_text(seconds) == text


def test_memory_is_short() -> None:
    assert overview.bytes_text(512 * 2**20) == "512 MiB"
    assert overview.bytes_text(3 * 2**30 + 2**27) == "3.1 GiB"


def test_gpu_memory_is_added_up_by_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '7, 100'\necho '7, 28'\necho '8, [N/A]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert overview.device_memory() == {7: 128 * 2**20}
