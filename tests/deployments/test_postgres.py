"""Prefect on PostgreSQL: a small run with engines that answer at once, on a server of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from postgres import binaries, running

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(binaries() is None, reason="no PostgreSQL here")]


def test_a_run_is_kept_in_postgresql(tmp_path: Path) -> None:
    left_out = ("PREFECT_", "RELAX_")  # another test's server
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    with running() as server:
        environment |= {"PREFECT_API_DATABASE_CONNECTION_URL": server.url, "TMPDIR": str(tmp_path)}
        command = [sys.executable, str(ROOT / "benchmarks/step_overhead.py"), "--steps", "4"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        joined = "flow_run JOIN flow ON flow.id = flow_id GROUP BY 1, 2"
        rows = server.ask(f"SELECT flow.name, state_type, count(*) FROM {joined}")
        stages = server.ask("SELECT count(*) FROM task_run WHERE state_type = 'COMPLETED'")
    assert sorted(rows.splitlines()) == ["step|COMPLETED|4", "train|COMPLETED|1"]
    assert int(stages) >= 4 * 6
    assert not list(tmp_path.rglob("prefect.db"))  # nothing in SQLite
