"""Scores of a rollout: one reward row for every rollout row, matched by sample id.

Guarantee: 0, "no score" (null), NaN and a failure stay four different things; an aborted or failed sample is never
scored; a function that raises or returns something else than it should stops the step with a message that names the
function and the sample, because training on guesses is worse than stopping, unless --reward-error-policy says else. A
function that hangs or crashes costs its sample the time limit, and the step goes on.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from data.errors import UserError
from data.ragged import Ragged
from data.schema import REWARD
from data.schema import table as schema_table
from relax_core.config.eval_set import EvalSet
from relax_core.config.options import as_namespace, get_option, json_values
from relax_core.config.sections import RelaxConfig
from relax_core.proxy import proxied
from relax_core.rewards import registry
from relax_core.rewards.calls import Call, Scorer
from relax_core.rewards.custom import load_custom
from relax_core.rewards.judge.question import builtin_templates, check_template, template_text
from relax_core.rewards.outcome import WHOLE, Outcome
from relax_core.rewards.pools import NO_SERVICES, Pools, Services
from relax_core.rewards.router import Route, Router
from relax_core.rewards.types import Convention, RewardInput, RewardSpec

_COLUMNS = ["sample_id", "group_id", "prompt", "response", "label", "metadata", "response_length", "status"]
_NUMBERS = ["index", "group_index"]
_SCORED = ("completed", "truncated")

_FROM_SERVICES = {"genrm_urls": "genrm"}
"""What rewards ask for among their options -> the service that it is."""


@dataclass(frozen=True)
class _Options:
    """Rows are scored by ``custom_rm_path`` where given, else by their ``metadata.rm_type``, else by ``rm_type``."""

    rm_type: str | None
    custom_rm_path: str | None
    reward_key: str | None
    of_groups: bool = False
    """``custom_rm_path`` gets whole groups."""
    rm_type_infer: bool = False
    rm_type_fallback: str | None = None
    signature: str = "auto"
    distils: bool = False
    """A sample without a reward scores 0."""
    label_key: str | None = None
    """Column of the labels."""


def _training_options(config: RelaxConfig) -> _Options:
    reward = config.reward
    return _Options(
        reward.rm_type,
        reward.custom_rm_path,
        reward.reward_key,
        reward.group_rm,
        reward.rm_type_infer,
        reward.rm_type_fallback,
        reward.custom_rm_signature,
        config.opd.use_opd,
        config.data.label_key,
    )


def _evaluation_options(eval_set: EvalSet, config: RelaxConfig) -> _Options:
    # the set's own rm_type is in the metadata of its rows; an empty text says that there is none
    function, key = eval_set.custom_rm_path or None, eval_set.reward_key or None
    return replace(
        _training_options(config),
        rm_type=eval_set.default_rm_type,
        custom_rm_path=function,
        reward_key=key,
        distils=False,  # zeros would tell nothing
        label_key=eval_set.label_key or None,
    )


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
    rollout: pa.Table, config: RelaxConfig, pools: Pools | None = None, services: Services = NO_SERVICES
) -> tuple[pa.Table, pa.Table]:
    """``score_table``, and the seconds of each sample's call: ``sample_id``, ``seconds`` (null: none was made).

    They are apart because they are never the same twice, and scores are.
    """
    return _score_table(rollout, _training_options(config), config, pools, services)


def score_evaluation(
    rollout: pa.Table,
    eval_set: EvalSet,
    config: RelaxConfig,
    pools: Pools | None = None,
    services: Services = NO_SERVICES,
) -> pa.Table:
    """``score_table`` for the responses to an evaluation set, by the reward of that set."""
    return _score_table(rollout, _evaluation_options(eval_set, config), config, pools, services)[0]


def _score_table(
    rollout: pa.Table, options: _Options, config: RelaxConfig, pools: Pools | None, services: Services
) -> tuple[pa.Table, pa.Table]:
    custom = _custom(options, config)
    rows = _rows(rollout, custom)
    names: list[str] = []
    routes: list[Route | None] = []
    outcomes: dict[str, Outcome] = {}
    calls: list[Call] = []
    groups: dict[str, list[RewardInput]] = {}
    router = _router(options, config, services)
    for row in rows:
        sample = row.sample
        if sample.status not in _SCORED:
            # Named where it is known, for the table only: such a sample must not fail for want of a reward.
            names.append(custom.name if custom else str(sample.metadata.get("rm_type") or options.rm_type or ""))
            routes.append(None)
            outcomes[sample.sample_id] = Outcome(error=f"the sample was {sample.status}", kind="failed")
            continue
        if custom:
            route = Route(custom, "custom")
        else:
            route = router.route(sample.sample_id, sample.metadata, sample.label)
        names.append(route.spec.name)
        routes.append(route)
        if custom and custom.of_group:
            groups.setdefault(row.group_id, []).append(sample)
        else:
            calls.append(Call(route.spec, (sample,)))
    if custom:
        calls += [Call(custom, tuple(samples), group_id) for group_id, samples in groups.items()]
    with proxied(config.debug.http_proxy), nullcontext(pools) if pools else Pools(config) as processes:
        scorer = Scorer(
            options.reward_key,
            config.reward.reward_max_concurrency,
            config.reward.reward_timeout,
            config.reward.reward_error_policy,
            partial(processes.get, services),
        )
        scored = scorer(calls)
    for call, results in zip(calls, scored, strict=True):
        outcomes |= {sample.sample_id: result for sample, result in zip(call.samples, results, strict=True)}
    ordered = [outcomes[row.sample.sample_id] for row in rows]
    seconds = pa.array([o.seconds for o in ordered], pa.float32())
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
    return scores, pa.table({"sample_id": rollout["sample_id"], "seconds": seconds})


class _Row(NamedTuple):
    sample: RewardInput
    group_id: str


def _rows(rollout: pa.Table, custom: RewardSpec | None) -> list[_Row]:
    """The samples of a rollout, as a reward function gets them."""
    rows = rollout.select(_COLUMNS).to_pylist()
    numbers = {name: rollout[name].to_pylist() if name in rollout.column_names else repeat(-1) for name in _NUMBERS}
    tokens: Iterable[Any] = repeat(None)
    if custom is not None and custom.convention == "slime":
        tokens = Ragged.from_arrow(rollout["tokens"])
    return [
        _Row(
            RewardInput(
                sample_id=row["sample_id"],
                prompt=row["prompt"],
                response=row["response"],
                label=None if row["label"] is None else json.loads(row["label"]),
                metadata=json.loads(row["metadata"]),
                response_length=row["response_length"],
                status=row["status"],
                index=index,
                group_index=group_index,
                tokens=ids,
            ),
            row["group_id"],
        )
        for row, index, group_index, ids in zip(rows, *numbers.values(), tokens, strict=False)
    ]


def reward_source_hash(config: RelaxConfig) -> str:
    """SHA-256 over the source of every function that may score: part of the identity of a reward stage.

    With ``--custom-rm-path`` that is the user's file; else all built-in rewards, as rows may name any of them.
    """
    return _source_hash(_training_options(config), config)


def evaluation_source_hash(eval_sets: Iterable[EvalSet], config: RelaxConfig) -> str:
    """``reward_source_hash`` over all evaluation sets."""
    sources = {each.name: _source_hash(_evaluation_options(each, config), config) for each in eval_sets}
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


def _source_hash(options: _Options, config: RelaxConfig) -> str:
    if custom := _custom(options, config):
        if custom.convention != "slime":
            return custom.source_hash
        arguments = json.dumps(json_values(config.run.custom_args), sort_keys=True)  # it gets them
        return hashlib.sha256(f"{custom.source_hash}{arguments}".encode()).hexdigest()
    template = config.genrm.genrm_template
    if template is None or template in builtin_templates():
        return _package_hash()
    return hashlib.sha256(f"{_package_hash()}{template_text(template)}".encode()).hexdigest()


@cache
def _package_hash() -> str:
    """Of the whole package: built-in rewards share answers, instructions and lists of words that decide a score."""
    folder, content = Path(__file__).parent, hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".jinja")):
        content.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return content.hexdigest()


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
    _check(_training_options(config), config)
    for eval_set in config.eval.eval_datasets or []:
        options = _evaluation_options(eval_set, config)
        named = eval_set.added_metadata.get("rm_type")
        try:
            _check(replace(options, rm_type=str(named)) if named else options, config)
        except UserError as error:
            raise UserError(f"Evaluation set {eval_set.name}: {error.problem}", error.fix, error.details) from error


def _check(options: _Options, config: RelaxConfig) -> None:
    if not _custom(options, config):
        if options.rm_type and options.rm_type_fallback is None:
            registry.get(options.rm_type)
        _router(options, config)


def _router(options: _Options, config: RelaxConfig, services: Services = NO_SERVICES) -> Router:
    """Finds the built-in rewards, with the options that they take."""

    def configured(spec: RewardSpec) -> RewardSpec:
        given = {name: get_option(config, name) for name in spec.options if name not in _FROM_SERVICES}
        asked = {name: list(services.get(_FROM_SERVICES[name], ())) for name in spec.options if name in _FROM_SERVICES}
        return spec.configured({**json_values(given), **asked})

    return Router(
        options.rm_type,
        options.rm_type_infer,
        options.rm_type_fallback,
        options.reward_key,
        configured,
        options.distils,
    )


def _custom(options: _Options, config: RelaxConfig) -> RewardSpec | None:
    """The user's function, where there is one."""

    def settings(convention: Convention) -> str:
        if convention == "slime":
            return json.dumps(json_values(vars(as_namespace(config))), sort_keys=True)
        given = {"label_key": options.label_key, "conversational": config.data.apply_chat_template}
        return json.dumps(given, sort_keys=True)

    path = options.custom_rm_path
    if not path:
        return None
    return load_custom(path, of_group=options.of_groups, adapter=options.signature, settings=settings)
