"""TRL's GRPOTrainer on the prompts of ``vs_trl.py``: runs in an environment of its own, prints one JSON line."""

import itertools
import json
import re
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def exact_number(completions: list, answer: list[str], **_: object) -> list[float]:
    """1 where the last number of the text is the label."""
    scores = []
    for completion, label in zip(completions, answer, strict=True):
        numbers = re.findall(r"-?\d+", completion[0]["content"])
        scores.append(float(bool(numbers) and numbers[-1] == label))
    return scores


def main(model: str, prompts: str, steps: int, lr: float) -> None:
    rows = [json.loads(line) for line in Path(prompts).read_text().splitlines()]
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in rows]
    )
    config = GRPOConfig(
        output_dir="trl-out",
        per_device_train_batch_size=32,
        num_generations=4,
        max_completion_length=64,
        max_steps=steps,
        learning_rate=lr,
        temperature=1.0,
        beta=0.0,
        loss_type="grpo",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=exact_number,
        args=config,
        train_dataset=data,
    )
    generate, whole = [], []
    inner, outer = trainer._generate_and_score_completions, trainer.training_step
    lengths: list[float] = []

    def timed_generate(inputs: list) -> dict:
        started = time.perf_counter()
        result = inner(inputs)
        generate.append(time.perf_counter() - started)
        lengths.append(result["completion_mask"].sum().item())
        return result

    def timed_step(*args: object, **kwargs: object) -> object:
        whole.append(time.perf_counter())
        return outer(*args, **kwargs)

    trainer._generate_and_score_completions = timed_generate
    trainer.training_step = timed_step
    trainer.train()
    whole.append(time.perf_counter())
    steps_s = [b - a for a, b in itertools.pairwise(whole)]
    print(json.dumps({"step": steps_s, "generate": generate, "response_tokens": lengths}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
