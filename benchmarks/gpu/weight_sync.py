"""Where the time of a weight sync goes, on one GPU: trainer and engine without Ray and Prefect round them.

    python benchmarks/gpu/weight_sync.py [--size 0.9b] [--repeats 5] [--profile]
    python benchmarks/gpu/weight_sync.py --rehearse      # without a GPU: a tiny model, in float32

The trainer (real Megatron model, bfloat16) pushes its weights into a real SGLang engine several times, each time under
another label. A line for each push: seconds of the whole, of each call to the engine, of making the tensors and of
copying them into the bucket; GB/s of the whole.
"""

import argparse
import cProfile
import functools
import os
import pstats
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colocate import options
from models import SIZES, write_model

CALLS = (
    "set_weight_version",
    "weight_version",
    "pause",
    "flush_cache",
    "begin_weight_update",
    "update_weights",
    "end_weight_update",
    "resume",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.9b")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="the last push under cProfile")
    parser.add_argument("--rehearse", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), chosen)


def measure(folder: Path, chosen: argparse.Namespace) -> None:
    os.environ |= {"NCCL_CUMEM_ENABLE": "0", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo"}
    from relax_core.config.examine import prepare
    from relax_core.config.parser import read_given
    from relax_core.engines.actor import SGLangEngine
    from relax_core.engines.control import EngineControl
    from relax_core.engines.spec import engine_spec
    from relax_core.training import push
    from relax_core.training.trainer import Trainer
    from relax_core.weights import transport

    size = "tiny" if chosen.rehearse else chosen.size
    device = "cpu" if chosen.rehearse else "cuda"
    write_model(folder / "model", size)
    (folder / "prompts.jsonl").write_text('{"input": "1 + 1 =", "label": "2"}\n')
    config = prepare(read_given(options(folder, size, 1, chosen.rehearse), {}).config, "train", None)
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def wrapped(*arguments: Any, **words: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **words)
            finally:
                spent[name] += time.perf_counter() - started

        return wrapped

    for name in CALLS:
        setattr(EngineControl, name, timed(name, getattr(EngineControl, name)))
    for name in ("_fill", "_pickle", "_shared_buffer"):
        setattr(transport, name, timed(name, getattr(transport, name)))

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
            yield one

    push.iter_hf = lambda model, real=push.iter_hf: iterated(real(model))  # type: ignore[misc]
    engine = SGLangEngine(engine_spec(config, 0, device, folder / "logs"))  # type: ignore[arg-type]
    try:
        url = engine.start().url
        trainer = Trainer(config, 0, 1, device)
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        trainer.join(f"tcp://127.0.0.1:{port}")
        trainer.initialise()
        for number in range(chosen.repeats):
            spent.clear()
            profile = cProfile.Profile() if chosen.profile and number == chosen.repeats - 1 else None
            started = time.perf_counter()
            if profile:
                profile.enable()
            report = push.push(config, lambda: trainer.model, f"{number}.abc", [url])
            if profile:
                profile.disable()
            seconds = time.perf_counter() - started
            parts = "  ".join(f"{name} {1000 * value:.1f}" for name, value in spent.items())
            rate = report["bytes"] / seconds / 1e9
            print(f"push {number}: {1000 * seconds:.1f} ms  {rate:.1f} GB/s  {report['buckets']} buckets  [{parts}]")
            if profile:
                pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(35)
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
