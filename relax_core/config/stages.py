"""Which options change the output of which stage.

Guarantee: a stage's options are exactly those that change what it writes, so that its hash changes when and only when
its output would; every option says in its declaration which stages those are. Two outputs are the same here when
they differ only in the rounding of sums: how samples are spread over devices and micro-batches is therefore no
part of them. What a stage reads from the stage before it enters its key as a reference, not through options.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from relax_core.algorithms.registry import estimators, get_estimator
from relax_core.config.derived import asks_teacher, needs_critic, needs_teacher
from relax_core.config.forward import compares_policies, forward_needs, kl_shapes_rewards
from relax_core.config.options import OPTIONS, PASSED_TO, Option, find_option, get_option, json_values, passed_values
from relax_core.config.sections import RelaxConfig

Stage = Literal["generate", "reward", "forward", "advantage", "train_critic", "train", "evaluate"]

STAGES: dict[Stage, tuple[str, ...]] = {
    stage: tuple(name for name, option in OPTIONS.items() if stage in option.details.stages)
    for stage in get_args(Stage)
}
"""Stage -> the declared options that change its output."""

SAMPLES_CHANGE_WITH = ("dtype", "quantization", "speculative", "lora", "override", "chat_template", "load_format")
"""Parts of the names of SGLang's options that change which tokens come out by more than rounding."""


def _decays(config: RelaxConfig) -> bool:
    return config.optimizer.lr_decay_style != "constant"


def _follows_length(config: RelaxConfig) -> bool:
    """Whether a schedule stretches with the length of the run."""
    return _decays(config) or config.megatron.weight_decay_incr_style != "constant"


def _has_kl_loss(config: RelaxConfig) -> bool:
    return config.algorithm.use_kl_loss


def _distils(config: RelaxConfig) -> bool:
    return config.opd.use_opd


def _policy_loss_takes(name: str) -> Callable[[RelaxConfig], bool]:
    """Whether the policy loss of the estimator has this option."""
    return lambda config: name in get_estimator(config.algorithm.advantage_estimator).loss_options


def _advantages_take(name: str) -> Callable[[RelaxConfig], bool]:
    """Whether the estimator reads this option."""
    return lambda config: name in get_estimator(config.algorithm.advantage_estimator).advantage_options


def _computes_advantages(config: RelaxConfig) -> bool:
    return not config.algorithm.disable_compute_advantages_and_returns


def _corrects(config: RelaxConfig) -> bool:
    return config.algorithm.use_tis or config.algorithm.get_mismatch_metrics


def _may_ask_service(config: RelaxConfig) -> bool:
    """Whether rewards may come from --rm-url: one is named, or rows may name it; with --use-opd it is a teacher's."""
    options = config.reward
    named = "remote_rm" in (options.rm_type, options.rm_type_fallback)
    return options.custom_rm_path is None and (named or not config.opd.use_opd)


_TAKE_ARGUMENTS = (
    "custom_generate_function_path",
    "rollout_data_postprocess_path",
    "custom_reward_post_process_path",
    "custom_loss_function_path",
    "custom_tis_function_path",
    "custom_pg_loss_reducer_function_path",
)


def _has_functions(config: RelaxConfig) -> bool:
    """Whether a function of the user that gets --custom-args decides an output."""
    sets = config.eval.eval_datasets or []
    named = any(get_option(config, name) for name in _TAKE_ARGUMENTS)
    return named or any(one.custom_generate_function_path for one in sets)


