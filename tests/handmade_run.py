"""A run written by hand: one step of two groups of two samples, whose every number can be followed.

A token is a byte: token 65 is "A", and "é" is the two tokens 195 and 169.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data.ragged import Ragged
from data.schema import BATCH, REWARD, ROLLOUT
from data.schema import table as make_table
from data.store import RunStore

STEP = 4
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\"><!-- é"
"""What a response may hold."""

PROMPT = "Say 7 & <b>stop</b>"

IDS = ["000004-0000-000", "000004-0000-001", "000004-0001-000", "000004-0001-001"]
RESPONSES = ["AB7é", HOSTILE, "C", "DE\n7"]
REWARDS: list[float | None] = [1.0, 0.0, None, 0.5]
ADVANTAGES = [1.0, -1.0, 0.0, 0.5]


def byte_tokenizer(folder: Path) -> Path:
    """A model's folder with a tokenizer whose tokens are the bytes, by their number; 256 is ``<|end|>``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(other)}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def rollout(
    ids: Sequence[str] = IDS, responses: Sequence[str] = RESPONSES, prompt: str = PROMPT, **columns: Any
) -> pa.Table:
    """Schema ``ROLLOUT``: every token has log-prob -1, version 4 made it, and it is trained on."""
    count, first = len(ids), list(prompt.encode())
    bodies = [list(text.encode()) for text in responses]
    lengths = [len(body) for body in bodies]
    values = {
        "sample_id": list(ids),
        "group_id": [one.rpartition("-")[0] for one in ids],
        "prompt_id": ["00000000"] * count,
        "group_index": [int(one.split("-")[-2]) for one in ids],
        "index": list(range(count)),
        "step": [STEP] * count,
        "seed": [0] * count,
        "prompt": [prompt] * count,
        "tokens": [[*first, *body] for body in bodies],
        "prompt_length": [len(first)] * count,
        "response_length": lengths,
        "response": list(responses),
        "label": ['"7"'] * count,
        "metadata": ["{}"] * count,
        "loss_mask": [[1] * n for n in lengths],
        "rollout_log_probs": [[-1.0] * n for n in lengths],
        "weight_versions": [[STEP]] * count,
        "token_versions": [[STEP] * n for n in lengths],
        "status": ["completed"] * count,
        "finish_reason": ["stop"] * count,
        "remove_sample": [False] * count,
        "abort_count": [0] * count,
    }
    return make_table(ROLLOUT, {**values, **columns})


def reward(ids: Sequence[str] = IDS, rewards: Sequence[float | None] = REWARDS, **columns: Any) -> pa.Table:
    """Schema ``REWARD``."""
    values = {
        "sample_id": list(ids),
        "group_id": [one.rpartition("-")[0] for one in ids],
        "reward": list(rewards),
        "raw_reward": list(rewards),
        "rm_type": ["custom"] * len(ids),
        "components": ['{"format": 0.5}'] * len(ids),
        "outcome": ["no_score" if one is None else "scored" for one in rewards],
    }
    return make_table(REWARD, {**values, **columns})


def batch(made: pa.Table, advantages: Sequence[float] = ADVANTAGES, **columns: Any) -> pa.Table:
    """Schema ``BATCH`` for a rollout. The trainer's log-probs of a response's first two tokens are -1.2 and -0.9, those
    of the others -1: gaps of -0.2, 0.1 and 0."""
    lengths = made["response_length"].to_pylist()
    old = [[-1.2, -0.9][:n] + [-1.0] * (n - 2) for n in lengths]
    flat = Ragged.from_list([np.full(n, value) for n, value in zip(lengths, advantages, strict=True)], np.float32)
    values = {name: made[name] for name in ("sample_id", "group_id", "tokens", "response_length", "rollout_log_probs")}
    values |= {"loss_mask": made["loss_mask"], "advantages": flat, "returns": flat, "old_log_probs": old}
    return make_table(BATCH, {**values, **columns})


def write_run(folder: Path, model: Path | None = None) -> RunStore:
    """The run, with the rows of its tables in three orders, since only ids count. Version 3 made the first token of the
    first response, whose last two tokens are not trained on; the second response is truncated.

    Args:
        model: its folder; None: the run has no ``config.yaml``.
    """
    store = RunStore(str(folder))
    rest = [len(text.encode()) for text in RESPONSES[1:]]
    made = rollout(
        token_versions=[[3, 4, 4, 4, 4], *([STEP] * n for n in rest)],
        loss_mask=[[1, 1, 1, 0, 0], *([1] * n for n in rest)],
        weight_versions=[[3, 4], [4], [4], [4]],
        status=["completed", "truncated", "completed", "completed"],
        finish_reason=["stop", "length", "stop", "stop"],
    )
    store.write_table(store.step_path(STEP, "rollout.parquet"), made)
    store.write_table(store.step_path(STEP, "reward.parquet"), reward().take([2, 0, 3, 1]))
    store.write_table(store.step_path(STEP, "batch.parquet"), batch(made).take([3, 2, 1, 0]))
    if model is not None:
        write_config(store, model)
    return store


def write_config(store: RunStore, model: Path) -> None:
    """``config.yaml`` of a run of this model."""
    from relax_core.config import RelaxConfig, run_file
    from relax_core.config.options import with_options

    config = with_options(RelaxConfig(), {"run_dir": store.url, "hf_checkpoint": str(model)})
    store.write_bytes("config.yaml", run_file.dump(config, {}).encode())
