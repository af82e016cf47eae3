"""Trainer and engine on a GPU each: one step after another, and overlapping, in the real loop.

    python benchmarks/gpu/overlap.py [--steps 6] [--size 135m] [--out FOLDER] [-- further options of relax train]
    python benchmarks/gpu/overlap.py --rehearse      # without a GPU: a tiny model, in float32

A random model is trained with GRPO by ``relax train`` (SGLang, Megatron-core, Ray, Prefect, bfloat16), once without
and once with ``--fully-async --max-staleness 1``, in slices. A table of the stages' seconds, of the seconds between two
commits, of the age of the weights that made the tokens, and of the difference of log-probabilities, which tells whether
the engine has the trainer's weights (with overlap also how far the policy has moved meanwhile). Fails when a token is
older than the staleness allows. The tables of both runs go to ``FOLDER/overlap.json`` too.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from colocate import keep_logs
from colocate import options as colocated
from models import SIZES, write_model

MODES: dict[str, list[str]] = {
    "one after another": ["--true-on-policy-mode"],
    "overlapping": ["--fully-async", "--max-staleness", "1", "--num-iters-per-train-update", "2"],
}
SHARED = ("--colocate", "--offload-train", "--offload-rollout")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
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
        return report({mode: measure(folder, mode, chosen) for mode in MODES}, chosen.out)


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


def report(runs: dict[str, list[dict[str, Any]]], out: Path | None) -> int:
    """Print the tables; 1 where tokens were too old."""
    print("\n| mode | step | generate s | train s | weight sync s | staleness mean, max | difference of log-probs |")
    print("|---|---|---|---|---|---|---|")
    oldest = 0.0
    for mode, steps in runs.items():
        for step in steps:
            metrics = step["metrics"]
            stages = " | ".join(f"{step['seconds'].get(name, 0):.2f}" for name in ("generate", "train", "weight_sync"))
            mean, most = metrics.get("staleness/mean", 0.0), metrics.get("staleness/max", 0.0)
            oldest = max(oldest, most)
            differs = metrics.get("train_rollout_logprob_abs_diff", float("nan"))
            print(f"| {mode} | {step['step']} | {stages} | {mean:.2f}, {most:.0f} | {differs:.4f} |")
    print("\n| mode | median seconds between commits, from step 2 on | response tokens/s |")
    print("|---|---|---|")
    for mode, steps in runs.items():
        gaps = [after["committed"] - before["committed"] for before, after in itertools.pairwise(steps[1:])]
        tokens = sum(step["metrics"]["tokens/response"] for step in steps[2:])
        print(f"| {mode} | {statistics.median(gaps):.2f} | {tokens / sum(gaps):.0f} |")
    if out is not None:
        (out / "overlap.json").write_text(json.dumps(runs, indent=1))
    if oldest > 1:
        print(f"A token was {oldest:.0f} updates old.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