MATTERS_WHEN: dict[str, Callable[[RelaxConfig], bool]] = {
    "num_rollout": _follows_length,
    "num_epoch": lambda config: _follows_length(config) and config.rollout.num_rollout is None,
    "min_lr": _decays,
    "kl_loss_coef": _has_kl_loss,
    "use_unbiased_kl": _has_kl_loss,
    "custom_args": _has_functions,
    **{name: _policy_loss_takes(name) for spec in estimators() for name in spec.loss_options},
    "opsm_delta": lambda config: config.algorithm.use_opsm,
    "tis_clip": _corrects,
    "tis_clip_low": _corrects,
    "custom_tis_function_path": _corrects,
    **{name: _advantages_take(name) for name in ("gamma", "lambd") if OPTIONS[name].details.stages},
    "num_critic_only_steps": needs_critic,
    "critic_train_only": needs_critic,
    "opd_type": _distils,
    "opd_kl_coef": _distils,
    "opd_teacher_load": needs_teacher,
    "opd_teacher_ckpt_step": needs_teacher,
}
"""Options that change an output only under a condition."""

_OF_ADVANTAGES = (
    "advantage_estimator",
    "normalize_advantages",
    "disable_grpo_std_normalization",
    "disable_rewards_normalization",
)
_OF_THE_LOSS = frozenset(
    name for name in STAGES["train"] if str(OPTIONS[name].effect).startswith("relax_core/training/loss")
)
_REFERENCE = ("ref_load", "ref_ckpt_step", "ref_update_interval")
MATTERS_TO_WHEN: dict[tuple[Stage, str], Callable[[RelaxConfig], bool]] = {
    **{("forward", name): kl_shapes_rewards for name in _REFERENCE},
    **{("train", name): _has_kl_loss for name in (*_REFERENCE, "kl_loss_type")},
    **{("advantage", name): _computes_advantages for name in _OF_ADVANTAGES},
    ("advantage", "kl_loss_type"): kl_shapes_rewards,
    ("advantage", "use_rollout_logprobs"): compares_policies,
    ("advantage", "true_on_policy_mode"): lambda config: (
        compares_policies(config) and config.algorithm.use_rollout_logprobs
    ),
    ("reward", "use_opd"): lambda config: not (config.reward.rm_type or config.reward.custom_rm_path),
    ("forward", "rm_url"): asks_teacher,
    **{(stage, "rm_url"): _may_ask_service for stage in ("reward", "evaluate")},
    ("forward", "critic_load"): needs_critic,
}
"""The same for one of several stages that an option belongs to."""


def _matters(config: RelaxConfig, stage: Stage, name: str) -> bool:
    if stage == "train" and config.algorithm.loss_type == "custom_loss" and name in _OF_THE_LOSS:
        return True  # the user's loss gets all options, and may read any of these
    conditions = (MATTERS_WHEN.get(name), MATTERS_TO_WHEN.get((stage, name)))
    return all(condition(config) for condition in conditions if condition is not None)


def stages_of(option: Option) -> tuple[str, ...]:
    """The stages whose output an option changes."""
    if option.passed and option.section == "sglang":
        named = any(part in option.name for part in SAMPLES_CHANGE_WITH)
        return option.details.stages if named else ()
    return option.details.stages


def has_stage(config: RelaxConfig, stage: Stage) -> bool:
    """Whether the steps of a run have a stage whose options decide something."""
    needed = {"forward": lambda config: bool(forward_needs(config)), "train_critic": needs_critic}
    return stage not in needed or needed[stage](config)


def stage_options(config: RelaxConfig, stage: Stage) -> dict[str, Any]:
    """The options of a resolved configuration that change the output of ``stage``, by name, as JSON values.

    With ``options_hash`` this is the options' part of a stage's key: the hash covers exactly what changes the output.
    A stage that the run does not have has none.
    """
    if not has_stage(config, stage):
        return {}
    options = {name: get_option(config, name) for name in sorted(STAGES[stage]) if _matters(config, stage, name)}
    for section in PASSED_TO:
        for name, value in sorted(passed_values(config, section).items()):
            option = find_option(name)
            if option is not None and stage in stages_of(option):
                options[name] = value
    return json_values(options)


def options_hash(options: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that are the same for equal options, in any order and in any process."""
    text = json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
