"""Samples as dictionaries, as slime's debugging files hold them, from and to the tables of a step.

Guarantee: what ``rollout_samples`` makes of two tables, ``rollout_table_of`` and ``reward_table_of`` make into equal
tables again; a sample of another system needs tokens, a response length, log-probs and a status, and what it says too
little about is an error that names it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from data.errors import UserError
from data.schema import REWARD, ROLLOUT, STATUSES, part
from data.schema import table as schema_table
from relax_core.tracking.metrics import aligned

Sample = Mapping[str, Any]

_JSON = ("label", "metadata", "train_metadata", "spec_info", "prefix_cache_info")
"""Columns that hold JSON text, and values in a dictionary."""

_BINARY = tuple(field.name for field in ROLLOUT if pa.types.is_large_binary(field.type))

_REASONS = {"completed": "stop", "truncated": "length", "aborted": "abort", "failed": "failed"}


def rollout_samples(rollout: pa.Table, reward: pa.Table) -> list[dict[str, Any]]:
    """One dictionary a sample: its columns, the score as ``reward``, and what else is known of the score.

    Args:
        rollout: N rows of schema ``ROLLOUT`` or ``EVAL``.
        reward: rows of schema ``REWARD`` or ``EVAL`` for the same samples.

    Returns:
        N dictionaries, in the order of ``rollout``.
    """
    scores = aligned(reward, rollout).select(REWARD.names).to_pylist()
    samples = []
    for row, score in zip(part(rollout, ROLLOUT).to_pylist(), scores, strict=True):
        sample = {**row, **{name: None if row[name] is None else json.loads(row[name]) for name in _JSON}}
        sample["spec_info"] = sample["spec_info"] or {}
        if cache := sample["prefix_cache_info"]:
            sample["prefix_cache_info"] = {**cache, "total_prompt_tokens": cache.get("prompt_tokens", 0)}
        sample["prefix_cache_info"] = sample["prefix_cache_info"] or {}
        sample["weight_versions"] = [str(version) for version in sample["weight_versions"]]
        sample |= {name: score[name] for name in ("reward", "raw_reward", "rm_type")}
        sample["reward_components"] = json.loads(score["components"] or "null")
        sample["reward_error"] = score["error"]
        samples.append(sample)
    return samples


def batch_samples(batch: pa.Table) -> list[dict[str, Any]]:
    """One dictionary a row of schema ``BATCH``."""
    return [dict(row) for row in batch.to_pylist()]


def subsample(samples: Sequence[Sample], share: float, group_size: int) -> list[Sample]:
    """A share of the groups, half of it from either end, at least one group; groups stay whole."""
    groups: dict[Any, list[Sample]] = {}
    for name, sample in zip(_group_names(samples, group_size), samples, strict=True):
        groups.setdefault(name, []).append(sample)
    count = max(int(len(groups) * share), 1) if groups else 0
    rest = list(groups.values())
    chosen = rest[: count // 2] + rest[len(rest) - (count - count // 2) :]
    return [sample for group in chosen for sample in group]


def rollout_table_of(samples: Sequence[Sample], step: int, group_size: int) -> pa.Table:
    """The samples as rows of schema ``ROLLOUT``.

    Args:
        samples: N of them; what only Relax writes may be missing.
        step: the rows are of this step.
        group_size: consecutive samples that form a group where the samples do not say which.

    Raises:
        UserError: the sample that lacks something, and what.
    """
    rows, names = [], _group_names(samples, group_size)
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    taken: dict[Any, int] = {}
    for number, (sample, name) in enumerate(zip(samples, names, strict=True)):
        place = order[name]
        group_id = sample.get("group_id") or f"{step:06d}-{place:04d}"
        k = taken[name] = taken.get(name, -1) + 1
        rows.append(_row(sample, number, step, str(group_id), place, k))
    columns = {name: [row[name] for row in rows] for name in ROLLOUT.names}
    return schema_table(ROLLOUT, {name: pa.array(column, ROLLOUT.field(name).type) for name, column in columns.items()})


def _row(sample: Sample, number: int, step: int, group_id: str, place: int, k: int) -> dict[str, Any]:
    status = str(sample.get("status"))
    for name in ("tokens", "response_length", "rollout_log_probs"):
        if sample.get(name) is None and status in ("completed", "truncated"):
            raise UserError(f"Sample {number} of the recorded rollout has no {name}.", "Record it with them.")
    if status not in STATUSES:
        raise UserError(f"Sample {number} of the recorded rollout is '{status}'.", f"Known: {', '.join(STATUSES)}.")
    length = int(sample.get("response_length") or 0)
    tokens, prompt = list(sample.get("tokens") or []), sample.get("prompt", "")
    cache = dict(sample.get("prefix_cache_info") or {})
    prompt_tokens = cache.pop("total_prompt_tokens", 0)  # slime's name for them
    if cache:
        cache.setdefault("prompt_tokens", prompt_tokens)
    for name in _BINARY:
        if not isinstance(sample.get(name), bytes | None):
            raise UserError(
                f"Sample {number} of the recorded rollout has {name} that are no bytes.", "Leave such samples out."
            )
    index = sample.get("index")
    mask = sample.get("loss_mask")
    return {
        **{name: sample.get(name) for name in ROLLOUT.names},
        "sample_id": str(sample.get("sample_id") or f"{group_id}-{k:03d}"),
        "group_id": group_id,
        "prompt_id": str(sample.get("prompt_id") or place),
        "group_index": place if sample.get("group_index") is None else int(sample["group_index"]),
        "index": number if index is None else int(index),
        "step": step,
        "seed": int(sample.get("seed") or 0),
        "prompt": prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False),
        "tokens": tokens,
        "prompt_length": len(tokens) - length,
        "response_length": length,
        "response": sample.get("response") or "",
        "label": None if sample.get("label") is None else json.dumps(sample["label"], ensure_ascii=False),
        "metadata": json.dumps(sample.get("metadata") or {}, ensure_ascii=False),
        "loss_mask": [1] * length if mask is None else list(mask),
        "rollout_log_probs": list(sample.get("rollout_log_probs") or []),
        "weight_versions": [int(v) for v in sample.get("weight_versions") or [] if str(v).isdigit()],
        "status": status,
        "finish_reason": sample.get("finish_reason") or _REASONS[status],
        "remove_sample": bool(sample.get("remove_sample")),
        "train_metadata": _text(sample.get("train_metadata")),
        "spec_info": _text(sample.get("spec_info") or None),
        "prefix_cache_info": _text(cache or None),
        "abort_count": int(sample.get("abort_count") or 0),
    }


def reward_table_of(samples: Sequence[Sample], rollout: pa.Table, reward_key: str | None) -> pa.Table | None:
    """The scores that the samples carry, as rows of schema ``REWARD``; None when none has one.

    Args:
        rollout: ``rollout_table_of`` of them.
        reward_key: the key of the score where it is a dictionary.

    Raises:
        UserError: a dictionary without that key.
    """
    if all(sample.get("reward") is None for sample in samples):
        return None
    columns: dict[str, list[Any]] = {name: [] for name in ("reward", "raw_reward", "rm_type", "components", "error")}
    for sample, sample_id in zip(samples, rollout["sample_id"].to_pylist(), strict=True):
        score, components = sample.get("reward"), sample.get("reward_components")
        if isinstance(score, Mapping):
            if reward_key not in score:
                raise UserError(
                    f"The recorded reward of sample {sample_id} is a dict with the keys {', '.join(map(repr, score))}.",
                    "Name the key of the score with --reward-key.",
                )
            components = {key: value for key, value in score.items() if key != reward_key}
            score = score[reward_key]
        metadata = sample.get("metadata") or {}
        raw = sample["raw_reward"] if "raw_reward" in sample else metadata.get("raw_reward", score)
        columns["reward"].append(score)
        columns["raw_reward"].append(raw)
        columns["rm_type"].append(str(sample.get("rm_type") or metadata.get("rm_type") or "recorded"))
        columns["components"].append(_text(components))
        error = sample.get("reward_error") or ("no score was recorded" if score is None else None)
        columns["error"].append(error)
    arrays = {name: pa.array(column, REWARD.field(name).type) for name, column in columns.items()}
    return schema_table(REWARD, {**{name: rollout[name] for name in ("sample_id", "group_id")}, **arrays})


def _group_names(samples: Sequence[Sample], group_size: int) -> list[Any]:
    """What says which samples belong together: their groups' ids or indices, else their places."""
    for key in ("group_id", "group_index"):
        if all(sample.get(key) is not None for sample in samples):
            return [sample[key] for sample in samples]
    return [number // max(group_size, 1) for number in range(len(samples))]


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
