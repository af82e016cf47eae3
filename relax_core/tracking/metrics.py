"""Metrics of a rollout, from its tables.

Guarantee: rows are matched by sample id; samples without a score take no part in reward metrics; a metric that has no
samples is absent, and a step without any sample or score gives the rest and does not fail.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data.errors import UserError
from data.ragged import Ragged
from relax_core.algorithms.metrics import length_stats, pass_at_k, repetition_frac, zero_spread_groups
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.outcome import KINDS

log = logging.getLogger(__name__)
_told: set[str] = set()


def training_metrics(rollout: pa.Table, reward: pa.Table, config: RelaxConfig) -> dict[str, float]:
    """Metrics of a rollout step, with those that options switch on: ``pass@k`` (--log-passrate), those of
    ``turn_metrics`` (--log-multi-turn) and of ``category_shares`` (--log-reward-category).

    Raises:
        UserError: as ``step_metrics``.
    """
    options = config.tracking
    metrics = step_metrics(rollout, reward)
    if not options.log_passrate:
        metrics = {name: value for name, value in metrics.items() if not name.startswith("pass@")}
    if options.log_multi_turn:
        metrics |= turn_metrics(rollout)
    if config.backend.fully_async or config.rollout.partial_rollout or config.rollout.update_weights_interval > 1:
        metrics |= staleness_metrics(rollout)
    if options.log_reward_category:
        own = options.log_reward_category == config.reward.reward_key
        shares = category_shares(reward, None if own else options.log_reward_category)
        if not shares and options.log_reward_category not in _told:
            _told.add(options.log_reward_category)
            log.warning("--log-reward-category %s: no reward has this key", options.log_reward_category)
        metrics |= shares
    return metrics


def staleness_metrics(rollout: pa.Table) -> dict[str, float]:
    """How many updates behind the weights that generated a token were when the step trained on it.

    Args:
        rollout: N rows of schema ``ROLLOUT``.

    Returns:
        ``staleness/{mean,max}`` over tokens that an engine made, and ``staleness/mixed``, the share of the samples
        that weights of several versions made; nothing where the versions of tokens are not known.
    """
    if rollout["token_versions"].null_count:
        return {}
    versions = Ragged.from_arrow(rollout["token_versions"])
    steps = np.repeat(rollout["step"].to_numpy(), versions.lengths)
    behind = (steps - versions.values)[versions.values >= 0]
    if not len(behind):
        return {}
    mixed = [len(made_by) > 1 for made_by in rollout["weight_versions"].to_pylist()]
    return {
        "staleness/mean": float(behind.mean()),
        "staleness/max": float(behind.max()),
        "staleness/mixed": float(np.mean(mixed)),
    }


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
        ``reward_component/<name>`` (mean), ``samples/{total,scored}``; samples by what became of their reward,
        ``reward_outcome/{scored,no_score,nan,failed}``, and those whose reward was not found as said,
        ``reward_router/<reason>``.

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
    metrics |= _reward_counts(reward)
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


def turn_metrics(rollout: pa.Table) -> dict[str, float]:
    """Turns of samples and their lengths in tokens.

    A turn is a stretch of the response that the loss mask takes, between what came from elsewhere (tool results, other
    roles); ``metadata.round_number`` counts the turns of a sample that has it.

    Args:
        rollout: N rows of schema ``ROLLOUT``.

    Returns:
        ``num_turn/{mean,max,min}`` of samples, ``turn_len/{mean,max,min}`` of turns, and of samples
        ``response_len_without_observations/{mean,max,min}``; nothing without samples.
    """
    masks = Ragged.from_arrow(rollout["loss_mask"])
    taken = masks.values.astype(bool)
    rows = np.repeat(np.arange(len(masks.lengths)), masks.lengths)
    same_row = np.diff(rows, prepend=-1) == 0
    begins = taken & ~(same_row & np.concatenate([[False], taken[:-1]])[: len(taken)])
    turns = np.bincount(rows[begins], minlength=len(masks.lengths))  # [N]
    lengths = np.bincount(np.cumsum(begins)[taken] - 1) if taken.any() else np.empty(0)  # [turns]
    stated = [json.loads(text).get("round_number") for text in rollout["metadata"].to_pylist()]
    counts = np.array([found if said is None else said for said, found in zip(stated, turns, strict=True)], float)
    own = np.bincount(rows[taken], minlength=len(masks.lengths))
    kinds = ("mean", "max", "min")
    return {
        **_statistics("num_turn", counts, kinds),
        **_statistics("turn_len", lengths, kinds),
        **_statistics("response_len_without_observations", own, kinds),
    }


def category_shares(reward: pa.Table, key: str | None) -> dict[str, float]:
    """``error_cat/<value>``: the share of all samples whose reward has this value.

    Args:
        reward: rows of schema ``REWARD``.
        key: of the reward's dict; None: the score itself.
    """
    if key is None:
        values = reward["reward"].to_pylist()
    else:
        values = [json.loads(text or "{}").get(key) for text in reward["components"].to_pylist()]
    counts = Counter(f"{value:g}" if isinstance(value, float) else str(value) for value in values if value is not None)
    return {f"error_cat/{value}": count / len(values) for value, count in sorted(counts.items())}


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
            if isinstance(value, int | float):
                values[name].append(value)
    return {f"reward_component/{name}": float(np.mean(entries)) for name, entries in sorted(values.items())}


def _reward_counts(reward: pa.Table) -> dict[str, float]:
    """How rewards were found and how they ended; nothing of tables that do not tell."""
    outcomes, reasons = (
        Counter(reward[name].to_pylist()) if name in reward.column_names else Counter[str | None]()
        for name in ("outcome", "decision_reason")
    )
    counts: dict[str, float] = {}
    if outcomes.keys() - {None}:
        counts = {f"reward_outcome/{kind}": float(outcomes[kind]) for kind in KINDS}
    named = sorted((reason, count) for reason, count in reasons.items() if reason is not None)
    return counts | {f"reward_router/{reason}": float(count) for reason, count in named}


def _cache_hits(column: pa.ChunkedArray) -> dict[str, float]:
    infos = [json.loads(text) for text in column.to_pylist() if text]
    prompt_tokens = sum(info["prompt_tokens"] for info in infos)
    if not prompt_tokens:
        return {}
    return {"prefix_cache_hit_rate": sum(info["cached_tokens"] for info in infos) / prompt_tokens}
