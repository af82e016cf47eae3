"""Metrics of a rollout, from its tables.

Guarantee: rows are matched by sample id; samples without a score take no part in reward metrics; a metric that has no
samples is absent, and a step without any sample or score gives the rest and does not fail.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data.errors import UserError
from relax_core.algorithms.metrics import length_stats, pass_at_k, repetition_frac, zero_spread_groups


def step_metrics(rollout: pa.Table, reward: pa.Table) -> dict[str, float]:
    """Metrics of one rollout step, or of one evaluation set.

    Args:
        rollout: N rows of schema ``ROLLOUT`` or ``EVAL``.
        reward: rows of schema ``REWARD`` or ``EVAL`` for the same samples, in any order.

    Returns:
        ``reward/{mean,std,max,min}`` over scored samples (std of the population), ``raw_reward``,
        ``response_len/{mean,median,max,min}`` and ``prompt_len/{mean,max}`` in tokens, ``tokens/{prompt,response}``,
        ``truncated_ratio``, ``aborted_ratio``, ``failed_ratio``, ``repetition_frac``, ``prefix_cache_hit_rate``,
        ``zero_std/{count,fraction}`` and ``zero_std/count_<reward>`` (groups without spread), ``pass@k``,
        ``reward_component/<name>`` (mean), ``samples/{total,scored}``.

    Raises:
        UserError: ``reward`` lacks a sample of ``rollout``.
    """
    reward = aligned(reward, rollout)
    scores = _floats(reward["reward"])  # [N], NaN = no score
    scored = np.isfinite(scores)
    status = rollout["status"].to_pylist()
    metrics: dict[str, float] = {"samples/total": float(len(status)), "samples/scored": float(scored.sum())}
    metrics |= _statistics("reward", scores[scored], ("mean", "std", "max", "min"))
    raw = _floats(reward["raw_reward"])
    if np.isfinite(raw).any():
        metrics["raw_reward"] = float(raw[np.isfinite(raw)].mean())
    metrics |= _components(reward["components"])
    metrics |= _lengths(rollout)
    if status:
        for name in ("truncated", "aborted", "failed"):
            metrics[f"{name}_ratio"] = status.count(name) / len(status)
        metrics["repetition_frac"] = repetition_frac(rollout["response"].to_pylist())
    metrics |= _cache_hits(rollout["prefix_cache_info"])
    group_ids = rollout["group_id"].to_pylist()
    metrics |= zero_spread_groups(scores, group_ids)
    metrics |= {f"pass@{k}": value for k, value in pass_at_k(scores, group_ids).items()}
    return metrics


def aligned(table: pa.Table, reference: pa.Table) -> pa.Table:
    """The rows of ``table`` for the sample ids of ``reference``, in its order.

    Raises:
        UserError: an id has no row.
    """
    places = pc.index_in(reference["sample_id"], value_set=table["sample_id"].combine_chunks())
    if places.null_count:
        missing = reference["sample_id"].filter(pc.is_null(places))[0].as_py()
        raise UserError(
            f"The reward table has no row for sample {missing}.", "Delete the step's reward.parquet and run again."
        )
    return table.take(places)


def _statistics(name: str, values: NDArray[Any], kinds: Sequence[str]) -> dict[str, float]:
    if not len(values):
        return {}
    return {f"{name}/{kind}": float(getattr(np, kind)(values)) for kind in kinds}


def _floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """[N] float64; null becomes NaN."""
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _lengths(rollout: pa.Table) -> dict[str, float]:
    response, prompt = _floats(rollout["response_length"]), _floats(rollout["prompt_length"])
    return {
        **length_stats(response),
        **_statistics("prompt_len", prompt, ("mean", "max")),
        "tokens/prompt": float(prompt.sum()),
        "tokens/response": float(response.sum()),
    }


def _components(column: pa.ChunkedArray) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for text in column.to_pylist():
        for name, value in json.loads(text or "{}").items():
            if value is not None:
                values[name].append(value)
    return {f"reward_component/{name}": float(np.mean(entries)) for name, entries in sorted(values.items())}


def _cache_hits(column: pa.ChunkedArray) -> dict[str, float]:
    infos = [json.loads(text) for text in column.to_pylist() if text]
    prompt_tokens = sum(info["prompt_tokens"] for info in infos)
    if not prompt_tokens:
        return {}
    return {"prefix_cache_hit_rate": sum(info["cached_tokens"] for info in infos) / prompt_tokens}
