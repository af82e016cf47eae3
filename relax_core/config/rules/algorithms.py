"""Rules of the loss: off-policy corrections, the critic, what is trained.

Guarantee: an option that the chosen loss would not use is told, and two that contradict each other are refused.
"""

import re
from collections.abc import Iterator
from typing import Any

from relax_core.config.rules.base import Rule
from relax_core.config.rules.estimators import RULES as ESTIMATORS
from relax_core.config.rules.kinds import KL, estimator, estimator_text, has_kl, idle, is_rl
from relax_core.config.rules.kl import RULES as KL_RULES
from relax_core.config.values import Values

_CRITIC = (
    "value_clip",
    "num_critic_only_steps",
    "critic_train_only",
    "critic_load",
    "critic_save",
    "critic_lr",
    "critic_lr_warmup_iters",
)
_CHANGE_ADVANTAGES = ("kl_coef", "normalize_advantages", "use_opd")
_OF_THE_POLICY_LOSS = (
    "custom_tis_function_path",
    "custom_pg_loss_reducer_function_path",
    "get_mismatch_metrics",
    "use_opsm",
)
_PATTERNS = ("only_train_params_name_list", "freeze_params_name_list")


def _taking(option: str) -> str:
    """The estimators that read an option."""
    return estimator_text(lambda spec: option in (*spec.advantage_options, *spec.loss_options))


def _change_no_advantages(values: Values) -> Iterator[dict[str, Any]]:
    if not values.disable_compute_advantages_and_returns or not is_rl(values):
        return
    if estimator(values).needs_critic:
        yield {"what": f"--advantage-estimator {values.advantage_estimator}"}
    yield from ({"what": f"--{name.replace('_', '-')}"} for name in _CHANGE_ADVANTAGES if values[name])


def _bad_patterns(values: Values) -> Iterator[dict[str, Any]]:
    for name in _PATTERNS:
        for pattern in values[name] or ():
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError) as error:
                yield {"option": name, "value": pattern, "why": str(error) or type(error).__name__}


def _catch_alls(values: Values) -> Iterator[dict[str, Any]]:
    for pattern in values.freeze_params_name_list or ():
        try:
            found = re.search(pattern, "")
        except (re.error, OverflowError, RecursionError):
            continue  # told by another rule
        if found:
            yield {"value": pattern}


