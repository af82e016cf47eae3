"""What each advantage estimator needs and excludes.

Guarantee: an estimator whose formula would silently become another one under the options given is refused. Nothing here
is judged in supervised fine-tuning.
"""

from collections.abc import Callable, Iterator
from typing import Any

from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import is_rl
from relax_core.config.values import Values

GROUP = ("grpo", "gspo", "sapo", "cispo")
"""Estimators whose advantage is a reward against the mean and spread of its group."""

REINFORCE = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Estimators that standardise over all tokens."""

BASELINE = ("rloo", "reinforce_plus_plus_baseline")
"""Estimators whose baseline is the rest, or all, of the group."""


def _guard(
    name: str,
    estimators: tuple[str, ...],
    option: str,
    broken: Callable[[Values], Any],
    message: str,
    fix: str = "",
    reads: tuple[str, ...] = (),
    shows: bool = True,
) -> Rule:
    """A rule of some estimators; in the message {advantage_estimator} is the one that the run has."""
    return Rule(
        name=name,
        option=option,
        reads=tuple(dict.fromkeys(("loss_type", "advantage_estimator", option, *reads))),
        broken=lambda values: is_rl(values) and values.advantage_estimator in estimators and broken(values),
        message=message,
        fix=fix,
        shows=shows,
    )


def _missing_roles(values: Values) -> Iterator[dict[str, Any]]:
    if is_rl(values) and values.advantage_estimator == "ppo":
        if values.devices("critic") < 1:
            yield {"value": None, "role": "critic", "example": '"critic":[1,1]'}
        if "advantages" not in values.resource:
            yield {"value": None, "role": "advantages", "example": '"advantages":[1,0]'}


RULES: tuple[Rule, ...] = (
    Rule(
        name="ppo-kl-off",
        option="advantage_estimator",
        reads=("loss_type", "advantage_estimator", "fully_async", "kl_coef", "use_kl_loss", "kl_loss_coef"),
        broken=lambda v: (
            is_rl(v)
            and v.advantage_estimator == "ppo"
            and not v.fully_async
            and (v.kl_coef != 0 or v.use_kl_loss or v.kl_loss_coef != 0)
        ),
        message="has no reference model: --kl-coef, --use-kl-loss and what belongs to them are off.",
        corrects=lambda v: {"kl_coef": 0.0, "use_kl_loss": False, "kl_loss_coef": 0.0, "use_unbiased_kl": False},
    ),
    Rule(
        name="ppo-roles",
        option="resource",
        reads=("loss_type", "advantage_estimator", "resource"),
        each=_missing_roles,
        message="has no role {role}, which --advantage-estimator ppo needs.",
        fix="Add {example}.",
    ),
    _guard(
        "ppo-colocate-log-probs",
        ("ppo",),
        "use_rollout_logprobs",
        lambda v: v.colocate and not v.use_rollout_logprobs,
        "is required with --advantage-estimator ppo under --colocate.",
        reads=("colocate",),
        shows=False,
    ),
    _guard(
        "ppo-colocate-staleness",
        ("ppo",),
        "max_staleness",
        lambda v: v.colocate and v.max_staleness > 0,
        "must be 0 with --advantage-estimator ppo under --colocate: actor and critic learn from the same step.",
        reads=("colocate",),
    ),
    _guard(
        "baseline-needs-a-group",
        BASELINE,
        "n_samples_per_prompt",
        lambda v: v.n_samples_per_prompt < 2,
        "leaves --advantage-estimator {advantage_estimator} no other response to compare with.",
        "Make it 2 or more.",
    ),
    _guard(
        "baseline-is-the-normalisation",
        BASELINE,
        "disable_rewards_normalization",
        lambda v: v.disable_rewards_normalization,
        "takes the baseline away from --advantage-estimator {advantage_estimator}.",
        "Leave it out.",
    ),
    _guard(
        "rloo-keeps-the-scale",
        ("rloo",),
        "normalize_advantages",
        lambda v: v.normalize_advantages,
        "divides by a spread that --advantage-estimator rloo keeps on purpose.",
        "Leave it out.",
    ),
    _guard(
        "rloo-token-loss",
        ("rloo",),
        "calculate_per_token_loss",
        lambda v: not v.calculate_per_token_loss,
        "is required with --advantage-estimator rloo: a mean over each response would weight tokens by its length.",
        shows=False,
    ),
    _guard(
        "rloo-staleness",
        ("rloo",),
        "max_staleness",
        lambda v: v.max_staleness > 0,
        "must be 0 with --advantage-estimator rloo, whose loss has no ratio to older weights.",
    ),
    _guard(
        "rloo-one-update",
        ("rloo",),
        "num_steps_per_rollout",
        lambda v: v.num_steps_per_rollout not in (None, 1),
        "must be 1 with --advantage-estimator rloo: after one update the samples come from older weights, and its loss"
        " has no ratio to them.",
        "Leave it out, and --global-batch-size too.",
    ),
    _guard(
        "rloo-whole-responses",
        ("rloo",),
        "partial_rollout",
        lambda v: v.partial_rollout,
        "cannot be used with --advantage-estimator rloo: a continued response begins with tokens of older weights.",
        "Leave it out.",
    ),
    _guard(
        "kl-coef-has-a-place",
        (*GROUP, *BASELINE),
        "kl_coef",
        # beside --kl-loss-coef it is told there
        lambda v: v.kl_coef != 0 and v.kl_loss_coef == 0,
        "has no effect with --advantage-estimator {advantage_estimator}: no KL is part of its rewards.",
        "Use --use-kl-loss and --kl-loss-coef.",
        reads=("kl_loss_coef",),
    ),
    _guard(
        "reinforce-standardises",
        REINFORCE,
        "normalize_advantages",
        lambda v: not v.normalize_advantages,
        "is required with --advantage-estimator {advantage_estimator}.",
        shows=False,
    ),
    _guard(
        "reinforce-whole-sequences",
        REINFORCE,
        "context_parallel_size",
        lambda v: v.context_parallel_size > 1,
        "must be 1 with --advantage-estimator {advantage_estimator}, which sums along a whole response.",
    ),
    _guard(
        "reinforce-response-loss",
        REINFORCE,
        "calculate_per_token_loss",
        lambda v: v.calculate_per_token_loss,
        "cannot be used with --advantage-estimator {advantage_estimator}: its loss is a mean over responses.",
        "Leave it out.",
    ),
    _guard(
        "reinforce-reward-kl",
        ("reinforce_plus_plus",),
        "kl_coef",
        lambda v: v.kl_coef <= 0,
        "must be above 0 with --advantage-estimator reinforce_plus_plus: the KL is part of its rewards.",
    ),
    _guard(
        "reinforce-kl-type",
        ("reinforce_plus_plus",),
        "kl_loss_type",
        lambda v: v.kl_loss_type != "k1",
        "must be k1 with --advantage-estimator reinforce_plus_plus.",
    ),
    _guard(
        "reinforce-kl-once",
        ("reinforce_plus_plus",),
        "use_kl_loss",
        lambda v: v.use_kl_loss,
        "cannot be used with --advantage-estimator reinforce_plus_plus: the KL is part of its rewards.",
        "Leave it out, and set --kl-coef.",
    ),
    _guard(
        "reinforce-baseline-kl",
        ("reinforce_plus_plus_baseline",),
        "use_kl_loss",
        lambda v: not v.use_kl_loss,
        "is required with --advantage-estimator reinforce_plus_plus_baseline.",
        "Set --kl-loss-type k2 and --kl-loss-coef too.",
        shows=False,
    ),
    _guard(
        "reinforce-baseline-kl-type",
        ("reinforce_plus_plus_baseline",),
        "kl_loss_type",
        lambda v: v.use_kl_loss and v.kl_loss_type != "k2",
        "must be k2 with --advantage-estimator reinforce_plus_plus_baseline.",
        reads=("use_kl_loss",),
    ),
    _guard(
        "reinforce-baseline-kl-weight",
        ("reinforce_plus_plus_baseline",),
        "kl_loss_coef",
        # where nobody gave a weight, that is told already
        lambda v: v.use_kl_loss and v.kl_loss_coef == 0 and v.is_given("kl_loss_coef"),
        "must be above 0 with --advantage-estimator reinforce_plus_plus_baseline.",
        reads=("use_kl_loss",),
    ),
    _guard(
        "reinforce-baseline-plain-kl",
        ("reinforce_plus_plus_baseline",),
        "use_unbiased_kl",
        lambda v: v.use_unbiased_kl,
        "cannot be used with --advantage-estimator reinforce_plus_plus_baseline: its k2 is weighted by nothing else.",
        "Leave it out.",
    ),
    _guard(
        "reinforce-baseline-own-rewards",
        ("reinforce_plus_plus_baseline",),
        "custom_reward_post_process_path",
        lambda v: v.custom_reward_post_process_path is not None,
        "replaces the baseline of --advantage-estimator reinforce_plus_plus_baseline.",
        "Leave it out, or take another estimator.",
    ),
    Rule(
        name="a-group-has-several",
        option="n_samples_per_prompt",
        reads=(
            "loss_type",
            "advantage_estimator",
            "n_samples_per_prompt",
            "disable_rewards_normalization",
            "custom_reward_post_process_path",
        ),
        broken=lambda v: (
            is_rl(v)
            and v.advantage_estimator in GROUP
            and v.n_samples_per_prompt == 1
            and not v.disable_rewards_normalization
            and v.custom_reward_post_process_path is None
        ),
        message="makes every advantage of --advantage-estimator {advantage_estimator} 0: a response equals the mean of"
        " its group.",
        fix="Make it 2 or more, or add --disable-rewards-normalization.",
        severity="warning",
    ),
)
