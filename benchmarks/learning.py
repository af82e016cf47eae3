"""Learning from scratch: a tiny random model, a toy task, the whole loop on a CPU.

    python benchmarks/learning.py [--out learning.png] [--estimator ppo]

The model (two layers, 16 characters as vocabulary, random weights) is asked for the digit after the one it is shown
and may answer with one token: chance is 1/16. Trained with GRPO, or with PPO and a critic, through the real flow
(SGLang, Megatron-core, Ray, Prefect) until the mean reward of a step is above 0.8; prints the curve, writes it as a
picture, and fails when it is not reached. The seed is fixed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
GOAL = 0.8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("learning.png"), help="the picture")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--estimator", choices=("grpo", "ppo"), default="grpo")
    parser.add_argument("--keep", type=Path, help="folder for the run; by default a temporary one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return learn(chosen.keep or Path(temporary), chosen.steps, chosen.out, chosen.estimator)


def learn(folder: Path, steps: int, picture: Path, estimator: str) -> int:
    from flows.train import train
    from relax_core.config import RelaxConfig
    from relax_core.models import prepare_toy

    model = prepare_toy(folder / "model")

    config = RelaxConfig.model_validate(
        {
            "run": {"run_dir": str(folder / "run")},
            "checkpoint": {"hf_checkpoint": str(model)},
            "data": {"prompt_data": str(model / "prompts.jsonl"), "label_key": "label", "rollout_shuffle": True},
            "rollout": {
                "num_rollout": steps,
                "rollout_batch_size": 10,
                "n_samples_per_prompt": 16,
                "rollout_max_response_len": 1,
                "rollout_max_context_len": 16,
            },
            "batch": {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 4096, "num_steps_per_rollout": 2},
            "optimizer": {"lr": 3e-3, "weight_decay": 0.0},
            "reward": {"rm_type": "exact_number"},
            "algorithm": {"advantage_estimator": estimator},
        }
    )
    if estimator == "ppo":
        config.cluster.resource = {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 1), "advantages": (1, 0)}
    started = time.perf_counter()
    train(config)
    seconds = time.perf_counter() - started
    curve = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return report(curve, seconds, picture)


def report(curve: list[dict[str, Any]], seconds: float, picture: Path) -> int:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rewards = [row["reward/mean"] for row in curve]
    pyplot.figure(figsize=(7, 4))
    pyplot.plot([row["step"] for row in curve], rewards, label="mean reward")
    pyplot.axhline(1 / 16, linestyle=":", color="grey", label="chance")
    pyplot.axhline(GOAL, linestyle="--", color="green", label="goal")
    pyplot.xlabel("step")
    pyplot.ylabel("mean reward")
    pyplot.legend()
    pyplot.tight_layout()
    pyplot.savefig(picture, dpi=120)
    reached = next((row["step"] for row in curve if row["reward/mean"] > GOAL), None)
    print(f"reward {rewards[0]:.3f} -> {rewards[-1]:.3f} in {len(curve)} steps, {seconds:.0f} s")
    print(f"above {GOAL} first in step {reached}")
    print(f"curve: {picture}")
    return 0 if reached is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
