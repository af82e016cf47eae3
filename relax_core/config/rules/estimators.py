"""What each advantage estimator needs and excludes, as the registry of estimators says it.

Guarantee: every demand and every role of every registered estimator is told where the options do not keep it; no
estimator is named here, so that a new one brings its rules along. An estimator whose formula would silently become
another one is refused. Nothing here is judged in supervised fine-tuning.
"""

from collections.abc import Iterator
from typing import Any

from relax_core.algorithms.registry import SYNCHRONOUS, Demand, estimators
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import estimator, is_rl
from relax_core.config.rules.resources import WITHOUT_DEVICES
from relax_core.config.values import Values


def _missing_roles(values: Values) -> Iterator[dict[str, Any]]:
    for role in estimator(values).roles if is_rl(values) else ():
        light = role in WITHOUT_DEVICES
        if role not in values.resource if light else values.devices(role) < 1:
            yield {"value": None, "role": role, "example": f'"{role}":[1,{0 if light else 1}]'}


def _demands() -> dict[Demand, list[str]]:
    """Each demand, and the estimators that have it."""
    found: dict[Demand, list[str]] = {}
    for spec in estimators():
        for demand in spec.all_demands:
            if demand != SYNCHRONOUS:  # told at the estimator, with the other rules of --fully-async
                found.setdefault(demand, []).append(spec.name)
    return found


def _rule(demand: Demand, names: list[str]) -> Rule:
    """The rule that tells a demand of these estimators."""

    def broken(values: Values) -> bool:
        if not is_rl(values) or values.advantage_estimator not in names or demand.holds(values.__getitem__):
            return False
        if demand.told_of_given and not values.is_given(demand.option):
            return False
        return demand.told_unless is None or not values[demand.told_unless]

    others = (option for option in (demand.when, demand.told_unless) if option is not None)
    parts = [names[0], "and-others" if len(names) > 1 else "", demand.option, f"with-{demand.when}" * bool(demand.when)]
    return Rule(
        name="-".join(filter(None, parts)).replace("_", "-"),
        option=demand.option,
        reads=tuple(dict.fromkeys(("loss_type", "advantage_estimator", demand.option, *others))),
        broken=broken,
        message=demand.reason,
        fix=demand.fix,
        shows=not any(value is True for value in demand.allowed or ()),  # the flag of a switch says it all
    )


def _lonely(values: Values) -> Iterator[dict[str, Any]]:
    """Groups of one response, whose mean is subtracted."""
    if not (
        is_rl(values)
        and estimator(values).normalizer != "none"
        and estimator(values).min_group_size < 2  # else it is refused already
        and values.n_samples_per_prompt == 1
        and not values.disable_rewards_normalization
        and values.custom_reward_post_process_path is None
    ):
        return
    if not values.use_opd:
        yield {"what": f"every advantage of --advantage-estimator {values.advantage_estimator}"}
    elif values.rm_type or values.custom_rm_path:
        yield {"what": "what the rewards add to each advantage, beside the teacher,"}


RULES: tuple[Rule, ...] = (
    Rule(
        name="no-reference-beside-a-critic",
        option="advantage_estimator",
        reads=("loss_type", "advantage_estimator", "fully_async", "kl_coef", "use_kl_loss", "kl_loss_coef"),
        broken=lambda v: (
            is_rl(v)
            and estimator(v).needs_critic
            and not v.fully_async
            and (v.kl_coef != 0 or v.use_kl_loss or v.kl_loss_coef != 0)
        ),
        message="has no reference model: --kl-coef, --use-kl-loss and what belongs to them are off.",
        corrects=lambda v: {"kl_coef": 0.0, "use_kl_loss": False, "kl_loss_coef": 0.0, "use_unbiased_kl": False},
    ),
    Rule(
        name="estimator-roles",
        option="resource",
        reads=("loss_type", "advantage_estimator", "resource"),
        each=_missing_roles,
        message="has no role {role}, which --advantage-estimator {advantage_estimator} needs.",
        fix="Add {example}.",
    ),
    *(_rule(demand, names) for demand, names in _demands().items()),
    Rule(
        name="a-group-has-several",
        option="n_samples_per_prompt",
        reads=(
            "loss_type",
            "advantage_estimator",
            "n_samples_per_prompt",
            "disable_rewards_normalization",
            "custom_reward_post_process_path",
            "use_opd",
            "rm_type",
            "custom_rm_path",
        ),
        each=_lonely,
        message="makes {what} 0: a response equals the mean of its group.",
        fix="Make it 2 or more, or add --disable-rewards-normalization.",
        severity="warning",
    ),
)
