"""Trainer and engine in turns on one GPU: what each turn frees, takes and costs, in the real loop.

    python benchmarks/gpu/colocate.py [--steps 5] [--size 0.6b] [--check] [--out FOLDER] [-- options of relax train]
    python benchmarks/gpu/colocate.py --rehearse      # without a GPU: a tiny model, and turns taken all the same

A random model is trained with GRPO by ``relax train --colocate`` (SGLang, Megatron-core, Ray, Prefect, bfloat16). A
line for each turn, with each call to the engine and to the trainer in it; then the trainer makes the last update again,
in place and behind a way out and back, which tells what training itself takes longer for it. The table: the turns of a
step, the goal, memory in use (nvidia-smi, which sees all processes), the copies, the stages, and the difference of
log-probabilities, which tells whether the engine has the trainer's weights. Fails when the weights did not arrive.

``--check`` goes on with one more step under --check-weight-update-equal: after its push the engine proves that its
weights are the trainer's, bit by bit. That costs another start of the engine. All of it goes to
``FOLDER/colocate.json`` too.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from models import SIZES, write_model
from turn_watch import TURNS, Watch, again, table, worst_difference

ALIKE = {"bf16": 0.2, "float32": 1e-3}
"""Largest mean difference of log-probabilities between engine and trainer; other weights give 1 and more."""


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
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--again", type=int, default=3, help="how often the last update is made again, in each way")
    parser.add_argument("--check", action="store_true", help="one more step, whose weights the engine compares")
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

    size, kind = ("tiny", "float32") if chosen.rehearse else (chosen.size, "bf16")
    write_model(folder / "model", size)
    prompts = [{"input": f"{a} + {b} =", "label": str(a + b)} for a in range(16) for b in range(16)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    words = [*options(folder, size, chosen.steps, chosen.rehearse), *chosen.more]
    _quiet_logs()
    from relax_core.cluster.backend import RayBackend
    from relax_core.run import turns

    if chosen.rehearse:
        turns.take_turns = lambda run: True  # the trainer really leaves; an engine on a CPU has nothing to give up
    watch, found = Watch(), Found(folder / "run", chosen.out)
    release = RayBackend.release

    def measured(backend: Any) -> None:
        """Before the run ends its actors."""
        try:
            if not found.repeated and watch.trained:
                found.read(watch)
                found.repeated = again(backend._trainers["actor"], watch.trained, chosen.again)
        finally:
            release(backend)

    started = time.perf_counter()
    try:
        RayBackend.release = measured  # type: ignore[method-assign]
        run(words)
        found.read(watch, last=True)
        RayBackend.release = release  # type: ignore[method-assign]
        if chosen.check:
            print("\n== One more step, whose weights the engine compares", flush=True)
            before = len(watch.pushes)
            run([*words, "--num-rollout", str(chosen.steps + 1), "--check-weight-update-equal"])
            found.check(watch.pushes[before:])
    finally:
        watch.memory.close()
        keep_logs(folder / "run", chosen.out)
        found.read(watch)
    print(f"\n{time.perf_counter() - started:.1f} s in all", flush=True)
    return found.report(kind, chosen.check)


def run(words: list[str]) -> None:
    """A run, as ``relax train`` makes it."""
    from flows.train import train
    from relax_core.config.examine import accept, examine_given
    from relax_core.config.parser import read_given

    given = read_given(words, {})
    accept(examine_given(given))
    train(given.config, given.sources)


class Found:
    """What was measured so far.

    Args:
        run: folder of the run.
        out: folder of the JSON.
    """

    def __init__(self, run: Path, out: Path | None) -> None:
        self._run, self._out = run, out
        self.repeated: list[dict[str, Any]] = []
        self.checked: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.rows: list[list[str]] = []
        self._content: dict[str, Any] = {}
        self._complete = False

    def read(self, watch: Watch, last: bool = False) -> None:
        """Take over what there is, and write it down; no more after the last time."""
        if self._complete:
            return
        self._complete = last
        manifests = sorted(self._run.glob("steps/*/manifest.json"))
        self.steps = [json.loads(manifest.read_text()) for manifest in manifests]
        if not self.steps:
            return
        self.rows = table(watch, self.repeated, self.steps)
        for name in ("generate", "train", "weight_sync"):
            spent = [step["seconds"].get(name, 0.0) for step in self.steps[1:] or self.steps]
            self.rows.append([f"stage {name}, s (median)", f"{statistics.median(spent):.3f}", ""])
        lists = {"turns": watch.turns, "beside": watch.beside, "pushes": watch.pushes, "memory": watch.memory.samples}
        self._content = {**{name: list(rows) for name, rows in lists.items()}, "again": self.repeated}
        self._write()

    def check(self, pushes: list[dict[str, Any]]) -> None:
        """Take over the pushes of the step in which the engine compares weights."""
        self.checked = [push for push in pushes if push.get("checked")]
        self.rows.append(["pushes whose weights the engine proved equal", str(len(self.checked)), "at least 1"])
        self._content["checked"] = self.checked
        self._write()

    def _write(self) -> None:
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            content = {"rows": self.rows, **self._content, "steps": self.steps}
            (self._out / "colocate.json").write_text(json.dumps(content, indent=1))

    def report(self, kind: str, checks: bool) -> int:
        """Print the tables; 1 where the engine did not have the trainer's weights."""
        print("\n| step | generate s | train s | weight sync s | whole s | difference of log-probs |")
        print("|---|---|---|---|---|---|")
        worst = worst_difference(self.steps)
        for step in self.steps:
            differs = step["metrics"].get("train_rollout_logprob_abs_diff") or math.nan
            stages = " | ".join(f"{step['seconds'].get(name, 0):.2f}" for name in ("generate", "train", "weight_sync"))
            print(f"| {step['step']} | {stages} | {step['wall_seconds']:.2f} | {differs:.4f} |")
        print("\n| turn | times | median s | largest s |")
        print("|---|---|---|---|")
        for name in TURNS:
            if spent := sorted(row["seconds"] for row in self._content.get("turns", []) if row["turn"] == name):
                print(f"| {name} | {len(spent)} | {spent[len(spent) // 2]:.3f} | {spent[-1]:.3f} |")
        print("\n| what | seen | goal |")
        print("|---|---|---|")
        for row in self.rows:
            print(f"| {' | '.join(row)} |")
        if checks and not self.checked:
            print("No push was compared.")
            return 1
        if not worst < ALIKE[kind]:
            print(f"The engine did not have the trainer's weights: {worst:.3f} is more than {ALIKE[kind]}.")
            return 1
        return 0


def keep_logs(run: Path, out: Path | None) -> None:
    """The engine's log tells what failed."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for log in (run / "logs").glob("*.log"):
            shutil.copy(log, out)


if __name__ == "__main__":
    raise SystemExit(main())
