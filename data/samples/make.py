"""Writes the sample sets beside this file: every sum of two one-digit numbers, 80 to train on and 20 to evaluate on.

Guarantee: the same files, byte for byte, each time. Run it as ``python data/samples/make.py``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

SEED = 0
TRAIN_ROWS = 80


def rows() -> list[dict[str, object]]:
    """All 100 sums a + b with a and b in 0 ... 9, shuffled with a fixed seed."""
    made: list[dict[str, object]] = [
        {
            "question": f"What is {a} + {b}? Answer with the number only.",
            "answer": str(a + b),
            "metadata": {"a": a, "b": b},
        }
        for a in range(10)
        for b in range(10)
    ]
    random.Random(SEED).shuffle(made)
    return made


def write(folder: Path) -> None:
    """Writes ``addition_train.jsonl`` and ``addition_eval.jsonl`` into ``folder``."""
    made = rows()
    for name, part in (("train", made[:TRAIN_ROWS]), ("eval", made[TRAIN_ROWS:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"addition_{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
