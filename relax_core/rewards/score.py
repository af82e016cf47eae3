"""Scores of a rollout: one reward row for every rollout row, matched by sample id.

Guarantee: 0, "no score" (null), NaN and a failure stay four different things; an aborted or failed sample is never
scored; a function that raises or returns something else than it should stops the step with a message that names the
function and the sample, because training on guesses is worse than stopping, unless --reward-error-policy says else. A
function that hangs or crashes costs its sample the time limit, and the step goes on. Outcomes that a stream has found
before are those that a call would give here.
"""

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from data.errors import UserError
from data.schema import REWARD
from data.schema import table as schema_table
from relax_core.config.eval_set import EvalSet
from relax_core.config.sections import RelaxConfig
from relax_core.proxy import proxied
from relax_core.rewards import registry
from relax_core.rewards.calls import Call
from relax_core.rewards.choice import (
    RewardChoice,
    custom_reward,
    evaluation_choice,
    reward_router,
    scorer,
    training_choice,
)
from relax_core.rewards.judge.question import check_template
from relax_core.rewards.outcome import WHOLE, Outcome
from relax_core.rewards.pools import NO_SERVICES, Pools, Services
from relax_core.rewards.router import Route
from relax_core.rewards.rows import content_key, route_of, rows_of
from relax_core.rewards.scored import ScoredCalls
from relax_core.rewards.sources import scoring_hash
from relax_core.rewards.types import RewardInput

if TYPE_CHECKING:
    from relax_core.rewards.stream import RewardStream


def score_table(
    rollout: pa.Table, config: RelaxConfig, pools: Pools | None = None, services: Services = NO_SERVICES
) -> pa.Table:
    """Score a rollout.

    A sample's function is ``--custom-rm-path`` where given, else as ``router`` says.

    Args:
        rollout: table of schema ``ROLLOUT`` (or ``EVAL``), N rows.
        config: its reward section is used.
        pools: processes that are kept; None: those that are needed are ended at once.
        services: what rewards may ask.

    Returns:
        Table of schema ``REWARD``, N rows with the ids of ``rollout``, in its order.

    Raises:
        UserError: no or an unknown reward; a function that fails or returns something else than a number, None, or a
            dict with ``--reward-key``; an infinite score.
    """
    return score_timed(rollout, config, pools, services)[0]


def score_timed(
    rollout: pa.Table,
    config: RelaxConfig,
    pools: Pools | None = None,
    services: Services = NO_SERVICES,
    stream: "RewardStream | None" = None,
    kept: ScoredCalls | None = None,
) -> tuple[pa.Table, pa.Table]:
    """``score_table``, and beside it ``sample_id``, the ``seconds`` of each sample's call (null: none was made), and
    ``streamed``: whether the score was there before this was called.

    They are apart because they are never the same twice, and scores are.

    Args:
        stream: ended here; what it has found is not called again, as long as sample, source and options are the same.
        kept: of the tries before this one at the same rollout.
    """
    return _score_table(rollout, training_choice(config), config, pools, services, stream, kept)


def score_evaluation(
    rollout: pa.Table,
    eval_set: EvalSet,
    config: RelaxConfig,
    pools: Pools | None = None,
    services: Services = NO_SERVICES,
    stream: "RewardStream | None" = None,
    kept: ScoredCalls | None = None,
) -> pa.Table:
    """``score_table`` for the responses to an evaluation set, by the reward of that set."""
    return _score_table(rollout, evaluation_choice(eval_set, config), config, pools, services, stream, kept)[0]


