"""A tiny judge that judges: a Llama that learns, in half a minute, to say whether an answer is nothing but text.

Guarantee: ``make_judge`` writes an ordinary Hugging Face folder, trained on what the built-in template ``correctness``
asks; the same seed gives the same weights on the same machine. ``right`` is its rule in plain Python.
"""

import random
from pathlib import Path
from typing import Any

from tiny import make_tiny

from relax_core.rewards.judge.question import question
from relax_core.rewards.types import RewardInput

TEMPLATE = "correctness"
NO_TEXT = "\ufffd"
YES, NO = "[[yes]]", "[[no]]"
VOCABULARY = 640
RATE = 6e-3


def right(response: str) -> bool:
    """What the judge says yes to: text alone. Bytes that are none, as a random policy writes them, become a mark."""
    return NO_TEXT not in response


def make_policy_samples(tokenizer: Any, count: int, seed: int, longest: int = 12) -> list[RewardInput]:
    """Responses as a random policy writes them, and with more letters of other scripts; about half are only text."""
    rng = random.Random(seed)
    plain = [i for i in range(len(tokenizer)) if i > 2 and tokenizer.decode([i]).isascii()]
    samples = []
    for number in range(count):
        length = rng.randrange(1, longest + 1)
        ids = [rng.choice(plain) for _ in range(length)]
        if rng.random() < 0.5:
            for place in rng.sample(range(length), rng.randrange(1, length + 1)):
                ids[place] = rng.randrange(3, len(tokenizer))
        a, b = rng.randrange(60), rng.randrange(60)
        response = tokenizer.decode(ids, skip_special_tokens=True)
        for _ in range(rng.choice((0, 0, 0, 1, 2))):  # text that shares bytes with the mark
            place = rng.randrange(len(response) + 1)
            response = response[:place] + chr(rng.randrange(0xA1, 0x800)) + response[place:]
        samples.append(RewardInput(f"s-{number}", f"{a} + {b} =", response, str(a + b)))
    return samples


def make_judge(folder: str | Path, policy: str | Path, seed: int = 0, steps: int = 250, batch: int = 16) -> Path:
    """Train the judge.

    Args:
        folder: where to.
        policy: folder whose tokenizer writes the responses that it learns from.
        seed: of weights and samples.
        steps, batch: of the training.

    Returns:
        The folder.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    writer = AutoTokenizer.from_pretrained(policy)
    plain = [sample for sample in make_policy_samples(writer, 128, seed + 1) if right(sample.response)]
    corpus = [message["content"] for sample in plain for message in question(sample, TEMPLATE).messages]
    folder = make_tiny(
        folder,
        "llama",
        seed=seed,
        vocab=VOCABULARY,
        layers=1,
        hidden=32,
        ffn=64,
        initializer_range=0.05,
        corpus=corpus,
        marks=[NO_TEXT],
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    samples = make_policy_samples(writer, steps * batch, seed + 2)
    rows = [_row(tokenizer, sample) for sample in samples]
    for step in range(steps):
        taken = sorted(rows[step * batch : (step + 1) * batch], key=lambda row: len(row[0]))
        longest = max(len(prompt) + len(answer) for prompt, answer in taken)
        ids = torch.zeros(batch, longest, dtype=torch.long)
        labels = torch.full((batch, longest), -100)
        for place, (prompt, answer) in enumerate(taken):
            ids[place, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[place, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        hidden = model.model(ids).last_hidden_state[:, :-1]
        counted = labels[:, 1:] != -100
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[counted]), labels[:, 1:][counted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    return folder


def _row(tokenizer: Any, sample: RewardInput) -> tuple[list[int], list[int]]:
    """Tokens of the question, and of its answer with the end of the turn."""
    messages = question(sample, TEMPLATE).messages
    prompt = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    answer = (YES if right(sample.response) else NO) + tokenizer.eos_token
    return tuple(tokenizer.encode(text, add_special_tokens=False) for text in (prompt, answer))  # type: ignore[return-value]
