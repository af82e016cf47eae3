"""Trainer and engine in turns on one GPU: what each turn frees, takes and costs, in the real loop.

    python benchmarks/gpu/colocate.py [--steps 3] [--size 0.9b] [--out FOLDER] [-- further options of relax train]
    python benchmarks/gpu/colocate.py --rehearse      # without a GPU: a tiny model, and turns taken all the same

A random model is trained with GRPO by ``relax train --colocate`` (SGLang, Megatron-core, Ray, Prefect, bfloat16). A
line for each turn: used memory of the GPU before and behind it (nvidia-smi, which sees all processes) and its seconds;
then a table of the stages' seconds a step and of the difference of log-probabilities, which tells whether the engine
has the trainer's weights. Fails when the weights did not arrive. All of it goes to ``FOLDER/colocate.json`` too.
"""

import argparse
import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import SIZES, write_model

TURNS = ("generate", "score", "train", "hand_over", "save")
ALIKE = {"bf16": 0.2, "float32": 1e-3}
"""Largest mean difference of log-probabilities between engine and trainer; other weights give 1 and more."""


def used_mib() -> int | None:
    """Memory of the first GPU that is in use; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    found = subprocess.run(command, capture_output=True, text=True)
    return int(found.stdout.split()[0]) if found.returncode == 0 and found.stdout.strip() else None


def watch(rows: list[dict[str, Any]]) -> None:
    """Measure every turn."""
    from relax_core.run import turns

    def measured(name: str, turn: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(turn)
        def call(*arguments: Any) -> None:
            before, started = used_mib(), time.perf_counter()
            turn(*arguments)
            seconds, behind = time.perf_counter() - started, used_mib()
            rows.append({"turn": name, "before": before, "behind": behind, "seconds": round(seconds, 3)})
            print(f"  turn {name:10} {shown(before)} -> {shown(behind)} MiB  {seconds:7.3f} s", flush=True)

        return call

    for name in TURNS:
        setattr(turns, name, measured(name, getattr(turns, name)))


def shown(size: int | None) -> str:
    return "      -" if size is None else f"{size:7,}"


def options(folder: Path, size: str, steps: int, rehearse: bool) -> list[str]:
    """The command line of the run."""
    long = 16 if rehearse else 512
    words = {
        "--run-dir": str(folder / "run"),
        "--hf-checkpoint": str(folder / "model"),
        "--prompt-data": str(folder / "prompts.jsonl"),
        "--label-key": "label",
        "--rm-type": "random",
        "--num-rollout": str(steps),
        "--rollout-batch-size": "4" if rehearse else "16",
        "--n-samples-per-prompt": "2" if rehearse else "8",
        "--rollout-max-response-len": str(long),
        "--rollout-max-context-len": str(2 * long + 64),
        "--max-tokens-per-gpu": "16384",
        "--lr": "1e-4",
        "--save-interval": str(steps),
        "--engine-start-timeout": "300",
    }
    given = [word for pair in words.items() for word in pair]
    given += ["--use-dynamic-batch-size", "--colocate", "--offload-train", "--offload-rollout"]
    if rehearse:
        return given
    server = {
        "--sglang-mem-fraction-static": "0.7",
        "--sglang-attention-backend": "fa3" if SIZES[size]["head"] == 128 else "triton",
        "--sglang-sampling-backend": "pytorch",
        "--sglang-grammar-backend": "none",
        "--sglang-max-running-requests": "256",
    }
    given += [word for pair in server.items() for word in pair]
    return [*given, "--bf16", "--use-distributed-optimizer", "--sglang-skip-server-warmup"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--size", choices=SIZES, default="0.9b")
    parser.add_argument("--out", type=Path, help="folder of colocate.json and of the logs; by default none")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model, in float32")
    parser.add_argument("more", nargs="*", help="further options of relax train, behind --")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return measure(Path(temporary), chosen)


def measure(folder: Path, chosen: argparse.Namespace) -> int:
    os.environ.setdefault("PREFECT_HOME", str(folder / "prefect"))
    os.environ["RELAX_HOME"] = str(folder / "relax")
    Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    from flows.cli.run import _quiet_logs
    from relax_core.config.examine import accept, examine_given
    from relax_core.config.parser import read_given

    size = "tiny" if chosen.rehearse else chosen.size
    write_model(folder / "model", size)
    rows = [{"input": f"{a} + {b} =", "label": str(a + b)} for a in range(16) for b in range(16)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = read_given([*options(folder, size, chosen.steps, chosen.rehearse), *chosen.more], {})
    accept(examine_given(given))
    _quiet_logs()
    from flows.train import train
    from relax_core.run import turns

    if chosen.rehearse:
        turns.take_turns = lambda run: True  # the trainer really leaves; an engine on a CPU has nothing to give up
    found: list[dict[str, Any]] = []
    watch(found)
    started = time.perf_counter()
    try:
        train(given.config, given.sources)
    finally:
        keep_logs(folder / "run", chosen.out)
    seconds = time.perf_counter() - started
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads((folder / f"run/steps/{step:06d}/manifest.json").read_text()) for step in range(len(lines))]
    return report(found, steps, seconds, "float32" if chosen.rehearse else "bf16", chosen.out)


def keep_logs(run: Path, out: Path | None) -> None:
    """The engine's log tells what failed."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for log in (run / "logs").glob("*.log"):
            shutil.copy(log, out)


def report(
    found: list[dict[str, Any]], steps: list[dict[str, Any]], seconds: float, kind: str, out: Path | None
) -> int:
    """Print the tables; 1 where the engine did not have the trainer's weights."""
    print("\n| step | generate s | train s | weight sync s | whole s | difference of log-probs |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for step in steps:
        spent, metrics = step["seconds"], step["metrics"]
        differs = metrics.get("train_rollout_logprob_abs_diff", float("nan"))
        worst = max(worst, differs)
        stages = " | ".join(f"{spent.get(name, 0):.2f}" for name in ("generate", "train", "weight_sync"))
        print(f"| {step['step']} | {stages} | {step['wall_seconds']:.2f} | {differs:.4f} |")
    print("\n| turn | times | median s | largest s | MiB before, behind (last) |")
    print("|---|---|---|---|---|")
    for name in TURNS:
        if rows := [row for row in found if row["turn"] == name]:
            spent = sorted(row["seconds"] for row in rows)
            last = rows[-1]
            memory = f"{shown(last['before']).strip()}, {shown(last['behind']).strip()}"
            print(f"| {name} | {len(rows)} | {spent[len(spent) // 2]:.3f} | {spent[-1]:.3f} | {memory} |")
    print(f"\n{seconds:.1f} s in all, {sum(row['seconds'] for row in found):.2f} s of them for turns")
    if out is not None:
        (out / "colocate.json").write_text(json.dumps({"turns": found, "steps": steps, "seconds": seconds}, indent=1))
    if not worst < ALIKE[kind]:
        print(f"The engine did not have the trainer's weights: {worst:.3f} is more than {ALIKE[kind]}.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
