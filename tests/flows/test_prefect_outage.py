"""A Prefect server that dies in the middle of a run, for good."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import FAKES

from data.store import RunStore
from relax_core.tracking.events import read_events

# In its second step the run ends the server that `relax up` has started.
WITHOUT_SERVER = f"""
import os, signal
import flows.environment
from relax_core.cluster import services
from relax_core.tracking.progress import Progress
real = Progress.stage
def stage(self, step, name):
    if (step, name) == (1, "reward"):
        os.kill(services.recorded()["prefect"].pid, signal.SIGKILL)
    return real(self, step, name)
Progress.stage = stage
{FAKES}
"""


@pytest.mark.e2e
def test_a_run_that_lost_its_server_goes_on_without_it(
    tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "prefect").mkdir(parents=True)
    monkeypatch.setenv("RELAX_HOME", str(home))
    monkeypatch.setenv("PREFECT_HOME", str(home / "prefect"))
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "0")  # else a call waits half a minute for it
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    from relax_core.cluster import services

    server = services.start_prefect()
    words = f"train --run-dir {tmp_path}/run --hf-checkpoint {tiny_model} --prompt-data {sums} --label-key label"
    words += " --rm-type random --num-rollout 3 --rollout-batch-size 2 --n-samples-per-prompt 2"
    words += " --rollout-max-response-len 8 --rollout-max-context-len 64"

    def train(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", program, *words.split()]
        env = {**os.environ, **environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)

    try:
        first = train(WITHOUT_SERVER)
    finally:
        services.stop()
    assert first.returncode == 75, first.stderr  # what --use-health-check starts again
    assert f"The Prefect server at {server.address} stopped answering" in first.stderr
    assert "the same command goes on" in first.stderr
    assert "Traceback" not in first.stderr
    assert first.stderr.count("failed to process item") <= 1  # each event that it is offered takes seconds at the end

    second = train(FAKES, PREFECT_API_URL=server.address)
    assert second.returncode == 0, second.stderr
    assert f"no Prefect server answers at {server.address}" in second.stdout
    store = RunStore(f"{tmp_path}/run")
    assert store.last_complete_step() == 2
    generated = [event for event in read_events(store, 1, "stage_started") if event["who"] == "generate"]
    assert len(generated) == 1  # nothing is lost
