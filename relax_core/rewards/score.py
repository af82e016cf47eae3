"""Scores of a rollout: one reward row for every rollout row, matched by sample id.

Guarantee: 0, "no score" (null) and NaN stay three different things; an aborted or failed sample is never scored; a
function that raises or returns something else than it should stops the step with a message that names the function and
the sample, because training on guesses is worse than stopping.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from data.errors import UserError
from data.schema import REWARD
from data.schema import table as schema_table
from relax_core.config.eval_set import EvalSet
from relax_core.config.sections import RelaxConfig
from relax_core.proxy import proxied
from relax_core.rewards import registry
from relax_core.rewards.calls import Call, score_calls
from relax_core.rewards.custom import load_custom
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.types import RewardInput, RewardSpec

_COLUMNS = ["sample_id", "group_id", "prompt", "response", "label", "metadata", "response_length", "status"]
_SCORED = ("completed", "truncated")


@dataclass(frozen=True)
class _Options:
    """Rows are scored by ``custom_rm_path`` where given, else by their ``metadata.rm_type``, else by ``rm_type``."""

    rm_type: str | None
    custom_rm_path: str | None
    reward_key: str | None
    of_groups: bool = False
    """``custom_rm_path`` gets whole groups."""


def _training_options(config: RelaxConfig) -> _Options:
    reward = config.reward
    return _Options(reward.rm_type, reward.custom_rm_path, reward.reward_key, reward.group_rm)


def _evaluation_options(eval_set: EvalSet, config: RelaxConfig) -> _Options:
    # the set's own rm_type is in the metadata of its rows; an empty text says that there is none
    function, key = eval_set.custom_rm_path or None, eval_set.reward_key or None
    return _Options(eval_set.default_rm_type, function, key, config.reward.group_rm)


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
    return _score_table(rollout, _training_options(config), config)


def score_evaluation(rollout: pa.Table, eval_set: EvalSet, config: RelaxConfig) -> pa.Table:
    """``score_table`` for the responses to an evaluation set, by the reward of that set."""
    return _score_table(rollout, _evaluation_options(eval_set, config), config)


def _score_table(rollout: pa.Table, options: _Options, config: RelaxConfig) -> pa.Table:
    rows = rollout.select(_COLUMNS).to_pylist()
    specs: list[str] = []
    outcomes: dict[str, Outcome] = {}
    calls: list[Call] = []
    groups: dict[str, list[RewardInput]] = {}
    custom = _custom(options)
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
        if custom and options.of_groups:
            groups.setdefault(row["group_id"], []).append(sample)
        else:
            calls.append(Call(spec, (sample,)))
    if custom:
        calls += [Call(custom, tuple(samples), group_id) for group_id, samples in groups.items()]
    with proxied(config.debug.http_proxy):
        scored = score_calls(calls, options.reward_key, config.reward.reward_max_concurrency)
    for call, results in zip(calls, scored, strict=True):
        outcomes |= {sample.sample_id: result for sample, result in zip(call.samples, results, strict=True)}
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


def reward_source_hash(config: RelaxConfig) -> str:
    """SHA-256 over the source of every function that may score: part of the identity of a reward stage.

    With ``--custom-rm-path`` that is the user's file; else all built-in rewards, as rows may name any of them.
    """
    return _source_hash(_training_options(config))


def evaluation_source_hash(eval_sets: Iterable[EvalSet], config: RelaxConfig) -> str:
    """``reward_source_hash`` over all evaluation sets."""
    sources = {each.name: _source_hash(_evaluation_options(each, config)) for each in eval_sets}
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


def _source_hash(options: _Options) -> str:
    if custom := _custom(options):
        return custom.source_hash
    sources = {spec.name: spec.source_hash for spec in registry.builtin_rewards().values()}
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


def check_reward(config: RelaxConfig) -> None:
    """Find a reward's mistakes before any generation: an unknown name, a function that cannot be loaded.

    Args:
        config: resolved; the rewards of its evaluation sets are looked at too.

    Raises:
        UserError: see above.
    """
    _check(_training_options(config))
    for eval_set in config.eval.eval_datasets or []:
        options = _evaluation_options(eval_set, config)
        named = eval_set.added_metadata.get("rm_type")
        try:
            _check(replace(options, rm_type=str(named)) if named else options)
        except UserError as error:
            raise UserError(f"Evaluation set {eval_set.name}: {error.problem}", error.fix, error.details) from error


def _check(options: _Options) -> None:
    if not _custom(options) and options.rm_type:
        registry.get(options.rm_type)


def _custom(options: _Options) -> RewardSpec | None:
    """The user's function, where there is one."""
    path = options.custom_rm_path
    return load_custom(path, of_group=options.of_groups) if path else None


def _spec_of(sample: RewardInput, options: _Options) -> RewardSpec:
    name = sample.metadata.get("rm_type") or options.rm_type
    if not name:
        raise UserError(
            f"Sample {sample.sample_id} has no reward: neither its metadata.rm_type nor --rm-type is set.",
            f"Set --rm-type (one of {', '.join(registry.builtin_rewards())}) or --custom-rm-path.",
        )
    return registry.get(str(name))