RULES: tuple[Rule, ...] = (
    *ESTIMATORS,
    *KL_RULES,
    Rule(
        name="routing-replay-follows",
        option="use_rollout_routing_replay",
        reads=("use_rollout_routing_replay", "use_routing_replay", "loss_type"),
        broken=lambda v: is_rl(v) and v.use_rollout_routing_replay and not v.use_routing_replay,
        message="turns --use-routing-replay on.",
        corrects=lambda v: {"use_routing_replay": True},
    ),
    Rule(
        name="routing-replay-of-whole-responses",
        option="use_rollout_routing_replay",
        reads=("use_rollout_routing_replay", "partial_rollout"),
        broken=lambda v: v.use_rollout_routing_replay and v.partial_rollout,
        message="cannot be used with --partial-rollout: a continued response was routed by several weights.",
        fix="Leave one out.",
    ),
    # Loss
    Rule(
        name="sft-loss-is-sft",
        option="loss_type",
        reads=("loss_type",),
        broken=lambda v: v.loss_type == "sft_loss",
        message="is an old name of sft, which is taken.",
        corrects=lambda v: {"loss_type": "sft"},
    ),
    Rule(
        name="custom-loss-needs-a-function",
        option="loss_type",
        reads=("loss_type", "custom_loss_function_path"),
        broken=lambda v: v.loss_type == "custom_loss" and v.custom_loss_function_path is None,
        message="needs --custom-loss-function-path.",
    ),
    Rule(
        name="custom-function-needs-the-loss",
        option="custom_loss_function_path",
        reads=("custom_loss_function_path", "loss_type"),
        broken=lambda v: v.custom_loss_function_path is not None and v.loss_type != "custom_loss",
        message="is not called with --loss-type {loss_type}.",
        fix="Add --loss-type custom_loss, or leave it out.",
    ),
    Rule(
        name="policy-loss-needs-advantages",
        option="disable_compute_advantages_and_returns",
        reads=("disable_compute_advantages_and_returns", "loss_type"),
        broken=lambda v: v.disable_compute_advantages_and_returns and v.loss_type == "policy_loss",
        message="leaves the policy loss without the advantages that it weights.",
        fix="Leave it out, or use --loss-type custom_loss or sft.",
    ),
    Rule(
        name="no-advantages-to-change",
        option="disable_compute_advantages_and_returns",
        reads=("disable_compute_advantages_and_returns", "loss_type", "advantage_estimator", *_CHANGE_ADVANTAGES),
        each=_change_no_advantages,
        message="leaves {what} without the advantages that it would change.",
        fix="Leave one out.",
    ),
    idle(
        "parts-of-the-policy-loss",
        _OF_THE_POLICY_LOSS,
        ("loss_type",),
        lambda v: v.loss_type == "custom_loss",
        "is a part of the policy loss: it does nothing in --loss-type custom_loss.",
        "Leave it out.",
    ),
    idle(
        "clipping-needs-a-ratio",
        ("eps_clip", "eps_clip_high"),
        ("advantage_estimator",),
        lambda v: "eps_clip" not in estimator(v).loss_options,
        "has no effect with --advantage-estimator {advantage_estimator}, which clips no ratio.",
        "Leave it out.",
    ),
    idle(
        "dual-clip-needs-a-clip",
        ("eps_clip_c",),
        ("advantage_estimator",),
        lambda v: "eps_clip_c" not in estimator(v).loss_options,
        "has no effect with --advantage-estimator {advantage_estimator}.",
        "Leave it out.",
    ),
    idle(
        "temperatures-of-sapo",
        ("sapo_tau_pos", "sapo_tau_neg"),
        ("advantage_estimator",),
        lambda v: "sapo_tau_pos" not in estimator(v).loss_options,
        f"has an effect only with --advantage-estimator {_taking('sapo_tau_pos')}.",
        "Leave it out.",
    ),
    idle(
        "gamma-discounts-returns",
        ("gamma",),
        ("advantage_estimator",),
        lambda v: "gamma" not in estimator(v).advantage_options,
        f"has an effect only with --advantage-estimator {_taking('gamma')}.",
        "Leave it out.",
    ),
    idle(
        "lambda-of-gae",
        ("lambd",),
        ("advantage_estimator",),
        lambda v: "lambd" not in estimator(v).advantage_options,
        f"has an effect only with --advantage-estimator {_taking('lambd')}.",
        "Leave it out.",
    ),
    idle(
        "spread-of-a-group",
        ("disable_grpo_std_normalization",),
        ("advantage_estimator", "n_samples_per_prompt"),
        # it is set by itself for groups of one
        lambda v: estimator(v).normalizer != "group_mean_std" and v.n_samples_per_prompt != 1,
        "has no effect with --advantage-estimator {advantage_estimator}, which divides by no group's spread.",
        "Leave it out.",
    ),
    # Critic
    idle(
        "critic-options-need-a-critic",
        _CRITIC,
        ("advantage_estimator",),
        lambda v: not estimator(v).needs_critic,
        "has no effect with --advantage-estimator {advantage_estimator}, which has no critic.",
        "Leave it out.",
    ),
    Rule(
        name="actor-has-its-steps",
        option="num_critic_only_steps",
        reads=("num_critic_only_steps", "num_rollout"),
        broken=lambda v: v.num_rollout is not None and v.num_critic_only_steps >= v.num_rollout,
        message="leaves the actor none of the {num_rollout} steps.",
        fix="Say --critic-train-only where that is meant.",
        severity="warning",
    ),
    # Off-policy corrections
    Rule(
        name="tis-needs-trainer-log-probs",
        option="use_tis",
        reads=("use_tis", "use_rollout_logprobs"),
        broken=lambda v: v.use_tis and v.use_rollout_logprobs,
        message="cannot be used with --use-rollout-logprobs: it needs the trainer's log-probs too.",
        fix="Leave one out.",
    ),
    Rule(
        name="mismatch-metrics-need-a-function",
        option="get_mismatch_metrics",
        reads=("get_mismatch_metrics", "custom_tis_function_path"),
        broken=lambda v: v.get_mismatch_metrics and v.custom_tis_function_path is None,
        message="needs --custom-tis-function-path, the function that computes them.",
    ),
    Rule(
        name="tis-bounds-in-order",
        option="tis_clip_low",
        reads=("tis_clip_low", "tis_clip"),
        broken=lambda v: v.tis_clip_low > v.tis_clip,
        message="is above --tis-clip {tis_clip}.",
    ),
    idle(
        "tis-options-need-tis",
        ("tis_clip", "tis_clip_low", "custom_tis_function_path"),
        ("use_tis", "get_mismatch_metrics"),
        lambda v: not v.use_tis and not v.get_mismatch_metrics,
        "has no effect without --use-tis.",
    ),
    idle(
        "opsm-delta-needs-opsm",
        ("opsm_delta",),
        ("use_opsm",),
        lambda v: not v.use_opsm,
        "has no effect without --use-opsm.",
    ),
    idle(
        "entropy-for-a-mask",
        ("use_rollout_entropy",),
        ("rollout_data_postprocess_path", "custom_loss_function_path"),
        lambda v: v.rollout_data_postprocess_path is None and v.custom_loss_function_path is None,
        "stores a column that nothing reads: only a function of yours does.",
        "Add --rollout-data-postprocess-path, or leave this out.",
    ),
    # Weights in host memory, and which are trained
    Rule(
        name="swapped-models-need-copies",
        option="disable_weights_backuper",
        reads=("disable_weights_backuper", "fully_async", "keep_old_actor", "use_opd", "opd_type", *KL),
        broken=lambda v: (
            v.disable_weights_backuper
            and (v.keep_old_actor or (not v.fully_async and (has_kl(v) or (v.use_opd and v.opd_type == "megatron"))))
        ),
        message="leaves no copy of the reference, of the old actor or of a teacher to swap in.",
        fix="Leave it out, or what needs that model.",
    ),
    Rule(
        name="trained-or-frozen",
        option="only_train_params_name_list",
        reads=_PATTERNS,
        broken=lambda v: v.only_train_params_name_list and v.freeze_params_name_list,
        message="excludes --freeze-params-name-list: each alone says what is trained.",
        fix="Leave one out.",
    ),
    Rule(
        name="patterns-are-regular-expressions",
        option="freeze_params_name_list",
        reads=_PATTERNS,
        each=_bad_patterns,
        message="is no regular expression: {why}.",
        fix="Put a backslash before a character that is meant as it is.",
    ),
    Rule(
        name="freeze-leaves-something",
        option="freeze_params_name_list",
        reads=("freeze_params_name_list",),
        each=_catch_alls,
        message="is found in every name: nothing would be trained.",
    ),
)
