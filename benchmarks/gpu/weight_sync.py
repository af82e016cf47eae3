"""Where the time of a weight sync goes: trainer and engine without Ray and Prefect round them.

    python benchmarks/gpu/weight_sync.py [--size 0.6b] [--repeats 8] [--profile] [--out FOLDER]      # both on one GPU
    python benchmarks/gpu/weight_sync.py --two                # trainer on GPU 0, engine on GPU 1: by NCCL
    python benchmarks/gpu/weight_sync.py --rehearse [--two]   # without a GPU: a tiny model, in float32; gloo for NCCL

The trainer (real Megatron model, bfloat16) pushes its weights into a real SGLang engine several times, each time under
another label, and once more with --check-weight-update-equal, which must pass. A row for each push: milliseconds of
the whole, of making a group of processes, and of each part; GB/s of the whole. Parts overlap: the engine is prepared
(set_weight_version to begin_weight_update) while the first bucket is made, and the next bucket is made while it loads.
What is seen goes to ``FOLDER/weight_sync.json`` after every push.
"""

import argparse
import cProfile
import faulthandler
import functools
import json
import os
import pstats
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colocate import options
from models import SIZES, write_model

CALLS = (
    "weight_version",
    "set_weight_version",
    "pause",
    "flush_cache",
    "begin_weight_update",
    "update_weights",
    "receive_weights",
    "end_weight_update",
    "resume",
)
COLUMNS = ("tensors", "fill", "buffer", "arrive", "pickled", "broadcast", *CALLS)
SHARED_DEVICE = ("--colocate", "--offload-train", "--offload-rollout")
APART = ["--resource", json.dumps({"actor": [1, 1], "rollout": [1, 1]})]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--two", action="store_true", help="trainer on GPU 0, engine on GPU 1")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="of --two")
    parser.add_argument("--buffer", help="bytes of a bucket (--update-weight-buffer-size), e.g. 256MB")
    parser.add_argument("--profile", action="store_true", help="one more push, under cProfile")
    parser.add_argument("--limit", type=int, default=330, help="seconds after which all is ended")
    parser.add_argument("--out", type=Path, help="folder of weight_sync.json and of the engine's log; by default none")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model, in float32")
    chosen = parser.parse_args()
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), chosen)


