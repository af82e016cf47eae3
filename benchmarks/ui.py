"""Seconds that the pages of a long run take in Prefect's interface, and what Prefect costs a step.

    python benchmarks/ui.py [--steps 100] [--loads 3] [--keep FOLDER] [--shots FOLDER]

Starts a Prefect server of its own, runs the real flow with an engine and a trainer that answer at once, and opens each
page in a browser (Debian's chromium, a fresh profile each time) until what it is for can be seen. 500 steps take about
six minutes. With --keep the database stays, and the next call measures it without a new run.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--loads", type=int, default=3, help="times that each page is opened; the median is shown")
    parser.add_argument("--keep", type=Path, help="folder for the run and the database, which stays")
    parser.add_argument("--shots", type=Path, help="folder for a picture of each page")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        known = folder / "prefect" / "prefect.db"
        has_run = known.exists()
        known.parent.mkdir(parents=True, exist_ok=True)
        os.environ |= {"PREFECT_HOME": str(known.parent), "RELAX_HOME": str(folder / "relax")}
        api = stack.enter_context(server())
        os.environ["PREFECT_API_URL"] = api
        if not has_run:
            print_costs(make_run(folder, options.steps), known)
        print(f"\n{'page':34} median   slowest of {options.loads}     (load of the machine: {os.getloadavg()[0]:.1f})")
        for name, seconds in measure(api, options.loads, options.shots):
            print(f"{name:34} {statistics.median(seconds):5.2f} s  {max(seconds):5.2f} s")


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A Prefect server, and the address of its API."""
    import flows.environment  # noqa: F401
    from relax_core.cluster.ports import free_port

    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    app = ["--app-dir", str(ROOT), "--factory", "deployments.server:create_app"]  # as `relax up` starts it
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        *app,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--log-level",
        "error",
    ]
    environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_UI_API_URL": api, "PREFECT_SERVER_UI_API_URL": api}
    with open(Path(os.environ["PREFECT_HOME"]) / "server.log", "ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{api}/health", timeout=2)
                break
            time.sleep(0.2)
        yield api
    finally:
        process.terminate()
        process.wait()


def make_run(folder: Path, steps: int) -> dict[str, list[float]]:
    """Run the flow.

    Returns:
        Seconds of each step but the first two: ``wall``, and what its stages took (``stages``).
    """
    from fakes import FakeBackend
    from tiny import make_tiny

    from flows.train import train
    from relax_core.config import RelaxConfig, with_options

    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"input": f"{a} + 2 =", "label": str(a + 2)}) + "\n" for a in range(64)))
    options = {
        "run_dir": str(folder / "run"),
        "hf_checkpoint": str(make_tiny(folder / "model")),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": steps,
        "rollout_batch_size": 8,
        "n_samples_per_prompt": 4,
        "rollout_max_response_len": 8,
        "rm_type": "random",
        "save_interval": 50,
    }
    train(with_options(RelaxConfig(), options), backend=FakeBackend())  # type: ignore[arg-type]
    ends, stages = [], []
    for line in (folder / "run" / "steps").iterdir():
        manifest = json.loads((line / "manifest.json").read_text())
        ends.append((line / "manifest.json").stat().st_mtime)
        stages.append(sum(manifest["seconds"].values()))
    ends.sort()
    return {"wall": [b - a for a, b in itertools.pairwise(ends)][1:], "stages": stages[2:]}


def print_costs(costs: dict[str, list[float]], database: Path) -> None:
    wall, stages = (statistics.median(costs[name]) for name in ("wall", "stages"))
    size = sum(path.stat().st_size for path in database.parent.glob("prefect.db*"))
    steps = len(costs["wall"]) + 2
    print(f"\n{steps} steps: a step took {wall * 1000:.0f} ms, its stages {stages * 1000:.0f} ms of it")
    print(f"size of the database: {size / 1e6:.1f} MB, {size / steps / 1e3:.0f} kB a step")


class Page(NamedTuple):
    """A page of the interface.

    Attributes:
        path: below the interface's address.
        text: is there when the page can be read; empty: none is waited for.
        graph: whether it is to have drawn a graph too.
    """

    path: str
    text: str
    graph: bool = False


def pages(api: str) -> dict[str, Page]:
    """The pages of the newest run, by what they show."""
    from prefect import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterType, FlowFilter, FlowFilterName
    from prefect.client.schemas.sorting import ArtifactSort, FlowRunSort

    with get_client(sync_client=True) as client:

        def runs(name: str) -> list[Any]:
            wanted = FlowFilter(name=FlowFilterName(any_=[name]))
            return client.read_flow_runs(flow_filter=wanted, sort=FlowRunSort.START_TIME_DESC, limit=200)

        whole, groups, steps = runs("train")[0], runs("steps"), runs("step")
        step = steps[len(steps) // 2]
        table, text = (
            client.read_artifacts(
                artifact_filter=ArtifactFilter(type=ArtifactFilterType(any_=[kind])),
                sort=ArtifactSort.CREATED_DESC,
                limit=1,
            )[0]
            for kind in ("table", "markdown")
        )
    found = {
        "settings (has nothing of a run)": Page("settings", "Theme"),
        "dashboard": Page("dashboard", "Flow Runs"),
        "flow runs": Page("runs", whole.name),
        "run: graph, logs": Page(f"runs/flow-run/{whole.id}", whole.name, graph=True),
        "step: graph, logs": Page(f"runs/flow-run/{step.id}", step.name, graph=True),
        "artefacts": Page("artifacts", str(table.key)),
        "versions of the steps' table": Page(f"artifacts/key/{table.key}", str(table.key)),
        "metrics of a step": Page(f"artifacts/artifact/{table.id}", "reward/mean"),
        "summary": Page(f"artifacts/artifact/{text.id}", "Time by stage"),
    }
    if groups:
        found["group of steps: graph"] = Page(f"runs/flow-run/{groups[0].id}", groups[0].name, graph=True)
    return found


def measure(api: str, loads: int, shots: Path | None) -> Iterator[tuple[str, list[float]]]:
    """Name of a page and the seconds of each load, in a browser that has seen none of it before."""
    from playwright.sync_api import sync_playwright

    ui = api.removesuffix("/api")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, wanted in pages(api).items():
            seconds = []
            for number in range(loads):
                context = browser.new_context(viewport={"width": 1500, "height": 1000})
                page = context.new_page()
                graphs: list[str] = []
                page.on(
                    "requestfinished", lambda asked, seen=graphs: "graph-v2" in asked.url and seen.append(asked.url)
                )
                started = time.perf_counter()
                page.goto(f"{ui}/{wanted.path}")
                page.get_by_text(wanted.text).first.wait_for(timeout=60_000)
                if wanted.graph:
                    page.locator("canvas").first.wait_for(timeout=60_000)
                    while not graphs:
                        page.wait_for_timeout(20)
                seconds.append(time.perf_counter() - started)
                if shots and number == 0:
                    shots.mkdir(parents=True, exist_ok=True)
                    page.wait_for_timeout(3000)
                    page.screenshot(path=str(shots / f"{re.sub('[^a-z]+', '-', name)}.png"))
                context.close()
            yield name, seconds
        browser.close()


if __name__ == "__main__":
    main()
