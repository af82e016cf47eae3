"""Metrics of a rollout, from its tables.

Guarantee: rows are matched by sample id; samples without a score take no part in reward metrics; a metric that has no
samples is absent, and a step without any sample or score gives the rest and does not fail.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data.errors import UserError

ZERO_SPREAD = 1e-6
"""Rewards of a group that differ by no more than this are equal: seven times 0.1 in float32 has a spread of 8e-9."""

REPETITION_WINDOW = 10_000
"""Characters at the end of a response that are looked at for repetition; shorter responses never count."""

REPETITION_RATIO = 10.0
"""A compression ratio (zlib, level 9) of the window above this is repetition."""


def step_metrics(rollout: pa.Table, reward: pa.Table) -> dict[str, float]:
    """Metrics of one rollout step, or of one evaluation set.

    Args:
        rollout: N rows of schema ``ROLLOUT`` or ``EVAL``.
        reward: rows of schema ``REWARD`` or ``EVAL`` for the same samples, in any order.

    Returns:
        ``reward/{mean,std,max,min}`` over scored samples (std of the population), ``raw_reward``,
        ``response_len/{mean,median,max,min}`` and ``prompt_len/{mean,max}`` in tokens, ``tokens/{prompt,response}``,
        ``truncated_ratio``, ``aborted_ratio``, ``failed_ratio``, ``repetition_frac``, ``prefix_cache_hit_rate``,
        ``zero_std/ratio`` and ``zero_std/count_<reward>`` (groups of two or more scored samples with equal rewards),
        ``pass@k`` (see ``pass_at_k``), ``reward_component/<name>`` (mean), ``samples/{total,scored}``.

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
        responses = rollout["response"].to_pylist()
        metrics["repetition_frac"] = sum(map(has_repetition, responses)) / len(responses)
    metrics |= _cache_hits(rollout["prefix_cache_info"])
    groups = _groups(rollout["group_id"].to_pylist(), scores, scored)
    metrics |= _zero_spread(groups)
    metrics |= {f"pass@{k}": value for k, value in pass_at_k(groups).items()}
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


def pass_at_k(groups: Sequence[NDArray[Any]]) -> dict[int, float]:
    """Chance that at least one of k samples of a group is right, estimated without bias; k = 1, 2, 4, ...

    For a group of n scored samples of which c have a reward of exactly 1: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021,
    "Evaluating Large Language Models Trained on Code", eq. 1). The mean goes over the groups with n >= k, as there is
    no estimate for the others; k goes up to the largest n.

    Args:
        groups: scored rewards of each group.
    """
    result: dict[int, float] = {}
    counts = [(len(group), int((group == 1).sum())) for group in groups]
    k = 1
    while usable := [(n, c) for n, c in counts if n >= k]:
        result[k] = float(np.mean([1 - comb(n - c, k) / comb(n, k) for n, c in usable]))
        k *= 2
    return result


def has_repetition(text: str) -> bool:
    """Whether the end of a long text compresses so well that it must repeat itself."""
    if len(text) <= REPETITION_WINDOW:
        return False
    window = text[-REPETITION_WINDOW:].encode()
    return len(window) / len(zlib.compress(window, 9)) > REPETITION_RATIO


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
        **_statistics("response_len", response, ("mean", "median", "max", "min")),
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


def _groups(ids: Sequence[str], scores: NDArray[np.float64], scored: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """Scored rewards of each group that has one, in order of first appearance."""
    members: defaultdict[str, list[float]] = defaultdict(list)
    for group, score, known in zip(ids, scores.tolist(), scored.tolist(), strict=True):
        if known:
            members[group].append(score)
    return [np.array(rewards) for rewards in members.values()]


def _zero_spread(groups: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    several = [group for group in groups if len(group) > 1]
    if not several:
        return {}
    equal = [group for group in several if np.ptp(group) <= ZERO_SPREAD]
    metrics: dict[str, float] = {"zero_std/ratio": len(equal) / len(several)}
    for group in equal:
        name = f"zero_std/count_{round(float(group.mean()), 1) + 0.0}"  # + 0.0: -0.0 is 0.0
        metrics[name] = metrics.get(name, 0.0) + 1
    return metrics
