"""What steps that overlap are worth, with simulated engine times: a long-tailed generation, and an update.

    python benchmarks/overlap.py [--steps 12] [--generate 5] [--train 5] [--picture overlap.svg]

The real flow, with a Prefect server of its own; the engine takes a simulated time for each token (the longest response
of a step about three times the mean), the trainer for each update and each slice. Prints seconds a step of each mode,
against the sum of generation and training, and against the larger of the two, which no mode without slices goes below.
The first two steps and the last are left out. ``--picture`` draws who worked when.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

GROUPS, SAMPLES, LONGEST = 8, 4, 100
MODES: dict[str, dict[str, Any]] = {
    "synchronous": {"true_on_policy_mode": True},
    "staleness 0, 4 slices": {"fully_async": True, "num_iters_per_train_update": 4},
    "staleness 1": {"fully_async": True, "max_staleness": 1},
    "staleness 1, 4 slices": {"fully_async": True, "max_staleness": 1, "num_iters_per_train_update": 4},
    "staleness 2": {"fully_async": True, "max_staleness": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--generate", type=float, default=5.0, help="seconds of a step's longest response")
    parser.add_argument("--train", type=float, default=5.0, help="seconds of an update")
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREFECT_HOME"] = f"{folder}/prefect"
        os.environ["RELAX_HOME"] = f"{folder}/relax"
        Path(os.environ["PREFECT_HOME"]).mkdir()
        spans = {mode: measure(Path(folder), mode, options) for mode in options.modes}
    report(spans, options.steps)
    if options.picture:
        draw(spans, options.picture)


def measure(folder: Path, mode: str, options: argparse.Namespace) -> list[tuple[str, int, float, float]]:
    """Stage, step, begin and end of what ran."""
    from fakes import FakeBackend, FakeEngine, FakeTrainer
    from tiny import make_tiny

    from flows.train import train
    from relax_core.config import RelaxConfig, with_options
    from relax_core.tracking.events import read_events

    class TailEngine(FakeEngine):
        """A response's length is decided by its sample, also when it is asked for in pieces."""

        pace = options.generate / LONGEST

        def length(self, rid: str, asked: int, noise: str, longest: int) -> int:
            sample = rid.rsplit(".", 2)[0]
            begun = self.begun.setdefault(sample, asked)
            return max(1, tail(sample, LONGEST) - (asked - begun))

        begun: ClassVar[dict[str, int]] = {}

    class SimulatedTrainer(FakeTrainer):
        """Takes its time for an update, less what it has accumulated; half a second of it for the optimiser."""

        done = 0

        def accumulate(self, version: int, rows: Any, number: int, weights_id: str = "") -> dict[str, Any]:
            time.sleep(options.train / 4)
            self.done = number + 1
            return {"accumulated": self.done}

        def train(self, *args: Any) -> dict[str, Any]:
            time.sleep(options.train * (1 - self.done / 4) + 0.1)
            self.done = 0
            return super().train(*args)

        def push_weights(self, *args: Any) -> dict[str, Any]:
            time.sleep(0.1)
            return super().push_weights(*args)

    model = folder / "model"
    if not model.exists():
        make_tiny(model)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"input": f"{a} + 2 =", "label": str(a + 2)}) + "\n" for a in range(64)))
    TailEngine.begun = {}
    backend = FakeBackend()
    backend.engine.stop()
    backend.engine = TailEngine()
    backend.trainer = SimulatedTrainer(backend.engine, events=backend.events)
    run_dir = folder / mode.replace(" ", "-").replace(",", "")
    values = {
        "run_dir": str(run_dir),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": options.steps,
        "rollout_batch_size": GROUPS,
        "n_samples_per_prompt": SAMPLES,
        "rollout_max_response_len": LONGEST,
        "rm_type": "random",
        "resource": {"actor": (1, 1), "rollout": (1, 1)},
        **MODES[mode],
    }
    train(with_options(RelaxConfig(), values), backend=backend)
    from data.store import RunStore

    begun: dict[tuple[str, int], float] = {}
    found = []
    for event in read_events(RunStore(str(run_dir))):
        place = (event["who"], event["step"])
        if event["kind"] == "stage_started":
            begun[place] = event["time"]
        elif event["kind"] == "stage_finished":
            found.append((event["who"], event["step"], begun[place], event["time"]))
        elif event["kind"] == "slice_accumulated":
            found.append(("slice", event["step"], event["time"] - options.train / 4, event["time"]))
        elif event["kind"] == "step_committed":
            found.append(("commit", event["step"], event["time"], event["time"]))
    return found


def tail(sample: str, longest: int) -> int:
    """Tokens of a response: of a step's 32 the longest has all, half have less than a third."""
    import hashlib

    group, k = int(sample.split("-")[1]), int(sample.split("-")[2])
    if (group, k) == (0, 0):
        return longest
    share = int(hashlib.sha256(sample.encode()).hexdigest()[:8], 16) / 2**32
    return max(1, int(longest * share**3 * 0.95) + 1)


def report(spans: dict[str, list[tuple[str, int, float, float]]], steps: int) -> None:
    def mean(mode: str, stage: str) -> float:
        return statistics.mean(end - begin for who, step, begin, end in spans[mode] if who == stage and step >= 2)

    first = next(iter(spans))
    generate, train = mean(first, "generate"), mean(first, "train")
    both = f"sum {generate + train:.2f}, larger {max(generate, train):.2f}"
    print(f"\ngeneration {generate:.2f} s, update {train:.2f} s: {both}")
    print(f"{'mode':24} {'s a step':>9} {'of the sum':>11} {'of the larger':>14}")
    for mode, found in spans.items():
        ends = sorted(end for who, step, _, end in found if who == "commit" and 1 <= step < steps - 1)
        period = (ends[-1] - ends[0]) / (len(ends) - 1)
        shares = period / (generate + train), period / max(generate, train)
        print(f"{mode:24} {period:9.2f} {shares[0]:11.2f} {shares[1]:14.2f}")


def draw(spans: dict[str, list[tuple[str, int, float, float]]], path: Path) -> None:
    """Who worked when: a row for generation and one for training in each mode."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "relax", "svg.fonttype": "none", "font.size": 9}
    colours = ["#1d4ed8", "#c2410c", "#15803d", "#7e22ce"]
    figure, axes = plt.subplots(len(spans), 1, sharex=True, figsize=(9, 1.05 * len(spans) + 0.6), squeeze=False)
    for place, (mode, found) in zip(axes[:, 0], spans.items(), strict=True):
        origin = min(begin for _, _, begin, _ in found)
        for who, step, begin, end in found:
            row = {"generate": 1, "train": 0, "slice": 0}.get(who)
            if row is not None and step < 6:
                pale = 0.45 if who == "slice" else 0.9
                place.barh(row, end - begin, left=begin - origin, height=0.8, color=colours[step % 4], alpha=pale)
                if who != "slice":
                    place.text((begin + end) / 2 - origin, row, str(step), ha="center", va="center", color="white")
        place.set_yticks([0, 1], ["train", "generate"])
        place.set_title(mode, loc="left", fontsize=9)
        place.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("seconds; a colour and number for each step; pale: slices while the step still generates")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
