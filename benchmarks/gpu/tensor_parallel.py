"""A trainer over two GPUs against one on a single GPU: the same numbers, and how fast.

    python benchmarks/gpu/tensor_parallel.py [--modes tp sp pp dp] [--size 0.6b] [--out FOLDER]
    python benchmarks/gpu/tensor_parallel.py --rehearse      # without a GPU: a tiny model, gloo, two processes

A random model makes three optimiser steps of GRPO's loss on the same stored batches, in float32 and in bfloat16: on one
GPU, and with tensor parallelism (``tp``), tensor and sequence parallelism (``sp``), pipeline parallelism (``pp``) or
data parallelism with a divided optimiser (``dp``) on two. Compared are log-probabilities before and after, loss,
gradient norm, and what the steps changed in the weights, read from the exported Hugging Face folder; tensors that both
ranks hold must be equal in every bit. Then bfloat16's tokens/s of a step of 8 x 2,048 tokens.

What differs may be rounding alone. In float32 that is measured on one GPU with every weight moved by up to an ulp: a
sum of K terms rounds about sqrt(K) times as much as one term, K is up to 10^4 here, so 100 times is the limit. In
bfloat16 it is what float32 shows of one GPU's rounding: two runs with independent errors are sqrt(2) times as far
apart, so 3 times is the limit. The loss may move by what the mean log-probability does, as advantages are about 1.
Fails beyond that. Every rank is a process that sees one GPU, as in a run; one that hangs is ended.
"""

import argparse
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models import SIZES, write_model
from two_ranks import KINDS, MEASURES, difference, write_batches, write_moved

MODES: dict[str, tuple[str, list[str]]] = {
    "tp": ("TP=2", ["--tensor-model-parallel-size", "2"]),
    "sp": ("TP=2, sequence parallel", ["--tensor-model-parallel-size", "2", "--sequence-parallel"]),
    "pp": ("PP=2", ["--pipeline-model-parallel-size", "2"]),
    "dp": ("DP=2", ["--use-distributed-optimizer"]),
}
FACTOR = {"float32": 100.0, "bf16": 3.0}
ROUNDING = {"float32": 2.0**-24, "bf16": 2.0**-9}
"""Of one number: nothing is asked to agree better."""
UNLIKE = 0.7
"""Two changes that have nothing in common are sqrt(2) times their length apart: no rounding may take half of that."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["tp", "sp"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--speed", type=int, default=5, metavar="STEPS", help="timed steps; the first is not counted")
    parser.add_argument("--timeout", type=float, default=280, help="seconds that the processes of one layout may take")
    parser.add_argument("--out", type=Path, help="folder of tensor_parallel.json and .log; by default none")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # and with it the ranks
    if not chosen.rehearse:
        import torch

        if (there := torch.cuda.device_count()) < 2:
            print(f"This needs two GPUs; {there} found.")
            return 1
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), chosen)


def measure(folder: Path, chosen: argparse.Namespace) -> int:
    """All layouts, one after another; 1 where one failed or gave other numbers."""
    size = "tiny" if chosen.rehearse else chosen.size
    began = time.monotonic()
    write_model(folder / "model", size)
    write_moved(folder / "model", folder / "moved")
    write_batches(folder, SIZES[size]["vocab"], chosen.rehearse)
    print(f"models of {size} and batches: {time.monotonic() - began:.0f} s", flush=True)
    single = [job(kind) for kind in ("float32", "bf16") if kind in {"float32", *chosen.kinds}]
    single.insert(1, job("float32", model="moved"))
    jobs = [job(kind) for kind in chosen.kinds]
    timed = [job("bf16", steps=chosen.speed)] if chosen.speed else []
    found = Found(folder, chosen.out, "cpu" if chosen.rehearse else "cuda")
    if not found.launch("one", 1, [], [*single, *timed], chosen):
        return 1
    for mode in chosen.modes:
        if found.launch(mode, 2, MODES[mode][1], [*jobs, *timed], chosen):
            found.compare(mode, chosen.kinds)
    return found.report()


def job(kind: str, model: str = "model", steps: int = 0) -> dict[str, Any]:
    """What a layout's ranks do with a new trainer: with ``steps`` a measurement of speed, else of numbers."""
    return {"name": f"{'speed' if steps else model}-{kind}", "model": model, "kind": kind, "speed": steps}


