"""The whole way through Prefect on GPUs: `relax up`, a deployed training on one, an evaluation on a free one meanwhile.

    python benchmarks/gpu/through_prefect.py [--steps 40] [--size 135m] [--out FOLDER]
    python benchmarks/gpu/through_prefect.py --rehearse      # without a GPU: a tiny model, in float32

A random model is trained by the deployment `train/default` (colocated on the first GPU, a checkpoint every four steps);
from step 6 on the deployment `evaluate/newest` scores its newest checkpoint on another GPU. Prints what `relax status`
says meanwhile, seconds of a step before, during and after the evaluation (of those that write no checkpoint), and how
both flow runs ended. Fails where one did not end as Completed, or a step failed or was repeated. What it saw goes to
``FOLDER/through_prefect.json`` too.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from colocate import options as colocated
from models import SIZES, write_model

FIRST = 6
"""Steps before the evaluation; engines and caches are warm by then."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--size", choices=SIZES, default="135m")
    parser.add_argument("--out", type=Path, help="folder of through_prefect.json and of the logs; by default none")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model, in float32")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ |= {"RELAX_HOME": str(folder / "relax"), "PREFECT_HOME": str(folder / "prefect")}
        os.environ.pop("PREFECT_API_URL", None)
        (folder / "prefect").mkdir()
        try:
            return measure(folder, chosen)
        finally:
            relax(folder, "down")
            if chosen.out is not None:
                shutil.copytree(folder / "relax" / "logs", chosen.out / "logs", dirs_exist_ok=True)


def measure(folder: Path, chosen: argparse.Namespace) -> int:
    run_file = written(folder, chosen)
    began = time.perf_counter()
    print(relax(folder, "up"), f"`relax up`: {time.perf_counter() - began:.1f} s", sep="\n", flush=True)
    rows = [["`relax up`, s", f"{time.perf_counter() - began:.1f}", "none set"]]
    services = json.loads((folder / "relax" / "services.json").read_text())
    os.environ["PREFECT_API_URL"] = services["prefect"]["address"]
    began = time.perf_counter()
    training = submitted(folder, "train/default", config_file=str(run_file))
    until(lambda: len(commits(folder)) >= FIRST, 500, training)
    print(f"{FIRST} steps after {time.perf_counter() - began:.1f} s", flush=True)
    rows.append([f"from the submission to step {FIRST}, s", f"{time.perf_counter() - began:.1f}", "none set"])
    started = time.time()
    evaluation = submitted(folder, "evaluate/newest", run_dir=str(folder / "run"))
    time.sleep(5)
    print(relax(folder, "status"), flush=True)
    until(lambda: state(evaluation)["type"] in ENDED, 400, evaluation)
    ended = time.time()
    until(lambda: state(training)["type"] in ENDED, 500, training)
    more, failed = report(folder, (started, ended), state(training), state(evaluation))
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "through_prefect.json").write_text(json.dumps({"rows": rows + more}, indent=1))
    return failed


def written(folder: Path, chosen: argparse.Namespace) -> Path:
    """The run file, with model and prompts beside it."""
    from relax_core.config.options import get_option
    from relax_core.config.parser import read_given
    from relax_core.config.sections import RelaxConfig
    from relax_core.config.sources import COMMAND_LINE

    size = "tiny" if chosen.rehearse else chosen.size
    write_model(folder / "model", size)
    rows = [{"input": f"{a} + {b} =", "label": str(a + b)} for a in range(16) for b in range(16)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = colocated(folder, size, chosen.steps, chosen.rehearse)
    words += ["--save-interval", "4", "--max-actor-ckpt-to-keep", "3", "--skip-eval-before-train"]
    words += ["--eval-prompt-data", "sums", str(folder / "prompts.jsonl")]
    given = read_given(words, {})
    assert not given.notes, given.notes
    sections: dict[str, dict[str, Any]] = {}
    for section in RelaxConfig.model_fields:
        for name in getattr(given.config, section).model_fields_set:
            if given.sources.get(name) == COMMAND_LINE:
                sections.setdefault(section, {})[name] = get_option(given.config, name)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(sections))))
    return path


ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
WARM = 2
"""Steps before this one do not count."""


