"""Scores of a rollout: one reward row for every rollout row, matched by sample id.

Guarantee: 0, "no score" (null) and NaN stay three different things; an aborted or failed sample is never scored; a
function that raises or returns something else than it should stops the step with a message that names the function and
the sample, because training on guesses is worse than stopping.
"""

import asyncio
import hashlib
import json
import traceback
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from data.errors import UserError
from data.schema import REWARD
from data.schema import table as schema_table
from relax_core import aio
from relax_core.config.sections import RelaxConfig, RewardSection
from relax_core.rewards import registry
from relax_core.rewards.custom import load_custom
from relax_core.rewards.types import RewardInput, RewardSpec

MAX_CONCURRENCY = 64
"""Most asynchronous reward calls in flight."""

_COLUMNS = ["sample_id", "group_id", "prompt", "response", "label", "metadata", "response_length", "status"]
_SCORED = ("completed", "truncated")


@dataclass(frozen=True)
class Outcome:
    """Result for one sample.

    Attributes:
        score: None is no score; NaN is what the function returned.
        raw: the score for metrics: ``metadata["raw_reward"]`` where the function has put it, else the score.
        components: the other numeric entries of a dict; None for one that is not finite.
        error: why there is no score.
    """

    score: float | None = None
    raw: float | None = None
    components: dict[str, float | None] = field(default_factory=dict)
    error: str | None = None


def score_table(rollout: pa.Table, config: RelaxConfig) -> pa.Table:
    """Score a rollout.

    A sample's function is ``--custom-rm-path`` where given, else its ``metadata.rm_type``, else ``--rm-type``.

    Args:
        rollout: table of schema ``ROLLOUT`` (or ``EVAL``), N rows.
        config: its reward section is used.

    Returns:
        Table of schema ``REWARD``, N rows with the ids of ``rollout``, in its order.

    Raises:
        UserError: no or an unknown reward; a function that fails or returns something else than a number, None, or a
            dict with ``--reward-key``; an infinite score.
    """
    options = config.reward
    rows = rollout.select(_COLUMNS).to_pylist()
    samples, specs, outcomes = [], [], {}
    custom = load_custom(options.custom_rm_path) if options.custom_rm_path else None
    for row in rows:
        metadata = json.loads(row["metadata"])
        if row["status"] not in _SCORED:
            # Named where it is known, for the table only: such a sample must not fail for want of a reward.
            specs.append(custom.name if custom else str(metadata.get("rm_type") or options.rm_type or ""))
            outcomes[row["sample_id"]] = Outcome(error=f"the sample was {row['status']}")
            continue
        sample = RewardInput(
            sample_id=row["sample_id"],
            prompt=row["prompt"],
            response=row["response"],
            label=None if row["label"] is None else json.loads(row["label"]),
            metadata=metadata,
            response_length=row["response_length"],
            status=row["status"],
        )
        spec = custom or _spec_of(sample, options)
        specs.append(spec.name)
        samples.append((spec, sample))
    for (_, sample), outcome in zip(samples, score_samples(samples, options.reward_key), strict=True):
        outcomes[sample.sample_id] = outcome
    ordered = [outcomes[row["sample_id"]] for row in rows]
    return schema_table(
        REWARD,
        {
            "sample_id": rollout["sample_id"],
            "group_id": rollout["group_id"],
            "reward": pa.array([o.score for o in ordered], pa.float32()),
            "raw_reward": pa.array([o.raw for o in ordered], pa.float32()),
            "rm_type": pa.array(specs, pa.string()),
            "components": pa.array([json.dumps(o.components) if o.components else None for o in ordered], pa.string()),
            "error": pa.array([o.error for o in ordered], pa.string()),
        },
    )


def score_samples(samples: Sequence[tuple[RewardSpec, RewardInput]], reward_key: str | None) -> list[Outcome]:
    """Outcomes in the order given. Plain functions run here one after the other, coroutines together.

    Works in any thread, since it uses no signals, and beside a running event loop.
    """
    outcomes: list[Outcome | None] = [None] * len(samples)
    waiting: list[tuple[int, RewardSpec, RewardInput]] = []
    for place, (spec, sample) in enumerate(samples):
        if spec.is_async:
            waiting.append((place, spec, sample))
        else:
            outcomes[place] = _call(spec, sample, reward_key)
    if waiting:
        scored = aio.run(_call_all([(spec, sample) for _, spec, sample in waiting], reward_key))
        for (place, _, _), outcome in zip(waiting, scored, strict=True):
            outcomes[place] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def reward_source_hash(config: RelaxConfig) -> str:
    """SHA-256 over the source of every function that may score: part of the identity of a reward stage.

    With ``--custom-rm-path`` that is the user's file; else all built-in rewards, as rows may name any of them.
    """
    options = config.reward
    if options.custom_rm_path:
        return load_custom(options.custom_rm_path).source_hash
    sources = {spec.name: spec.source_hash for spec in registry.builtin_rewards().values()}
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


