"""Learning on real input: SmolLM2-135M and two-digit additions with GRPO, trainer and engine in turns on one GPU.

    python benchmarks/gpu/learning.py [MODEL] [--seeds 0 1] [--steps 60] [--out FOLDER] [-- options of relax train]
    python benchmarks/gpu/learning.py --rehearse      # without a GPU: a tiny random model, three steps, in float32

Makes the model where it is missing (``relax models smollm2``) and the prompts: four sums with their results, then a
fifth to finish; the reward is 1 where the last number of the line is right. 32 prompts x 8 samples a step; 256 sums
that are never trained on are asked greedily before the first step and every 10 steps. One ``relax train`` a seed, one
after the other; ``--at-once`` is sooner done, but its seconds are those of a shared GPU. ``FOLDER/learning.json`` has
each finished step, written as it finishes; at the end come ``learning.png`` and ``learning.md`` (curves.py). Killed,
or stopped by ``--limit``, the same command goes on: runs are kept in ``--work``. Fails where a step is missing or the
engine had other weights than the trainer.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from curves import finished, write
from models import ROOT, write_model

SHOTS = 4
HELD_OUT = 256
TRAINED = 4096
EVALUATED_EVERY = 10
ALIKE = 0.2
"""Largest mean difference of log-probabilities between engine and trainer in a step; other weights give 1 and more."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "models" / "smollm2", help="its folder")
    parser.add_argument("--seeds", type=int, nargs="+", help="by default 0 1; in a rehearsal 0")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", default="2e-5")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir(), "relax-learning"), help="of the runs; kept"
    )
    parser.add_argument("--out", type=Path, help="folder of learning.json, .png and .md and the logs; by default WORK")
    parser.add_argument("--limit", type=float, help="seconds after which it stops by itself")
    parser.add_argument("--at-once", action="store_true", help="all seeds together on the GPU")
    parser.add_argument("--cpu", action="store_true", help="float32 and no turns, for a look without a GPU")
    parser.add_argument("--rehearse", action="store_true", help="--cpu with a tiny random model and three steps")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    chosen = parser.parse_args(words[:cut])
    chosen.more = words[cut + 1 :]
    chosen.seeds = chosen.seeds or ([0] if chosen.rehearse else [0, 1])
    if chosen.rehearse:
        chosen.cpu, chosen.steps, chosen.model = True, 3, chosen.work / "tiny"
    # runs are started in another folder
    chosen.model, chosen.work = chosen.model.resolve(), chosen.work.resolve()
    return learn(chosen)


def learn(chosen: argparse.Namespace) -> int:
    """Every seed in turn; what is finished is reported however it ends."""
    started = time.monotonic()
    out = chosen.out or chosen.work
    for folder in (chosen.work, out):
        folder.mkdir(parents=True, exist_ok=True)
    prepare(chosen)
    # asked to end, leave through the blocks below
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = False
    try:
        for seeds in [chosen.seeds] if chosen.at_once else [[seed] for seed in chosen.seeds]:
            left = None if chosen.limit is None else chosen.limit - (time.monotonic() - started)
            if left is not None and left <= 0:
                break
            print(f"\nseeds {seeds}", flush=True)
            if failed := not train(seeds, chosen, out, left):
                break
    finally:
        report(chosen, out, whole=True)
        keep_logs(chosen, out)
    runs = {seed: finished(run_of(chosen, seed)) for seed in chosen.seeds}
    missing = [seed for seed, rows in runs.items() if len(rows) < chosen.steps]
    if missing:
        print(f"not complete: seeds {missing}; the same command goes on.", flush=True)
    gaps = [row["logprob_gap"] for rows in runs.values() for row in rows]
    if unlike := [gap for gap in gaps if not gap < ALIKE]:  # NaN too
        print(f"The engine did not have the trainer's weights: a difference of {unlike[0]} is not below {ALIKE}.")
    return int(failed or bool(missing) or bool(unlike))


