"""Which reward scores the samples of a rollout, as the options say.

Guarantee: training and each evaluation set have a choice of their own; a user's function comes before all built-in
rewards, which get the options that they ask for.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from relax_core.config.eval_set import EvalSet
from relax_core.config.options import as_namespace, get_option, json_values
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.calls import Scorer
from relax_core.rewards.custom import load_custom
from relax_core.rewards.pools import NO_SERVICES, CallPool, Services
from relax_core.rewards.router import Router
from relax_core.rewards.types import Convention, RewardSpec

_FROM_SERVICES = {"genrm_urls": "genrm"}
"""What rewards ask for among their options -> the service that it is."""


@dataclass(frozen=True)
class RewardChoice:
    """Rows are scored by ``custom_rm_path`` where given, else by their ``metadata.rm_type``, else by ``rm_type``.

    Attributes:
        of_groups: ``custom_rm_path`` gets whole groups.
        signature: --custom-rm-signature.
        distils: a sample without a reward scores 0.
        label_key: column of the labels.
        group_size: samples of a group.
    """

    rm_type: str | None
    custom_rm_path: str | None
    reward_key: str | None
    of_groups: bool = False
    rm_type_infer: bool = False
    rm_type_fallback: str | None = None
    signature: str = "auto"
    distils: bool = False
    label_key: str | None = None
    group_size: int = 1


def training_choice(config: RelaxConfig) -> RewardChoice:
    """The reward of training samples."""
    reward = config.reward
    return RewardChoice(
        reward.rm_type,
        reward.custom_rm_path,
        reward.reward_key,
        reward.group_rm,
        reward.rm_type_infer,
        reward.rm_type_fallback,
        reward.custom_rm_signature,
        config.opd.use_opd,
        config.data.label_key,
        config.rollout.n_samples_per_prompt,
    )


def evaluation_choice(eval_set: EvalSet, config: RelaxConfig) -> RewardChoice:
    """The reward of an evaluation set."""
    # the set's own rm_type is in the metadata of its rows; an empty text says that there is none
    function, key = eval_set.custom_rm_path or None, eval_set.reward_key or None
    return replace(
        training_choice(config),
        rm_type=eval_set.default_rm_type,
        custom_rm_path=function,
        reward_key=key,
        distils=False,  # zeros would tell nothing
        label_key=eval_set.label_key or None,
        group_size=eval_set.n_samples_per_eval_prompt or 1,
    )


def custom_reward(choice: RewardChoice, config: RelaxConfig) -> RewardSpec | None:
    """The user's function, where there is one.

    Raises:
        UserError: it cannot be loaded.
    """

    def settings(convention: Convention) -> str:
        if convention == "slime":
            return json.dumps(json_values(vars(as_namespace(config))), sort_keys=True)
        given = {"label_key": choice.label_key, "conversational": config.data.apply_chat_template}
        return json.dumps(given, sort_keys=True)

    path = choice.custom_rm_path
    if not path:
        return None
    return load_custom(path, of_group=choice.of_groups, adapter=choice.signature, settings=settings)


def reward_router(choice: RewardChoice, config: RelaxConfig, services: Services = NO_SERVICES) -> Router:
    """Finds the built-in rewards, with the options that they take."""

    def configured(spec: RewardSpec) -> RewardSpec:
        given = {name: get_option(config, name) for name in spec.options if name not in _FROM_SERVICES}
        asked = {name: list(services.get(_FROM_SERVICES[name], ())) for name in spec.options if name in _FROM_SERVICES}
        return spec.configured({**json_values(given), **asked})

    return Router(
        choice.rm_type,
        choice.rm_type_infer,
        choice.rm_type_fallback,
        choice.reward_key,
        configured,
        choice.distils,
    )


def scorer(choice: RewardChoice, config: RelaxConfig, pool: Callable[[], CallPool]) -> Scorer:
    """How calls are made.

    Args:
        pool: see ``Scorer``.
    """
    options = config.reward
    return Scorer(
        choice.reward_key,
        options.reward_max_concurrency,
        options.reward_timeout,
        options.reward_error_policy,
        pool,
    )
