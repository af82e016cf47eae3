"""Random batches to train on, stored once and read by every process of a test."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from data.ragged import Ragged
from data.schema import BATCH
from data.schema import table as make_table
from data.store import RunStore, TableRef


def make_batch(
    store: RunStore, name: str, samples: int = 8, vocab: int = 512, seed: int = 0, **columns: Any
) -> TableRef:
    """A random batch: groups of two, prompts of 3-9 tokens, responses of 1-12, some masked tokens."""
    rng = np.random.default_rng(seed)
    prompts, responses = rng.integers(3, 10, samples), rng.integers(1, 13, samples)
    rewards = rng.normal(size=samples)

    def rows(values: Any, lengths: Any) -> Ragged:
        return Ragged.from_lengths(np.asarray(values), lengths)

    total = int(responses.sum())
    tokens = rows(rng.integers(0, vocab, int((prompts + responses).sum())).astype(np.int32), prompts + responses)
    mask = (rng.random(total) > 0.2).astype(np.uint8)
    given: dict[str, Any] = {
        "sample_id": [f"000000-{i // 2:04d}-{i % 2:03d}" for i in range(samples)],
        "group_id": [f"000000-{i // 2:04d}" for i in range(samples)],
        "tokens": tokens,
        "response_length": responses.astype(np.int32),
        "loss_mask": rows(mask, responses),
        "rollout_log_probs": rows((-rng.random(total) * 4 - 3).astype(np.float32), responses),
        "advantages": rows(np.repeat(rewards, responses).astype(np.float32), responses),
        "returns": rows(np.repeat(rewards, responses).astype(np.float32), responses),
        "reward": rewards.astype(np.float32),
    }
    for column, value in columns.items():
        given[column] = rows(value(responses), responses)
    return store.write_table(f"{name}.parquet", make_table(BATCH, given))


def value_batch(store: RunStore, name: str, seed: int = 0) -> TableRef:
    """As ``make_batch``, with returns and with old values: random ones, most of them far from a fresh critic's."""
    rng = np.random.default_rng(seed + 100)

    def column(lengths: Any) -> Any:
        return rng.normal(0.0, 0.5, int(lengths.sum())).astype(np.float32)

    return make_batch(store, name, seed=seed, values=column, returns=column)


def batches(work: str) -> tuple[RunStore, list[TableRef]]:
    """The stored batches of the tests: the same in every process."""
    store = RunStore(work)
    refs = [json.loads(Path(work, f"ref-{i}.json").read_text()) for i in range(4)]
    return store, [TableRef.from_json(ref) for ref in refs]


def write_batches(work: str) -> None:
    for i in range(4):
        Path(work, f"ref-{i}.json").write_text(json.dumps(make_batch(RunStore(work), f"b{i}", seed=i).to_json()))