def prepare(chosen: argparse.Namespace) -> None:
    from data.errors import UserError
    from relax_core.models import is_model_folder, prepare_smollm2

    if not is_model_folder(chosen.model):
        began = time.monotonic()
        if chosen.rehearse:
            write_model(chosen.model, "tiny")
        else:
            try:
                prepare_smollm2(chosen.model)
            except UserError as error:
                sys.exit(f"learning: {error}")
        print(f"model: {chosen.model}, made in {time.monotonic() - began:.0f} s", flush=True)
    training, held_out = sums()
    for name, rows in (("train", training), ("held_out", held_out)):
        (chosen.work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def sums() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Prompts to train on and others to evaluate on, always the same.

    No sum of the second list is one of the first, not even among its examples, nor with its numbers exchanged.
    """
    order = random.Random(0)
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    order.shuffle(pairs)
    held_out, rest = pairs[:HELD_OUT], pairs[HELD_OUT:]

    def prompt(pair: tuple[int, int]) -> dict[str, str]:
        shown = order.sample([other for other in rest if other != pair], SHOTS)
        lines = [f"{a} + {b} = {a + b}\n" for a, b in (order.sample(one, 2) for one in shown)]
        a, b = order.sample(pair, 2)
        return {"input": "".join(lines) + f"{a} + {b} =", "label": str(a + b)}

    return [prompt(order.choice(rest)) for _ in range(TRAINED)], [prompt(pair) for pair in held_out]


def run_of(chosen: argparse.Namespace, seed: int) -> Path:
    return Path(chosen.work) / f"{'rehearsal' if chosen.rehearse else 'seed'}-{seed}"


def options(chosen: argparse.Namespace, seed: int) -> list[str]:
    """The command line of one run."""
    words: dict[str, Any] = {
        "--run-dir": run_of(chosen, seed),
        "--hf-checkpoint": chosen.model,
        "--prompt-data": chosen.work / "train.jsonl",
        "--label-key": "label",
        "--rm-type": "random" if chosen.rehearse else "exact_number",  # a random model is never right
        "--advantage-estimator": "grpo",
        "--num-rollout": chosen.steps,
        "--rollout-batch-size": 4 if chosen.rehearse else 32,
        "--n-samples-per-prompt": 2 if chosen.rehearse else 8,
        "--rollout-max-response-len": 16,
        "--rollout-max-context-len": 256,
        "--rollout-temperature": "1.0",
        "--rollout-stop": "\n",
        "--rollout-seed": seed,
        "--seed": 1234 + seed,
        "--eval-interval": EVALUATED_EVERY,
        "--eval-temperature": "0",
        "--lr": chosen.lr,
        "--max-tokens-per-gpu": 4096 if chosen.cpu else 32768,
        "--save-interval": max(chosen.steps // 2, 1),
        "--engine-start-timeout": "300",
    }
    given = [str(word) for pair in words.items() for word in pair]
    given += ["--eval-prompt-data", "sums", str(chosen.work / "held_out.jsonl")]
    given += ["--rollout-shuffle", "--use-dynamic-batch-size"]
    if not chosen.cpu:
        server = {
            "--sglang-mem-fraction-static": "0.6",
            "--sglang-max-total-tokens": "131072",  # twice what a step needs; engines then start beside each other too
            "--sglang-attention-backend": "triton",  # FA3 may be built for heads of 128 only; these have 64
            "--sglang-sampling-backend": "pytorch",
            "--sglang-grammar-backend": "none",
            "--sglang-max-running-requests": "256",
        }
        given += ["--bf16", "--colocate", "--use-distributed-optimizer", "--sglang-skip-server-warmup"]
        given += [word for pair in server.items() for word in pair]
    return [*given, *chosen.more]


def train(seeds: list[int], chosen: argparse.Namespace, out: Path, limit: float | None) -> bool:
    """``relax train`` in a process a seed; the report is written anew with each step that one finishes.

    Returns:
        whether all of them ended well, or were stopped because of ``limit``.
    """
    processes = []
    seen, ends = -1, None if limit is None else time.monotonic() + limit
    try:
        for seed in seeds:
            command = [sys.executable, "-m", "flows.cli.main", "train", *options(chosen, seed)]
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment(chosen, seed)))
        while any(process.poll() is None for process in processes):
            if ends is not None and time.monotonic() > ends:
                print(f"stopped after {limit:.0f} s", flush=True)
                return True
            if (steps := sum(len(finished(run_of(chosen, seed))) for seed in seeds)) != seen:
                seen = steps
                report(chosen, out)
            time.sleep(1)
        return all(process.returncode == 0 for process in processes)
    finally:
        for process in processes:
            end(process)


def environment(chosen: argparse.Namespace, seed: int) -> dict[str, str]:
    """Of a run's process: services of its own, apart from those of the machine and of a run beside it."""
    own = f"-{seed}" if chosen.at_once else ""
    homes = {
        "PREFECT_HOME": os.environ.get("PREFECT_HOME", str(chosen.work / "prefect")) + own,
        "RELAX_HOME": str(chosen.work / f"home{own}"),
    }
    Path(homes["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    return {**os.environ, **homes}


def end(process: "subprocess.Popen[bytes]") -> None:
    """As Ctrl-C does, so that it ends its engines; then by force."""
    for number, seconds in ((signal.SIGINT, 45), (signal.SIGTERM, 15), (signal.SIGKILL, 15)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue


def report(chosen: argparse.Namespace, out: Path, whole: bool = False) -> None:
    """Write what there is; ``whole``: picture and table too."""
    about = {"steps": chosen.steps, "lr": chosen.lr, "model": chosen.model.name, "at_once": chosen.at_once}
    about["more"] = chosen.more
    write({seed: finished(run_of(chosen, seed)) for seed in chosen.seeds}, about, out, whole)


def keep_logs(chosen: argparse.Namespace, out: Path) -> None:
    """The engine's log tells what failed."""
    if out == chosen.work:
        return
    for seed in chosen.seeds:
        for log in (run_of(chosen, seed) / "logs").glob("*.log"):
            shutil.copy(log, out / f"learning-seed-{seed}-{log.name}")


if __name__ == "__main__":
    raise SystemExit(main())