def _score_table(
    rollout: pa.Table,
    choice: RewardChoice,
    config: RelaxConfig,
    pools: Pools | None,
    services: Services,
    stream: "RewardStream | None",
    kept: ScoredCalls | None,
) -> tuple[pa.Table, pa.Table]:
    custom = custom_reward(choice, config)
    rows = rows_of(rollout, custom)
    names: list[str] = []
    routes: list[Route | None] = []
    outcomes: dict[str, Outcome] = {}
    calls: list[Call] = []
    groups: dict[str, list[RewardInput]] = {}
    router = reward_router(choice, config, services)
    for row in rows:
        sample, route = row.sample, route_of(row, custom, router)
        routes.append(route)
        if route is None:
            # Named where it is known, for the table only: such a sample must not fail for want of a reward.
            names.append(custom.name if custom else str(sample.metadata.get("rm_type") or choice.rm_type or ""))
            outcomes[sample.sample_id] = Outcome(error=f"the sample was {sample.status}", kind="failed")
            continue
        names.append(route.spec.name)
        if custom and custom.of_group:
            groups.setdefault(row.group_id, []).append(sample)
        else:
            calls.append(Call(route.spec, (sample,)))
    if custom:
        calls += [Call(custom, tuple(samples), group_id) for group_id, samples in groups.items()]
    early: frozenset[str] = frozenset()
    if stream:
        kept = kept or ScoredCalls()
        early = _taken(stream, scoring_hash(choice, config), calls, outcomes, kept)
    calls = [call for call in calls if call.samples[0].sample_id not in outcomes]
    with proxied(config.debug.http_proxy), nullcontext(pools) if pools else Pools(config) as processes:
        scored = replace(scorer(choice, config, partial(processes.get, services)), kept=kept)(calls)
    for call, results in zip(calls, scored, strict=True):
        outcomes |= {sample.sample_id: result for sample, result in zip(call.samples, results, strict=True)}
    ordered = [outcomes[row.sample.sample_id] for row in rows]
    seconds = {
        "sample_id": rollout["sample_id"],
        "seconds": pa.array([o.seconds for o in ordered], pa.float32()),
        "streamed": pa.array([row.sample.sample_id in early for row in rows], pa.bool_()),
    }
    scores = schema_table(
        REWARD,
        {
            "sample_id": rollout["sample_id"],
            "group_id": rollout["group_id"],
            "reward": pa.array([o.score for o in ordered], pa.float32()),
            "raw_reward": pa.array([o.raw for o in ordered], pa.float32()),
            "rm_type": pa.array(names, pa.string()),
            "components": pa.array([json.dumps(o.components) if o.components else None for o in ordered], pa.string()),
            "error": pa.array([o.error for o in ordered], pa.string()),
            "outcome": pa.array([o.kind for o in ordered], pa.string()),
            "decision": pa.array([route and route.decision for route in routes], pa.string()),
            "decision_reason": pa.array([route and route.reason for route in routes], pa.string()),
            **{name: pa.array([o.texts.get(name) for o in ordered], pa.string()) for name in WHOLE},
        },
    )
    return scores, pa.table(seconds)


def _taken(
    stream: "RewardStream", scoring: str, calls: list[Call], outcomes: dict[str, Outcome], kept: ScoredCalls
) -> frozenset[str]:
    """Put the outcomes of the stream that fit the calls in their places, and what its failed waves had into ``kept``.

    Returns:
        Ids of those samples whose outcome was there before the stream was asked.
    """
    found = stream.finish(scoring)
    kept.take(found.kept)
    early: set[str] = set()
    for call in calls if found.outcomes else ():
        key = content_key(call)
        if key not in found.outcomes:
            continue
        of_call = {sample.sample_id: one for sample, one in zip(call.samples, found.outcomes[key], strict=True)}
        outcomes |= of_call
        if key in found.early:
            early |= of_call.keys()
    return frozenset(early)


def check_reward(config: RelaxConfig) -> None:
    """Find a reward's mistakes before any generation: an unknown name, a function that cannot be loaded, a judge
    without a model or with a wrong template.

    Args:
        config: resolved; the rewards of its evaluation sets are looked at too.

    Raises:
        UserError: see above.
    """
    model, template = config.genrm.genrm_model_path, config.genrm.genrm_template
    if model is not None and not (Path(model) / "config.json").is_file():
        raise UserError(
            f"--genrm-model-path {model}: there is no model: config.json is missing.",
            "Name a folder in Hugging Face's format.",
        )
    if template is not None:
        check_template(template)
    _check(training_choice(config), config)
    for eval_set in config.eval.eval_datasets or []:
        choice = evaluation_choice(eval_set, config)
        named = eval_set.added_metadata.get("rm_type")
        try:
            _check(replace(choice, rm_type=str(named)) if named else choice, config)
        except UserError as error:
            raise UserError(f"Evaluation set {eval_set.name}: {error.problem}", error.fix, error.details) from error


def _check(choice: RewardChoice, config: RelaxConfig) -> None:
    if not custom_reward(choice, config):
        if choice.rm_type and choice.rm_type_fallback is None:
            registry.get(choice.rm_type)
        reward_router(choice, config)