def measure(folder: Path, chosen: argparse.Namespace) -> int:
    os.environ |= {"NCCL_CUMEM_ENABLE": "0", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    from relax_core.config.examine import prepare
    from relax_core.config.parser import read_given
    from relax_core.engines.actor import SGLangEngine
    from relax_core.engines.meeting import LOOPBACK, meeting_place
    from relax_core.engines.spec import engine_spec
    from relax_core.training import push
    from relax_core.training.trainer import Trainer

    size = "tiny" if chosen.rehearse else chosen.size
    device = "cpu" if chosen.rehearse else "cuda"
    say(f"a random model of the shape {size}")
    write_model(folder / "model", size)
    (folder / "prompts.jsonl").write_text('{"input": "1 + 1 =", "label": "2"}\n')
    given = options(folder, size, 1, chosen.rehearse)
    if chosen.two:
        backend = "gloo" if chosen.rehearse else chosen.backend
        given = [word for word in given if word not in SHARED_DEVICE]
        given += [*APART, "--checkpoint-engine-backend", backend]
    if not chosen.rehearse:
        given.append("--sglang-disable-cuda-graph")  # an earlier start; nothing is generated
    given += ["--update-weight-buffer-size", chosen.buffer] if chosen.buffer else []
    config = prepare(read_given(given, {}).config, "train", None)
    spent: dict[str, float] = defaultdict(float)
    watch(spent)
    seen = Seen(chosen, size)
    spec = engine_spec(config, 0, device, folder / "logs")  # type: ignore[arg-type]
    engine = SGLangEngine(spec.seeing({"CUDA_VISIBLE_DEVICES": "1"}) if chosen.two and device == "cuda" else spec)

    def too_long(number: int, frame: Any) -> None:
        print(f"Not done after {chosen.limit} s. Where it is:", flush=True)
        faulthandler.dump_traceback(all_threads=True)
        seen.write()
        engine.stop()
        os._exit(3)

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(chosen.limit)
    try:
        say("starts the engine")
        url = engine.start().url
        say("starts the trainer")
        trainer = Trainer(config, 0, 1, device)
        trainer.join(meeting_place(LOOPBACK))
        trainer.initialise()

        def once(label: str) -> dict[str, Any]:
            spent.clear()
            settle(device)
            started = time.perf_counter()
            report = push.push(config, lambda: trainer.model, label, [url])
            return {**report, "whole": time.perf_counter() - started, "parts": dict(spent)}

        for number in range(chosen.repeats):
            seen.add(once(f"{number}.abc"))
        if chosen.profile:
            profile = cProfile.Profile()
            profile.enable()
            once("1000.abc")
            profile.disable()
            pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(35)
        say("one more with --check-weight-update-equal")
        config.debug.check_weight_update_equal = True
        seen.checked = once("2000.abc")
        seen.write()
    finally:
        signal.alarm(0)
        engine.stop()
        if chosen.out is not None:
            for log in (folder / "logs").glob("*.log"):
                shutil.copy(log, chosen.out)
    print()
    for row in seen.rows():
        print("  ".join(row), flush=True)
    return 0


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def settle(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def watch(spent: dict[str, float]) -> None:
    """Add up the seconds of what a push is made of."""
    from relax_core.engines.control import EngineControl
    from relax_core.training import push
    from relax_core.weights import load
    from relax_core.weights.group import EngineGroup

    def timed(owner: Any, name: str, called: str = "") -> None:
        call: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(call)
        def wrapped(*arguments: Any, **words: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **words)
            finally:
                spent[called or name] += time.perf_counter() - started

        setattr(owner, name, wrapped)

    for name in CALLS:
        timed(EngineControl, name)
    timed(load, "fill")
    timed(load, "pickled")
    timed(load, "_arrive", "arrive")
    timed(load._Mapped, "buffer")
    timed(load._Broadcast, "buffer")
    timed(EngineGroup, "_broadcast", "broadcast")
    timed(push, "check_equal")

    def iterated(tensors: Any) -> Any:
        tensors = iter(tensors)
        while True:
            started = time.perf_counter()
            try:
                one = next(tensors)
            except StopIteration:
                return
            finally:
                spent["tensors"] += time.perf_counter() - started
            spent["count"] += 1
            yield one

    push.iter_parts = lambda model, real=push.iter_parts: iterated(real(model))  # type: ignore[misc]


class Seen:
    """The pushes, as they come."""

    def __init__(self, chosen: argparse.Namespace, size: str) -> None:
        self.chosen, self.size = chosen, size
        self.pushes: list[dict[str, Any]] = []
        self.checked: dict[str, Any] | None = None

    def add(self, push: dict[str, Any]) -> None:
        self.pushes.append(push)
        if len(self.pushes) == 1:
            print(" | ".join(("push", "ms", "GB/s", "buckets", "group", "engine", *COLUMNS)))
        parts = [milliseconds(push["parts"].get(name, 0.0)) for name in COLUMNS]
        rate = f"{push['bytes'] / push['whole'] / 1e9:.1f}"
        loads = milliseconds(sum(push["engines"].values()))
        row = [str(len(self.pushes)), milliseconds(push["whole"]), rate, str(push["buckets"])]
        print(" | ".join([*row, milliseconds(push["setup"]), loads, *parts]), flush=True)
        self.write()

    def rows(self) -> list[list[str]]:
        if not self.pushes:
            return []
        first, later = self.pushes[0], self.pushes[1:] or self.pushes
        way = "shared memory" if self.chosen.rehearse else "CUDA IPC, one GPU"
        goals = "60 ms", "19 to 30 ms seen with SGLang alone"
        if self.chosen.two:
            way = "gloo" if self.chosen.rehearse else f"{self.chosen.backend.upper()}, two GPUs"
            goals = "-", "26 to 33 ms seen with SGLang alone"
        tensors = round(first["parts"].get("count", 0))
        what = f"weight sync of {self.size} ({first['bytes'] / 1e9:.2f} GB, {tensors} tensors) by {way}"
        whole = statistics.median(push["whole"] for push in later)
        loads = statistics.median(sum(push["engines"].values()) for push in later)
        best = min(push["whole"] for push in later)
        spread = f"{milliseconds(best)} to {milliseconds(max(push['whole'] for push in later))} ms"
        seen = f"{milliseconds(whole)} ms ({spread}), {first['bytes'] / whole / 1e9:.1f} GB/s"
        begins = f"{milliseconds(first['whole'])} ms, {milliseconds(first['setup'])} of them for a group"
        found = [
            [f"{what}: the whole path, median of {len(later)}", seen, goals[0]],
            [f"{what}: the engine's part", f"{milliseconds(loads)} ms", goals[1]],
            [f"{what}: the first", begins, "-"],
        ]
        if self.checked is not None:
            seconds = self.checked["parts"].get("check_equal", 0.0)
            passed = "passed" if self.checked["checked"] else "not made"
            found.append([f"{what}: --check-weight-update-equal", f"{passed}, {seconds:.2f} s", "passed"])
        return found

    def write(self) -> None:
        if self.chosen.out is not None:
            whole = {"rows": self.rows(), "pushes": self.pushes, "check": self.checked, "two": self.chosen.two}
            (self.chosen.out / "weight_sync.json").write_text(json.dumps(whole, indent=1))


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the ordinary end would wait for the engine's end of the group
