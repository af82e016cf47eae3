"""Cost of the pipeline itself: a step whose engines answer at once.

    python benchmarks/step_overhead.py [--steps 20]

Runs the real flow (Prefect server in a process of its own, Parquet, manifests, artefacts) with an engine and a trainer
that answer immediately, and prints wall and CPU seconds a step, of this process and of the Prefect server, with the
seconds of each stage. The first two steps are left out: they load code and prompts.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def cpu_seconds() -> tuple[float, float]:
    """Of this process, and of its children (the Prefect server)."""
    import psutil

    own = psutil.Process()
    mine = sum(own.cpu_times()[:2])
    return mine, sum(sum(child.cpu_times()[:2]) for child in own.children(recursive=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREFECT_HOME"] = f"{folder}/prefect"
        os.environ["RELAX_HOME"] = f"{folder}/relax"
        Path(os.environ["PREFECT_HOME"]).mkdir()
        measure(Path(folder), steps)


def measure(folder: Path, steps: int) -> None:
    from fakes import FakeBackend
    from tiny import make_tiny

    import flows.train
    from relax_core.config import RelaxConfig

    model = make_tiny(folder / "model")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"input": f"{a} + 2 =", "label": str(a + 2)}) + "\n" for a in range(64)))
    config = RelaxConfig.model_validate(
        {
            "run": {"run_dir": str(folder / "run")},
            "checkpoint": {"hf_checkpoint": str(model)},
            "data": {"prompt_data": str(prompts), "label_key": "label"},
            "rollout": {
                "num_rollout": steps,
                "rollout_batch_size": 8,
                "n_samples_per_prompt": 4,
                "rollout_max_response_len": 8,
            },
            "reward": {"rm_type": "exact_number"},
        }
    )
    marks: list[tuple[float, float, float]] = []
    step_flow = flows.train.rollout_step

    def timed(run: object, step: int) -> object:
        marks.append((time.perf_counter(), *cpu_seconds()))
        return step_flow(run, step)

    flows.train.rollout_step = timed  # type: ignore[assignment]
    flows.train.train(config, backend=FakeBackend())
    gaps = [[b - a for a, b in zip(first, second, strict=True)] for first, second in itertools.pairwise(marks[2:])]
    print(f"\n{len(gaps)} steps of 7 tasks (and a checkpoint task at the end), engines that answer at once")
    for column, name in enumerate(("wall", "CPU of the driver", "CPU of the Prefect server")):
        values = [gap[column] for gap in gaps]
        print(f"{name:26} median {statistics.median(values):.3f} s   min {min(values):.3f}   max {max(values):.3f}")
    total = statistics.median(gap[1] + gap[2] for gap in gaps)
    print(f"{'CPU in all':26} median {total:.3f} s")


if __name__ == "__main__":
    main()