def relax(folder: Path, *words: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return (result.stdout + result.stderr).strip()


def submitted(folder: Path, deployment: str, **parameters: Any) -> str:
    """The id of a flow run that was just made."""
    import httpx

    api = os.environ["PREFECT_API_URL"]
    found = httpx.get(f"{api}/deployments/name/{deployment}").raise_for_status().json()
    made = httpx.post(f"{api}/deployments/{found['id']}/create_flow_run", json={"parameters": parameters}, timeout=60)
    if made.is_error:
        raise SystemExit(f"{deployment} was refused: {made.text}")
    return str(made.json()["id"])


def state(flow_run: str) -> dict[str, Any]:
    import httpx

    found = httpx.get(f"{os.environ['PREFECT_API_URL']}/flow_runs/{flow_run}", timeout=60).raise_for_status().json()
    return dict(found["state"])


def until(reached: Any, seconds: float, flow_run: str) -> None:
    """Wait; leave when the flow run ends otherwise than well."""
    limit = time.monotonic() + seconds
    while not reached():
        now = state(flow_run)
        if now["type"] in ENDED[1:] or time.monotonic() > limit:
            raise SystemExit(f"it came to {now['type']}: {now.get('message')}")
        time.sleep(1)


def events(folder: Path) -> list[dict[str, Any]]:
    from data.store import RunStore
    from relax_core.tracking.events import read_events

    return list(read_events(RunStore(str(folder / "run"))))


def commits(folder: Path) -> dict[int, float]:
    """When each step was committed."""
    return {event["step"]: event["time"] for event in events(folder) if event["kind"] == "step_committed"}


def paces(folder: Path) -> list[tuple[float, float]]:
    """Of the steps that wrote no checkpoint: when each was committed, and the seconds since the one before."""
    from data.store import RunStore

    store, times = RunStore(str(folder / "run")), commits(folder)
    pairs = [pair for pair in itertools.pairwise(sorted(times)) if pair[0] >= WARM]
    return [
        (times[step], times[step] - times[before])
        for before, step in pairs
        if "checkpoint" not in store.read_manifest(step)["seconds"]
    ]


def report(
    folder: Path, span: tuple[float, float], training: dict[str, Any], evaluation: dict[str, Any]
) -> tuple[list[list[str]], int]:
    """Rows of the common table; 1 where something did not go well."""
    gaps = paces(folder)
    parts = {
        "before": [gap for end, gap in gaps if end < span[0]],
        "during": [gap for end, gap in gaps if span[0] <= end - gap and end <= span[1]],
        "after": [gap for end, gap in gaps if end - gap > span[1]],
    }
    print("\n| | steps | median seconds of a step |\n|---|---|---|")
    rows = []
    for name, found in parts.items():
        middle = f"{statistics.median(found):.2f}" if found else "-"
        print(f"| {name} the evaluation | {len(found)} | {middle} |")
        rows.append([f"a step {name} an evaluation on another GPU, s (median of {len(found)})", middle, "none set"])
    print(f"\nevaluation: {span[1] - span[0]:.1f} s, {evaluation['name']}: {evaluation.get('message')}")
    odd = Counter(
        e["kind"] for e in events(folder) if e["kind"] in ("retry", "stage_failed", "engine_lost", "retrained")
    )
    print(f"training: {training['name']}; repeated or failed: {dict(odd) or 'nothing'}")
    ends = f"training {training['name']}, evaluation {evaluation['name']} in {span[1] - span[0]:.1f} s"
    rows.append(
        ["both flow runs; steps that failed or were repeated", f"{ends}; {dict(odd) or 'none'}", "Completed; none"]
    )
    failed = training["type"] != "COMPLETED" or evaluation["type"] != "COMPLETED" or bool(odd)
    return rows, int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
