"""What a run shows in Prefect's interface, in a real browser."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from relax_core.run.session import run_id

pytestmark = [pytest.mark.standing, pytest.mark.e2e]

SCRIPT = Path(__file__).parents[1] / "shown_run.py"


class Seen(NamedTuple):
    """The run of ``shown_run.py``, as the server has it."""

    ui: str
    url: str
    runs: dict[str, dict[str, Any]]
    artefacts: list[dict[str, Any]]
    ask: Callable[..., Any]


@pytest.fixture(scope="module")
def seen(standing: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("shown")
    command = [sys.executable, str(SCRIPT), str(folder)]
    subprocess.run(command, env=standing.env, check=True, timeout=300, capture_output=True)
    with httpx.Client(base_url=standing.api, timeout=30) as client:

        def ask(path: str, **body: Any) -> Any:
            return client.post(f"/{path}/filter", json={"limit": 200, **body}).raise_for_status().json()

        name = run_id(str(folder / "run"))
        runs = {one["name"]: one for one in ask("flow_runs", flow_runs={"tags": {"all_": [name]}})}
        artefacts = [one for one in ask("artifacts") if str(one["key"]).startswith(name)]
        yield Seen(standing.ui, str(folder / "run"), runs, artefacts, ask)


def name_of(seen: Seen) -> str:
    return min(seen.runs, key=len)


def tasks_of(seen: Seen, step: str) -> dict[str, dict[str, Any]]:
    wanted = {"id": {"any_": [seen.runs[step]["id"]]}}
    until = time.monotonic() + 60  # the server notes tasks behind the run
    while len(found := seen.ask("task_runs", flow_runs=wanted)) < 7 and time.monotonic() < until:
        time.sleep(0.5)
    return {task["name"]: task for task in found}


def lines_of(seen: Seen, **wanted: str) -> list[str]:
    found = seen.ask("logs", sort="TIMESTAMP_ASC", logs={name: {"any_": [value]} for name, value in wanted.items()})
    return [line["message"] for line in found]


def test_steps_and_their_groups_are_called_after_the_run(seen: Seen) -> None:
    run = name_of(seen)
    steps = [f"{run}/step-{step:06d}" for step in range(5)]
    groups = [f"{run}/steps-000000-000001", f"{run}/steps-000002-000003", f"{run}/steps-000004-000004"]
    assert sorted(seen.runs) == [run, *steps, *groups]
    assert {one["state_name"] for one in seen.runs.values()} == {"Completed"}
    parents = {
        name: seen.ask("flow_runs", flow_runs={"parent_flow_run_id": {"any_": [one["id"]]}})
        for name, one in seen.runs.items()
    }
    assert sorted(one["name"] for one in parents[run]) == groups
    assert sorted(one["name"] for one in parents[groups[1]]) == steps[2:4]


def test_a_stage_under_which_something_died_says_so(seen: Seen) -> None:
    train = tasks_of(seen, f"{name_of(seen)}/step-000002")["train"]
    assert train["state_name"] == "Retried"
    assert train["state"]["message"] == "done again 1x: The trainer died (out of memory)."
    lines = lines_of(seen, task_run_id=train["id"])
    assert "trainer-rank-0: WARNING megatron: NCCL timeout" in lines
    assert any(line.startswith("loss ") for line in lines)
    assert not any("ordinary" in line for line in lines)


def test_the_log_of_the_run_is_what_the_terminal_is_told(seen: Seen) -> None:
    lines = lines_of(seen, flow_run_id=seen.runs[name_of(seen)]["id"])
    assert [line.split("  ")[0] for line in lines if "reward" in line] == [f"step {step}/5" for step in range(1, 6)]
    assert any("train is done again" in line for line in lines)


def test_a_run_has_one_bar_one_summary_and_a_table_a_step(seen: Seen) -> None:
    kinds = [one["type"] for one in seen.artefacts]
    assert {kind: kinds.count(kind) for kind in kinds} == {"progress": 1, "markdown": 1, "table": 5}
    (bar,) = [one for one in seen.artefacts if one["type"] == "progress"]
    assert bar["data"] == 100.0


def test_pages_can_be_read_in_a_browser(seen: Seen, browser: Any) -> None:
    (summary,) = [one["id"] for one in seen.artefacts if one["type"] == "markdown"]
    table = max((one for one in seen.artefacts if one["type"] == "table"), key=lambda one: one["created"])["id"]
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{seen.ui}/artifacts/artifact/{summary}")
    page.get_by_text("step 5 of 5, finished").first.wait_for()
    for text in ("Best rollouts of step 4", "Time by stage", "The trainer died (out of memory)."):
        assert page.get_by_text(text).first.is_visible(), text
    assert page.locator("img[alt=curves]").first.evaluate("image => image.naturalWidth") >= 300
    page.goto(f"{seen.ui}/artifacts/artifact/{table}")
    page.get_by_text("reward/mean").first.wait_for()
    assert page.get_by_text(f"relax show {seen.url} --step 4").first.is_visible()
    page.goto(f"{seen.ui}/runs/flow-run/{seen.runs[name_of(seen)]['id']}")
    page.get_by_text("step 5/5").first.wait_for()
    page.close()


def test_cancel_ends_a_run_that_no_worker_watches_over(standing: Any, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), "slow"]
    driver = subprocess.Popen(command, env=standing.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        with httpx.Client(base_url=standing.api, timeout=30) as client:
            whole = {"tags": {"all_": [run_id(str(tmp_path / "run"))]}}  # other tests' runs are there too
            running = {"state": {"name": {"any_": ["Running"]}}, "name": {"like_": "/step-000001"}, **whole}
            until = time.monotonic() + 120
            while not client.post("/flow_runs/filter", json={"flow_runs": running}).json():
                assert driver.poll() is None
                assert time.monotonic() < until
                time.sleep(0.5)
            runs = client.post("/flow_runs/filter", json={"flow_runs": whole}).json()
            run = min(runs, key=lambda one: len(one["name"]))["id"]
            client.post(f"/flow_runs/{run}/set_state", json={"state": {"type": "CANCELLING"}}).raise_for_status()
            _, told = driver.communicate(timeout=120)
            assert b"KeyboardInterrupt" in told
            state = client.get(f"/flow_runs/{run}").json()["state"]
            assert (state["type"], "the same command goes on" in state["message"]) == ("CANCELLED", True)
            left = client.post("/flow_runs/filter", json={"flow_runs": whole}).json()
            assert not [one["name"] for one in left if one["state_name"] == "Running"]
    finally:
        driver.kill()


def test_the_form_sends_what_was_filled_in_and_shows_why_it_is_refused(standing: Any, browser: Any) -> None:
    deployment = httpx.get(f"{standing.api}/deployments/name/train/default").json()["id"]
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    sent: list[Any] = []
    page.on("request", lambda one: sent.append(one.post_data_json) if one.url.endswith("/create_flow_run") else None)
    page.goto(f"{standing.ui}/deployments/deployment/{deployment}/run")
    page.get_by_text("--rollout-batch-size (Optional)", exact=True).wait_for()
    assert page.get_by_text("Prompts a step").count()  # the help text
    field = page.locator("[data-testid], label, div").filter(has_text="--run-dir (Optional)").last
    field.locator("xpath=following::textarea | following::input").first.fill("runs/from-the-form")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("--prompt-data: is required").first.wait_for()
    page.close()
    config = {name: options for name, options in sent[0]["parameters"]["config"].items() if name == "run"}
    assert config["run"]["run_dir"] == "runs/from-the-form"
    assert "takeover" not in config["run"]  # a switch that nobody touched is not sent
