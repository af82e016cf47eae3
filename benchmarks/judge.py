"""Learning from a judge's verdicts: two models, the whole loop on a CPU.

    python benchmarks/judge.py [--steps 20] [--out judge.png] [--keep FOLDER]

A tiny Llama is taught to judge (tests/judging.py): asked with the built-in template ``correctness`` it says yes where
an answer is nothing but text. A random policy, which writes bytes that are no text in about half of its answers, is
trained with GRPO through the real flow (SGLang for policy and judge, Megatron-core, Ray, Prefect) on these verdicts
alone. Prints and draws the curve, counts the rewards that are not what the rule says in plain Python, and fails when
there are any, or when the mean reward of the last three steps is not above 0.9.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
GOAL = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("judge.png"), help="the picture")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="folder for the run; by default a temporary one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return learn(chosen.keep or Path(temporary), chosen.steps, chosen.out)


def learn(folder: Path, steps: int, picture: Path) -> int:
    from judging import make_judge, right
    from tiny import make_tiny

    from data.store import RunStore
    from flows.train import train
    from relax_core.config import RelaxConfig

    policy = make_tiny(folder / "policy")
    started = time.perf_counter()
    judge = make_judge(folder / "judge", policy)
    print(f"the judge was taught in {time.perf_counter() - started:.0f} s")
    prompts = folder / "sums.jsonl"
    rows = [{"input": f"{a} + {b} =", "label": str(a + b)} for a in range(8) for b in range(8)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RelaxConfig.model_validate(
        {
            "run": {"run_dir": str(folder / "run")},
            "checkpoint": {"hf_checkpoint": str(policy)},
            "data": {"prompt_data": str(prompts), "label_key": "label", "rollout_shuffle": True},
            "rollout": {
                "num_rollout": steps,
                "rollout_batch_size": 8,
                "n_samples_per_prompt": 8,
                "rollout_max_response_len": 4,
                "rollout_max_context_len": 64,
            },
            "batch": {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 4096},
            "optimizer": {"lr": 3e-3, "weight_decay": 0.0},
            "reward": {"rm_type": "dapo-genrm"},
            "genrm": {
                "genrm_model_path": str(judge),
                "genrm_engine_config": {"max_context_len": 1024},
                "genrm_sampling_config": {"max_response_len": 8},
            },
        }
    )
    started = time.perf_counter()
    train(config)
    seconds = time.perf_counter() - started
    store, means, wrong, judged = RunStore(str(folder / "run")), [], 0, 0.0
    for step in range(steps):
        name = f"steps/{step:06d}/{{}}.parquet"
        rewards = store.read_table(name.format("reward"))["reward"].to_pylist()
        responses = store.read_table(name.format("rollout"))["response"].to_pylist()
        wrong += sum(score != right(text) for score, text in zip(rewards, responses, strict=True))
        judged += sum(store.read_table(name.format("reward_seconds"))["seconds"].to_pylist())
        means.append(sum(score or 0.0 for score in rewards) / len(rewards))
    draw(means, picture)
    print("mean reward by step: " + " ".join(f"{mean:.2f}" for mean in means))
    count = steps * 64
    print(f"{steps} steps, {count} verdicts in {seconds:.0f} s, {1000 * judged / count:.0f} ms each; {wrong} not right")
    return 0 if wrong == 0 and sum(means[-3:]) / 3 > GOAL else 1


def draw(means: list[float], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.figure(figsize=(7, 4))
    pyplot.plot(means, label="mean verdict")
    pyplot.axhline(GOAL, linestyle="--", color="green", label="goal")
    pyplot.xlabel("step")
    pyplot.legend()
    pyplot.tight_layout()
    pyplot.savefig(picture, dpi=120)


if __name__ == "__main__":
    raise SystemExit(main())