def check_reward(config: RelaxConfig) -> None:
    """Find a reward's mistakes before any generation: an unknown name, a function that cannot be loaded.

    Raises:
        UserError: see above.
    """
    if config.reward.custom_rm_path:
        load_custom(config.reward.custom_rm_path)
    elif config.reward.rm_type:
        registry.get(config.reward.rm_type)


def _spec_of(sample: RewardInput, options: RewardSection) -> RewardSpec:
    name = sample.metadata.get("rm_type") or options.rm_type
    if not name:
        raise UserError(
            f"Sample {sample.sample_id} has no reward: neither its metadata.rm_type nor --rm-type is set.",
            f"Set --rm-type (one of {', '.join(registry.builtin_rewards())}) or --custom-rm-path.",
        )
    return registry.get(str(name))


def _call(spec: RewardSpec, sample: RewardInput, reward_key: str | None) -> Outcome:
    try:
        value = spec.function(sample)
    except UserError:
        raise
    except Exception as error:
        raise _failure(spec, sample, error) from error
    if isinstance(value, Awaitable):  # a decorated coroutine function that does not look like one
        value = aio.run(_await(spec, sample, value))
    return _outcome(spec, sample, value, reward_key)


async def _call_all(samples: Sequence[tuple[RewardSpec, RewardInput]], reward_key: str | None) -> list[Outcome]:
    permits = asyncio.Semaphore(MAX_CONCURRENCY)

    async def one(spec: RewardSpec, sample: RewardInput) -> Outcome:
        async with permits:
            value = await _await(spec, sample, spec.function(sample))
        return _outcome(spec, sample, value, reward_key)

    return await aio.gather(one(spec, sample) for spec, sample in samples)


async def _await(spec: RewardSpec, sample: RewardInput, value: Awaitable[Any]) -> Any:
    try:
        return await value
    except UserError:
        raise
    except Exception as error:
        raise _failure(spec, sample, error) from error


def _failure(spec: RewardSpec, sample: RewardInput, error: Exception) -> UserError:
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return UserError(
        f"The reward {spec.name} failed on sample {sample.sample_id}: {type(error).__name__}: {error}.",
        "Correct the function, or let it return None where a sample cannot be scored, and run again: "
        "finished generations are kept.",
        "\n".join(lines[-6:]),
    )


def _outcome(spec: RewardSpec, sample: RewardInput, value: Any, reward_key: str | None) -> Outcome:
    """Check what a function returned."""
    who = f"The reward {spec.name} returned"
    components: dict[str, float | None] = {}
    if isinstance(value, dict):
        if reward_key is None:
            raise UserError(
                f"{who} a dict for sample {sample.sample_id}, with the keys {_names(value)}.",
                "Name the key of the score with --reward-key.",
            )
        if reward_key not in value:
            raise UserError(
                f"{who} a dict without the --reward-key {reward_key!r} for sample {sample.sample_id}; "
                f"its keys are {_names(value)}.",
                "Change --reward-key, or return that key.",
            )
        components = {
            str(key): _finite(entry) for key, entry in value.items() if key != reward_key and _is_number(entry)
        }
        value = value[reward_key]
    elif reward_key is not None and spec.custom and value is not None:
        raise UserError(
            f"{who} a {type(value).__name__} for sample {sample.sample_id}, "
            f"but --reward-key {reward_key!r} expects a dict.",
            "Return a dict with that key, or leave --reward-key out.",
        )
    if value is None:
        return Outcome(components=components, error="the reward returned no score")
    score = _score(spec, sample, value, "returned")
    raw = sample.metadata.get("raw_reward")
    return Outcome(score, score if raw is None else _score(spec, sample, raw, "set metadata.raw_reward to"), components)


def _score(spec: RewardSpec, sample: RewardInput, value: Any, verb: str) -> float:
    number = _number(value)
    if number is None:
        raise UserError(
            f"The reward {spec.name} {verb} {str(value)[:80]!r}, a {type(value).__name__}, "
            f"for sample {sample.sample_id}.",
            "Expected a number, None (no score), or a dict with --reward-key.",
        )
    if abs(number) > float(np.finfo(np.float32).max):  # False for NaN
        raise UserError(
            f"The reward {spec.name} {verb} {value!s:.40} for sample {sample.sample_id}, which float32 cannot hold.",
            "Return a finite number, or None where a sample cannot be scored.",
        )
    return number


def _number(value: Any) -> float | None:
    """A Python, NumPy or zero-dimensional tensor number as a float; None for anything else."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond float64
        return float("inf")


def _is_number(value: Any) -> bool:
    return _number(value) is not None


def _finite(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and np.isfinite(number) else None


def _names(value: dict[Any, Any]) -> str:
    return ", ".join(map(repr, value)) or "none"