class Found:
    """What was measured, written to ``tensor_parallel.json`` whenever something is added."""

    def __init__(self, folder: Path, out: Path | None, device: str) -> None:
        self.folder, self.out, self.device = folder, out, device
        self.results: dict[str, dict[str, Any]] = {}
        self.rows: list[list[str]] = []
        self.failed: list[str] = []
        if out is not None:
            (out / "tensor_parallel.log").unlink(missing_ok=True)

    def launch(self, layout: str, ranks: int, words: list[str], jobs: list[dict[str, Any]], chosen: Any) -> bool:
        """Run the jobs in ``ranks`` new processes; whether all went well. None of them is left behind."""
        from relax_core.cluster.ports import free_port

        plan = {"folder": str(self.folder), "layout": layout, "ranks": ranks, "port": free_port(), "jobs": jobs}
        plan |= {"words": [*words, "--resource", json.dumps({"actor": [1, ranks], "rollout": [1, 1]})]}
        plan |= {"rehearse": chosen.rehearse}
        print(f"{layout}: {', '.join(each['name'] for each in jobs)} ...", flush=True)
        began, processes = time.monotonic(), []
        names = [self.folder / f"{layout}-{rank}.log" for rank in range(ranks)]
        try:
            for rank, name in enumerate(names):
                command = [sys.executable, str(Path(__file__).with_name("two_ranks.py")), str(rank), json.dumps(plan)]
                with name.open("wb") as log:
                    processes.append(
                        subprocess.Popen(
                            command,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            env=os.environ | environment(rank, ranks),
                            start_new_session=True,
                        )
                    )
            why = waited(processes, chosen.timeout)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what it started
                process.wait()
            self.keep(names)
        seconds = time.monotonic() - began
        if why:
            print(f"{layout} failed after {seconds:.0f} s: {why}")
            for name in names:
                print(f"--- the end of {name.name}", name.read_text(errors="replace")[-3000:], sep="\n", flush=True)
            self.failed.append(f"{layout}: {why}")
            self.add(f"two GPUs: {MODES[layout][0] if layout in MODES else 'one GPU'}", f"failed: {why}", "the same")
            return False
        self.results[layout] = json.loads((self.folder / layout / "0.json").read_text())
        self.results[layout]["ranks"] = [
            json.loads((self.folder / layout / f"{rank}.json").read_text()) for rank in range(ranks)
        ]
        print(f"{layout}: {seconds:.0f} s", flush=True)
        return True

    def keep(self, logs: list[Path]) -> None:
        """All logs go to one file."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            with (self.out / "tensor_parallel.log").open("a") as whole:
                for log in logs:
                    whole.write(f"=== {log.stem}\n{log.read_text(errors='replace') if log.exists() else ''}\n")

    def compare(self, layout: str, kinds: list[str]) -> None:
        """A layout on two GPUs with one GPU: a line and a row for each type of number."""
        title = MODES[layout][0]
        for kind in kinds:
            name, limits = f"model-{kind}", self.limits(kind)
            apart = difference(self.folder, (layout, name), ("one", name), self.device)
            shutil.rmtree(self.folder / layout / name / "weights")
            beyond = [what for what in MEASURES if not apart[what] <= limits[what]]
            unlike = self.unlike(layout, name)
            print(f"{title}, {kind}: {text(apart)}\n    at most {text(limits)}", flush=True)
            verdict = "as one GPU" if not beyond and not unlike else f"differs in {', '.join(beyond) or unlike}"
            if beyond or unlike:
                self.failed.append(f"{title}, {kind} {verdict}")
            told = ("log-probs", "loss", "gradient norm", "weights")
            self.results[layout][name] |= {"apart": apart, "limits": limits}
            self.add(f"two GPUs: {title}, {kind}", f"{verdict}: {text(apart, told)}", f"at most {text(limits, told)}")
        if speed := self.results[layout].get("speed-bf16"):
            alone = self.results["one"]["speed-bf16"]["tokens_per_second"]
            value = f"{speed['tokens_per_second']:,.0f} tokens/s (one GPU: {alone:,.0f})"
            self.add(f"two GPUs: {title}, bf16, a step of {speed['tokens']:,} tokens", value, "none set")

    @functools.cache  # noqa: B019  (one object a run)
    def limits(self, kind: str) -> dict[str, float]:
        """How far apart two layouts may be in a type of number: see the module's docstring."""
        other = ("one", "moved-float32" if kind == "float32" else "model-bf16")
        rounding = difference(self.folder, other, ("one", "model-float32"), self.device)
        rounding["loss"] = max(rounding["loss"], rounding["log-probs"])
        least = dict.fromkeys(MEASURES, ROUNDING[kind])
        return {what: FACTOR[kind] * max(rounding[what], least[what]) for what in MEASURES}

    def unlike(self, layout: str, name: str) -> str:
        """The first tensor that the ranks hold both, but not alike; nothing if there is none."""
        first, second = (rank[name]["shared"] for rank in self.results[layout]["ranks"])
        return next((f"{tensor} between ranks" for tensor in first if first[tensor] != second.get(tensor)), "")

    def add(self, what: str, value: str, goal: str) -> None:
        self.rows.append([what, value, goal])
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            content = {"rows": self.rows, "failed": self.failed, "results": self.results}
            (self.out / "tensor_parallel.json").write_text(json.dumps(content, indent=1))

    def report(self) -> int:
        """Print the table; 1 where something failed."""
        print("\n| | seen | goal |\n|---|---|---|")
        for row in self.rows:
            print(f"| {' | '.join(row)} |")
        for failure in self.failed:
            print(f"FAILED {failure}")
        return int(bool(self.failed))


def text(values: dict[str, float], told: Sequence[str] = MEASURES) -> str:
    return ", ".join(f"{what} {values[what]:.1e}" for what in told)


def environment(rank: int, ranks: int) -> dict[str, str]:
    """As a run's trainer has it: a rank sees one GPU alone."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    own = {"CUDA_VISIBLE_DEVICES": visible[rank] if rank < len(visible) else str(rank)}
    threads = str(max(1, min(8, (os.cpu_count() or 1) // 2 // ranks)))
    own |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads), "OMP_WAIT_POLICY": "passive"}
    return own | {"NCCL_CUMEM_ENABLE": "0", "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}


def waited(processes: list["subprocess.Popen[bytes]"], seconds: float) -> str:
    """Wait for all; why it did not go well, or nothing. One that ends badly leaves the others three seconds."""
    limit, first = time.monotonic() + seconds, ""
    while True:
        codes = [process.poll() for process in processes]
        if all(code == 0 for code in codes):
            return ""
        bad = [rank for rank, code in enumerate(codes) if code]
        if bad and not first:
            first, limit = f"rank {bad[0]} ended with {codes[bad[0]]}", min(limit, time.monotonic() + 3)
        if time.monotonic() > limit or None not in codes:
            return first or f"not ready after {seconds:.0f} s"
        time.sleep(0.1)


if __name__ == "__main__":
    raise SystemExit(main())
