"""What an evaluation beside a live run costs the run's steps.

    python benchmarks/evaluate_live.py [--rounds 3] [--steps 12] [--prompts 48] [--folder DIR]

Trains a small model with the real engines (every step saves a checkpoint, and all but the newest two are deleted), and
in turns looks at ``--steps`` of its steps alone and at those during a ``relax evaluate`` of the same run. Prints
seconds of a step as a ratio, the CPU seconds of all of training's processes a step, those of the evaluation, and what
the run's timeline and its lock say: none of its stages may have failed, waited or been repeated.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
MARK = "BENCHMARK_SIDE"
"""Environment variable of a process and all below it: whose it is."""
QUIET = {"step_committed", "stage_started", "stage_finished", "weight_sync", "checkpoint_saved", "checkpoint_deleted"}
"""Events of a step that nothing happened to."""


class Live:
    """A run that is being trained."""

    def __init__(self, folder: Path, prompts: int) -> None:
        from tiny import make_tiny

        self.folder, self.run = folder, folder / "run"
        os.environ |= {"RELAX_HOME": f"{folder}/home", "PREFECT_HOME": f"{folder}/prefect", "CUDA_VISIBLE_DEVICES": ""}
        for name in ("home", "prefect"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        model = make_tiny(folder / "model", hidden=256, heads=4, kv_heads=2, ffn=512, layers=4)
        self._write("train.jsonl", 64)
        self._write("test.jsonl", prompts)
        words = f"""--run-dir {self.run} --hf-checkpoint {model} --prompt-data {folder}/train.jsonl --label-key label
            --num-rollout 100000 --rollout-batch-size 4 --n-samples-per-prompt 4 --rollout-max-response-len 48
            --rm-type exact_number --save-interval 1 --max-actor-ckpt-to-keep 2 --lr-decay-style constant
            --eval-prompt-data sums {folder}/test.jsonl --eval-label-key label --n-samples-per-eval-prompt 4"""
        with open(folder / "train.log", "wb") as log:
            self.process = subprocess.Popen(
                _relax("train", *words.split()), stdout=log, stderr=log, env=_side("training")
            )

    def _write(self, name: str, count: int) -> None:
        rows = [{"input": f"{a % 10} + {a // 10} =", "label": str(a % 10 + a // 10)} for a in range(count)]
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def events(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.run / "events.jsonl").read_text().splitlines()
            return [json.loads(line) for line in lines if line.endswith("}")]
        return []

    def commits(self) -> list[float]:
        """When each step was committed."""
        if self.process.poll() is not None:
            raise SystemExit(f"the run ended: {(self.folder / 'train.log').read_text()[-3000:]}")
        return [event["time"] for event in self.events() if event["kind"] == "step_committed"]

    def wait(self, steps: int) -> None:
        while len(self.commits()) < steps:
            time.sleep(0.5)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        for process in _processes("training"):
            with contextlib.suppress(psutil.Error):
                process.kill()


def _relax(*words: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli.main", *words]


def _side(name: str) -> dict[str, str]:
    return {**os.environ, MARK: name, "PYTHONPATH": str(ROOT)}


def _processes(side: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == side:
                found.append(process)
    return found


class Cpu:
    """CPU seconds of a side; also of its processes that have ended, up to the last look."""

    def __init__(self, side: str) -> None:
        self._side, self._seen = side, {}  # type: ignore[var-annotated]

    def look(self) -> float:
        for process in _processes(self._side):
            with contextlib.suppress(psutil.Error):
                self._seen[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
        return float(sum(self._seen.values()))


class Phase:
    """Steps that lie wholly within a time, and what training's processes used for them."""

    def __init__(self, run: Live, cpu: Cpu) -> None:
        self._run, self._cpu = run, cpu
        self._steps, self._used = len(run.commits()), cpu.look()

    def end(self) -> tuple[list[float], float]:
        """Seconds of each step; CPU seconds a step."""
        commits = self._run.commits()[self._steps - 1 :]
        used = self._cpu.look() - self._used
        gaps = [b - a for a, b in itertools.pairwise(commits)]
        return gaps, used / max(len(gaps), 1)


def evaluate(run: Live) -> tuple[float, float]:
    """``relax evaluate``: its wall and CPU seconds."""
    began, cpu, ended = time.monotonic(), Cpu("evaluation"), threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            cpu.look()

    watching = threading.Thread(target=watch)
    watching.start()
    words = _relax("evaluate", "--run-dir", str(run.run), "--again")
    try:
        result = subprocess.run(words, env=_side("evaluation"), capture_output=True, text=True, check=False)
    finally:
        ended.set()
        watching.join()
    if result.returncode or "samples and scores" not in result.stdout:
        raise SystemExit(f"relax evaluate failed:\n{result.stdout}\n{result.stderr}")
    print("   ", next(line for line in result.stdout.splitlines() if line.startswith("weights after")), flush=True)
    return time.monotonic() - began, cpu.look()


def measure(run: Live, rounds: int, steps: int) -> None:
    run.wait(4)
    lock, first = (run.run / "driver.json").read_bytes(), len(run.events())
    cpu = Cpu("training")
    alone: list[float] = []
    beside: list[float] = []
    used: dict[str, list[float]] = {"alone": [], "beside": []}
    costs = []
    for number in range(rounds):
        phase, already = Phase(run, cpu), len(run.commits())
        run.wait(already + steps)
        gaps, seconds = phase.end()
        alone += gaps
        used["alone"].append(seconds)
        phase = Phase(run, cpu)
        costs.append(evaluate(run))
        gaps, seconds = phase.end()
        beside += gaps
        used["beside"].append(seconds)
        print(f"round {number + 1}: {len(gaps)} steps during the evaluation ({costs[-1][0]:.1f} s)", flush=True)
    kinds = Counter(event["kind"] for event in run.events()[first:])
    print(f"\n{len(alone)} steps alone, {len(beside)} during {rounds} evaluations, {os.cpu_count()} cores")
    a, b = statistics.median(alone), statistics.median(beside)
    print(f"{'seconds of a step':34} alone {a:.3f}   beside {b:.3f}   ratio {b / a:.2f}")
    a, b = statistics.mean(used["alone"]), statistics.mean(used["beside"])
    print(f"{'CPU seconds of training a step':34} alone {a:.3f}   beside {b:.3f}   ratio {b / a:.2f}")
    wall, work = (statistics.mean(column) for column in zip(*costs, strict=True))
    print(f"an evaluation takes {wall:.1f} s and {work:.1f} CPU seconds")
    odd = {kind: count for kind, count in kinds.items() if kind not in QUIET}
    print(f"events of the run beyond those of steps: {odd or 'none'}")
    print(f"the run's lock: {'untouched' if (run.run / 'driver.json').read_bytes() == lock else 'CHANGED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="of training alone in a round")
    parser.add_argument("--prompts", type=int, default=48, help="of the evaluation set, four samples each")
    parser.add_argument("--folder", help="for the run (default: a temporary one)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the run ends too
    with contextlib.ExitStack() as stack:
        folder = given.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="evaluate-live-"))
        run = Live(Path(folder), given.prompts)
        stack.callback(run.stop)
        measure(run, given.rounds, given.steps)


if __name__ == "__main__":
    main()
