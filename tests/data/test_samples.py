"""The sample sets that ship with the project."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import data

FOLDER = Path(data.__file__).parent / "samples"


def rows(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (FOLDER / f"addition_{name}.jsonl").read_text().splitlines()]


def test_the_two_sets_hold_every_sum_once() -> None:
    train, evaluation = rows("train"), rows("eval")
    assert (len(train), len(evaluation)) == (80, 20)
    pairs = [(row["metadata"]["a"], row["metadata"]["b"]) for row in train + evaluation]  # type: ignore[index]
    assert sorted(pairs) == [(a, b) for a in range(10) for b in range(10)]
    for row, (a, b) in zip(train + evaluation, pairs, strict=True):
        assert row["answer"] == str(a + b)
        assert f"{a} + {b}?" in str(row["question"])


def test_the_script_writes_the_same_bytes_again(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    make.write(tmp_path)
    for name in ("addition_train.jsonl", "addition_eval.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
