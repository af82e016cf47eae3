"""Training and evaluation as deployments, on what `relax up` starts: one run that is refused, waits, is killed with and
without its worker, and is finished; its evaluations meanwhile.

The tests go on from each other, in order: one start of engines serves all.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.store import RunStore
from relax_core.run.session import run_id
from relax_core.tracking.events import read_events

pytestmark = [pytest.mark.standing, pytest.mark.e2e, pytest.mark.sglang, pytest.mark.megatron, pytest.mark.ray]

STEPS = 5
SILENT_SECONDS = 60
"""Heartbeats come each 30 s; the automation has 90."""

REGISTER = f"""
from deployments import automations
automations.SILENT_SECONDS = {SILENT_SECONDS}
print(automations.register_automations())
"""


class Inbox:
    """What was posted to ``address``, in Apprise's own JSON format."""

    def __init__(self) -> None:
        told: list[tuple[str, str]] = []
        self.told = told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.append((message["title"], message["message"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"json://127.0.0.1:{self.server.server_port}/"

    def titles(self) -> list[str]:
        return [title for title, _ in self.told]


class Deployed:
    """The run, and how Prefect sees it."""

    def __init__(self, standing: Any, folder: Path, model: Path, prompts: Path, inbox: Inbox) -> None:
        self.standing, self.folder, self.inbox = standing, folder, inbox
        self.run_dir = str(folder / "run")
        self.store = RunStore(self.run_dir)
        self.config: dict[str, Any] = {
            "run": {"run_dir": self.run_dir},
            "checkpoint": {"hf_checkpoint": str(model), "save_interval": 1},
            "data": {"prompt_data": str(prompts), "label_key": "label"},
            "rollout": {
                "num_rollout": STEPS,
                "rollout_batch_size": 2,
                "n_samples_per_prompt": 2,
                "rollout_max_response_len": 8,
                "rollout_max_context_len": 64,
            },
            "batch": {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 256},
            "reward": {"custom_rm_path": f"{folder}/held.py:reward"},
            "tracking": {"notify_urls": inbox.address},
        }
        self.hold = folder / "hold"
        (folder / "held.py").write_text(
            "import pathlib, time\n"
            "def reward(sample):\n"
            f"    while '9 + 9' not in str(sample.prompt) and pathlib.Path({str(self.hold)!r}).exists():\n"
            "        time.sleep(0.2)\n"
            "    time.sleep(0.3)\n"
            "    return 0.5\n"
        )
        few = folder / "few.jsonl"
        few.write_text('{"input": "9 + 9 =", "label": "18"}\n')
        self.config["eval"] = {"eval_prompt_data": ["few", str(few)]}
        self.first = ""

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.standing.api}/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
            return json.load(response)

    def submit(self, deployment: str, **parameters: Any) -> str:
        found = self.ask(f"deployments/name/{deployment}")["id"]
        return str(self.ask(f"deployments/{found}/create_flow_run", {"parameters": parameters})["id"])

    def state(self, flow_run: str) -> str:
        return str(self.ask(f"flow_runs/{flow_run}")["state"]["name"])

    def states(self, flow_run: str) -> list[str]:
        found = self.ask(f"flow_run_states/?flow_run_id={flow_run}")
        return [one["name"] for one in sorted(found, key=lambda one: one["timestamp"])]

    def set_state(self, flow_run: str, kind: str, name: str) -> None:
        self.ask(f"flow_runs/{flow_run}/set_state", {"state": {"type": kind, "name": name}})

    def until(self, reached: Callable[[], Any], what: str, seconds: float = 400) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := reached():
                return found
            time.sleep(0.3)
        logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in self.standing.home.glob("logs/worker*"))
        pytest.fail(f"not seen: {what}; states {self.states(self.first) if self.first else ''}\n{logs}")

    def until_state(self, flow_run: str, *names: str) -> str:
        return str(self.until(lambda: (now := self.state(flow_run)) in names and now, f"{names} of {flow_run}"))

    def until_step(self, count: int) -> None:
        self.until(lambda: self.store.exists(f"steps/{count - 1:06d}/manifest.json"), f"{count} steps")

    def driver(self) -> psutil.Process:
        claim: Any = self.store.read_json("driver.json")
        return psutil.Process(claim["pid"])

    def times_generated(self) -> list[int]:
        """How often each step was generated, and finished."""
        done = [event["step"] for event in read_events(self.store, kind="stage_finished") if event["who"] == "generate"]
        return [done.count(step) for step in range(STEPS)]


@pytest.fixture(scope="module")
def inbox() -> Iterator[Inbox]:
    box = Inbox()
    yield box
    box.server.shutdown()


@pytest.fixture(scope="module")
def deployed(
    standing: Any, tiny_model: Path, sums: Path, inbox: Inbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        os.environ.pop(name, None)
    register(standing, REGISTER, inbox.address)
    yield Deployed(standing, tmp_path_factory.mktemp("deployed"), tiny_model, sums, inbox)
    register(standing, "from deployments import automations; automations.register_automations()", inbox.address)


def register(standing: Any, program: str, address: str) -> None:
    env = {**standing.env, "RELAX_NOTIFY_URLS": address, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-P", "-c", program], env=env, cwd=standing.folder, check=True, timeout=300)


def test_bad_parameters_are_refused_at_submit_with_the_message_of_the_rule(deployed: Deployed) -> None:
    bad = {**deployed.config, "optimizer": {"lr": -1.0}}
    done = deployed.standing.prefect("deployment", "run", "train/default", "--param", f"config={json.dumps(bad)}")
    assert done.returncode != 0
    assert "--lr" in " ".join(done.stdout.split() + done.stderr.split())
    with pytest.raises(urllib.error.HTTPError) as refused:
        deployed.submit("train/default", config=bad)
    assert refused.value.code == 409
    assert "--lr" in json.loads(refused.value.read())["detail"]


def test_a_second_flow_run_of_a_directory_waits_and_can_be_cancelled(deployed: Deployed) -> None:
    deployed.first = deployed.submit("train/default", config=deployed.config)
    deployed.until(lambda: deployed.store.exists("driver.json"), "a driver")
    second = deployed.submit("train/default", config=deployed.config)
    deployed.until_state(second, "Waiting")
    assert deployed.state(deployed.first) == "Running"
    deployed.set_state(second, "CANCELLING", "Cancelling")
    deployed.until_state(second, "Cancelled")


def test_a_driver_that_was_killed_is_started_again_and_resumes(deployed: Deployed) -> None:
    deployed.until_step(1)
    deployed.driver().kill()
    deployed.until_state(deployed.first, "Crashed", "Restarting")
    deployed.until_state(deployed.first, "Running")
    deployed.until_step(2)
    assert "Restarting" in deployed.states(deployed.first)
    assert [title.partition(":")[0] for title in deployed.inbox.titles()] == ["Relax starts again"]  # not "goes on" too


def test_a_cancelled_run_ends_in_order_and_goes_on_with_retry(deployed: Deployed) -> None:
    driver = deployed.driver()
    deployed.set_state(deployed.first, "CANCELLING", "Cancelling")
    deployed.until_state(deployed.first, "Cancelled")
    assert not driver.is_running()
    assert "Crashed" not in deployed.states(deployed.first)[-4:]
    assert read_events(deployed.store, kind="driver_ended")[-1]["pid"] == driver.pid
    deployed.set_state(deployed.first, "SCHEDULED", "AwaitingRetry")  # what `Retry` in the UI does
    deployed.until_step(3)


def test_a_run_whose_worker_dies_with_it_is_found_by_its_missing_heartbeats(deployed: Deployed) -> None:
    deployed.hold.touch()  # the training is to be there still when another flow run comes
    driver = deployed.driver()
    services = json.loads((deployed.standing.home / "services.json").read_text())
    os.kill(services["worker"]["pid"], signal.SIGKILL)
    driver.kill()
    deployed.standing.relax("up", check=True)  # another worker
    assert deployed.state(deployed.first) == "Running"  # nobody has said otherwise


def test_a_schedule_evaluates_once_and_then_skips(deployed: Deployed) -> None:
    """While the heartbeats of the training are waited for."""
    evaluate = deployed.ask("deployments/name/evaluate/newest")["id"]
    made = deployed.ask(
        f"deployments/{evaluate}/schedules",
        [
            {
                "schedule": {"interval": 20.0},
                "active": True,
                "parameters": {"run_dir": deployed.run_dir},
                "slug": "often",
            }
        ],
    )
    bad = deployed.folder / "bad.jsonl"
    bad.write_text('{"input": "1 + 1 =", "label": "2"}\n')
    failing = deployed.submit(
        "evaluate/newest",
        run_dir=deployed.run_dir,
        again=True,
        config={"eval": {"eval_prompt_data": ["bad", str(bad)]}},
    )
    bad.unlink()  # after it was looked at, before the flow run begins
    of_schedule = {
        "flow_runs": {"deployment_id": {"any_": [evaluate]}, "state": {"type": {"any_": ["COMPLETED"]}}},
        "sort": "END_TIME_DESC",
    }

    def ended() -> list[tuple[str, str]]:
        states = [one["state"] for one in deployed.ask("flow_runs/filter", of_schedule)]
        return [(state["name"], state["message"]) for state in states]

    def names() -> set[str]:
        return {name for name, _ in ended()}

    deployed.until(lambda: {"Completed", "Skipped"} <= names(), "an evaluation, and one that is skipped")
    request = urllib.request.Request(
        f"{deployed.standing.api}/deployments/{evaluate}/schedules/{made[0]['id']}", method="DELETE"
    )
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)
    evaluated = [message for name, message in ended() if name == "Completed"]
    assert len(set(evaluated)) == len(evaluated)  # "weights after N steps": none twice, whatever the training did
    deployed.until_state(failing, "Failed")
    told = deployed.until(
        lambda: [text for title, text in deployed.inbox.told if title == "Relax: an evaluation failed"], "a message"
    )
    assert "bad.jsonl" in told[0]


def test_a_flow_run_that_waits_goes_on_after_the_other_and_no_step_is_repeated(deployed: Deployed) -> None:
    deployed.until(lambda: deployed.states(deployed.first).count("Restarting") == 2, "missing heartbeats")
    deployed.until_state(deployed.first, "Running", "Completed")
    waits = deployed.submit("train/default", config=deployed.config)
    assert deployed.until_state(waits, "Waiting", "Completed") == "Waiting"
    deployed.hold.unlink()
    deployed.until_state(deployed.first, "Completed")
    deployed.until_state(waits, "Completed")
    assert deployed.times_generated() == [1] * STEPS
    told = [title for title in deployed.inbox.titles() if "evaluation" not in title]
    goes_on = f"Relax goes on with {deployed.store.url}"
    again = f"Relax starts again: {deployed.run_dir}"
    assert told == [again, goes_on, again, f"Relax finished {deployed.store.url}"]
    assert "5 of 5 steps" in deployed.inbox.told[-1][1]
    assert run_id(deployed.run_dir) in deployed.ask(f"flow_runs/{deployed.first}")["tags"]
