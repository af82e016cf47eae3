"""Trainer and engine on a GPU each: one step after another, and overlapping, in the real loop.

    python benchmarks/gpu/overlap.py [--steps 6] [--size 135m] [--out FOLDER] [-- further options of relax train]
    python benchmarks/gpu/overlap.py --rehearse      # without a GPU: a tiny model, in float32

A random model is trained with GRPO by ``relax train`` (SGLang, Megatron-core, Ray, Prefect, bfloat16), once without
and once with ``--fully-async --max-staleness 1``, in slices. A table of the stages' seconds, of the seconds between two
commits, of the age of the weights that made the tokens, and of the difference of log-probabilities, which tells whether
the engine has the trainer's weights (with overlap also how far the policy has moved meanwhile). Fails when a token is
older than the staleness allows, or the engine has other weights. What both runs recorded goes to
``FOLDER/overlap.json``, with the rows of the common table, after each run.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from colocate import ALIKE, keep_logs
from colocate import options as colocated
from models import SIZES, write_model

MODES: dict[str, list[str]] = {
    "one after another": ["--true-on-policy-mode"],
    "overlapping": ["--fully-async", "--max-staleness", "1", "--num-iters-per-train-update", "2"],
}
SHARED = ("--colocate", "--offload-train", "--offload-rollout")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="of each run, at least 4")
    parser.add_argument("--size", choices=SIZES, default="135m")
    parser.add_argument("--out", type=Path, help="folder of overlap.json and of the logs; by default none")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model, in float32")
    parser.add_argument("more", nargs="*", help="further options of relax train, behind --")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ.setdefault("PREFECT_HOME", str(folder / "prefect"))
        os.environ["RELAX_HOME"] = str(folder / "relax")
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
        runs: dict[str, list[dict[str, Any]]] = {}
        for mode in MODES:
            runs[mode] = measure(folder, mode, chosen)
            keep(runs, chosen)
        return report(runs, ALIKE["float32" if chosen.rehearse else "bf16"])


def measure(folder: Path, mode: str, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """The manifests of a run's steps, with the time of each commit."""
    from data.store import RunStore
    from flows.cli.run import _quiet_logs
    from flows.train import train
    from relax_core.config.examine import accept, examine_given
    from relax_core.config.parser import read_given
    from relax_core.tracking.events import read_events

    size = "tiny" if chosen.rehearse else chosen.size
    place = folder / mode.replace(" ", "-")
    place.mkdir()
    write_model(place / "model", size)
    rows = [{"input": f"{a} + {b} =", "label": str(a + b)} for a in range(16) for b in range(16)]
    (place / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [word for word in colocated(place, size, chosen.steps, chosen.rehearse) if word not in SHARED]
    words += ["--resource", '{"actor": [1, 1], "rollout": [1, 1]}', *MODES[mode]]
    given = read_given([*words, *chosen.more], {})
    accept(examine_given(given))
    _quiet_logs()
    print(f"\n== {mode}", flush=True)
    try:
        train(given.config, given.sources)
    finally:
        keep_logs(place / "run", chosen.out)
    store = RunStore(str(place / "run"))
    commits = {event["step"]: event["time"] for event in read_events(store, kind="step_committed")}
    return [{**(store.read_manifest(step) or {}), "committed": commits[step]} for step in sorted(commits)]


def paces(steps: list[dict[str, Any]]) -> tuple[float, float, float]:
    """From step 2 on, when all is warm, without steps that write a checkpoint: median seconds between commits, response
    tokens a second of all of them, and the median over steps of the longer one of generation and training, which
    overlap cannot beat."""
    warm = [pair for pair in itertools.pairwise(steps[1:]) if "checkpoint" not in pair[1]["seconds"]]
    if not warm:
        return (float("nan"),) * 3
    gaps = [after["committed"] - before["committed"] for before, after in warm]
    tokens = sum(step["metrics"]["tokens/response"] for _, step in warm)
    longer = [max(step["seconds"].get(name, 0.0) for name in ("generate", "train")) for _, step in warm]
    return statistics.median(gaps), tokens / sum(gaps), statistics.median(longer)


def gap_of(steps: list[dict[str, Any]]) -> float:
    """Largest mean difference of log-probabilities between trainer and engine; NaN where a step has none."""
    found = [step["metrics"].get("train_rollout_logprob_abs_diff", float("nan")) for step in steps]
    return max(found) if all(value == value for value in found) else float("nan")


def oldest(steps: list[dict[str, Any]]) -> float:
    return max(float(step["metrics"].get("staleness/max", 0.0)) for step in steps)


def rows_of(runs: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """Of the common table."""
    rows = []
    for mode, steps in runs.items():
        pace, rate, longer = paces(steps)
        value = f"{pace:.2f} s ({rate:,.0f} response tokens/s); the longer of generating and training {longer:.2f} s"
        rows.append([f"trainer and engine on a GPU each, {mode}: a step (median)", value, "none set"])
        known = "also what the policy moved" if oldest(steps) else "see colocate"
        rows.append([f"{mode}: difference of log-probs, worst step", f"{gap_of(steps):.4f}", known])
        rows.append([f"{mode}: age of the oldest token's weights", f"{oldest(steps):.0f}", "at most 1"])
    return rows


def keep(runs: dict[str, list[dict[str, Any]]], chosen: argparse.Namespace) -> None:
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "overlap.json").write_text(json.dumps({"rows": rows_of(runs), "runs": runs}, indent=1))


def report(runs: dict[str, list[dict[str, Any]]], alike: float) -> int:
    """Print the tables; 1 where tokens were too old, or the engine did not have the trainer's weights."""
    print("\n| mode | step | generate s | train s | weight sync s | staleness mean, max | difference of log-probs |")
    print("|---|---|---|---|---|---|---|")
    for mode, steps in runs.items():
        for step in steps:
            metrics = step["metrics"]
            stages = " | ".join(f"{step['seconds'].get(name, 0):.2f}" for name in ("generate", "train", "weight_sync"))
            mean, most = metrics.get("staleness/mean", 0.0), metrics.get("staleness/max", 0.0)
            differs = metrics.get("train_rollout_logprob_abs_diff", float("nan"))
            print(f"| {mode} | {step['step']} | {stages} | {mean:.2f}, {most:.0f} | {differs:.4f} |")
    print("\n| what | seen | goal |\n|---|---|---|")
    for row in rows_of(runs):
        print(f"| {' | '.join(row)} |")
    if (age := max(map(oldest, runs.values()))) > 1:
        print(f"A token was {age:.0f} updates old.")
        return 1
    one_after_another = next(iter(runs.values()))  # with overlap the policy moves meanwhile
    if not gap_of(one_after_another) < alike:
        print(f"The engine did not have the trainer's weights: {gap_of(one_after_another):.4f}, at most {alike}.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
