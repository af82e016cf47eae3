"""Rules of generation: how it samples, what it does with unfinished responses, its profiler, functions of the user.

Guarantee: an option that names a function has a form that names one; options that only matter beside another are told
when that one is missing.
"""

import re
from collections.abc import Iterator
from typing import Any

from relax_core.config.eval_set import MAX_STOP_STRINGS
from relax_core.config.resolve import FOLLOWS
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import estimator, idle, is_rl
from relax_core.config.values import Values
from relax_core.functions import our_path

FUNCTIONS = (
    "custom_prompt_path",
    "data_source_path",
    "dynamic_sampling_filter_path",
    "buffer_filter_path",
    "rollout_function_path",
    "custom_generate_function_path",
    "rollout_data_postprocess_path",
    "custom_rollout_log_function_path",
    "custom_eval_rollout_log_function_path",
    "custom_loss_function_path",
    "custom_tis_function_path",
    "custom_pg_loss_reducer_function_path",
    "sft_oversize_custom_function_path",
    "custom_dataset_class",
    "custom_dataset_class_path",
    "eval_function_path",
    "custom_rm_path",
    "custom_reward_post_process_path",
    "custom_convert_samples_to_train_data_path",
    "custom_model_provider_path",
)
"""Options that name a function, or a class."""

CLASSES = ("data_source_path", "custom_dataset_class", "custom_dataset_class_path")
"""Those that name a class."""

PROFILER = (
    "sglang_profile_steps",
    "sglang_profile_step_start",
    "sglang_profile_step_end",
    "sglang_profile_output_dir",
    "sglang_profile_num_steps",
    "sglang_profile_activities",
    "sglang_profile_by_stage",
    "sglang_profile_with_stack",
    "sglang_profile_record_shapes",
)
ACTIVITIES = ("CPU", "GPU", "MEM", "RPD", "CUDA_PROFILER")
"""What SGLang's profiler can record."""

_NAME = r"[^\W\d]\w*"
_DOTTED = re.compile(rf"{_NAME}(\.{_NAME})*[.:]{_NAME}(\.{_NAME})*")
_IN_FILE = re.compile(rf".+\.py:{_NAME}", re.DOTALL)


def names_function(path: object) -> bool:
    """Whether a text is `package.module.function`, `package.module:function` or `path/to/file.py:function`."""
    return isinstance(path, str) and bool(_DOTTED.fullmatch(path) or _IN_FILE.fullmatch(path))


def _bad_functions(values: Values) -> Iterator[dict[str, Any]]:
    for name in FUNCTIONS:
        path = values[name]
        if path is None or names_function(path) or (name in FOLLOWS and path == values[FOLLOWS[name]]):
            continue
        yield {"option": name, "what": "class" if name in CLASSES else "function"}


def _bad_stops(values: Values) -> Iterator[dict[str, Any]]:
    stop = values.rollout_stop or ()
    if len(stop) > MAX_STOP_STRINGS:
        yield {"value": None, "reason": f"has {len(stop)} texts, and SGLang takes {MAX_STOP_STRINGS} at most."}
    if not all(stop):
        yield {"value": None, "reason": "has an empty text, which would end every response at once."}


def _bad_activities(values: Values) -> Iterator[dict[str, Any]]:
    if not values.sglang_profile_activities:
        yield {"value": None, "reason": "names nothing to record."}
    for name in values.sglang_profile_activities:
        if name not in ACTIVITIES:
            yield {"value": name, "reason": "is nothing that SGLang's profiler records."}


def _steps_after_the_end(values: Values) -> Iterator[dict[str, Any]]:
    if not values.sglang_profile or values.num_rollout is None:
        return
    if values.sglang_profile_steps:
        late = [step for step in values.sglang_profile_steps if step >= values.num_rollout]
        if late:
            yield {"option": "sglang_profile_steps", "value": " ".join(map(str, late))}
    elif values.sglang_profile_step_start is not None and values.sglang_profile_step_start >= values.num_rollout:
        yield {"option": "sglang_profile_step_start"}


SELECTING = ("over_sampling_batch_size", "rollout_batch_size", "dynamic_sampling_filter_path")
"""What ``_selects`` reads."""


def _selects(values: Values) -> bool:
    """Whether steps submit more prompts than they train on."""
    more = (values.over_sampling_batch_size or 0) > (values.rollout_batch_size or 0)
    return more or values.dynamic_sampling_filter_path is not None


def _older_groups(values: Values) -> Iterator[dict[str, Any]]:
    if not (is_rl(values) and _selects(values)):
        return
    fresh = any(demand.option == "partial_rollout" for demand in estimator(values).demands)
    who = (
        "--true-on-policy-mode" if values.true_on_policy_mode else f"--advantage-estimator {values.advantage_estimator}"
    )
    if values.true_on_policy_mode or fresh:
        filtered = values.dynamic_sampling_filter_path is not None
        yield {
            "option": "dynamic_sampling_filter_path" if filtered else "over_sampling_batch_size",
            "reason": "leaves finished groups to the next step, for whose weights they are a step old, and"
            f" {who} corrects nothing.",
        }


RULES: tuple[Rule, ...] = (
    Rule(
        name="functions-have-a-path",
        option="custom_rm_path",
        reads=FUNCTIONS,
        each=_bad_functions,
        message="names no {what}.",
        fix="Write package.module.{what}, package.module:{what} or path/to/file.py:{what}.",
    ),
    # Sampling
    Rule(
        name="enough-prompts-at-a-time",
        option="over_sampling_batch_size",
        reads=("over_sampling_batch_size", "rollout_batch_size"),
        broken=lambda v: (
            v.over_sampling_batch_size is not None
            and v.rollout_batch_size is not None
            and v.over_sampling_batch_size < v.rollout_batch_size
        ),
        message="is below --rollout-batch-size {rollout_batch_size}, the prompts that a step needs.",
        fix="Make it {rollout_batch_size} or more, or leave it out.",
    ),
    Rule(
        name="nucleus-changes-log-probs",
        option="rollout_top_p",
        reads=("rollout_top_p",),
        broken=lambda v: v.rollout_top_p != 1,
        message="makes the engine's log-probs differ from the trainer's, which count every token.",
        severity="warning",
    ),
    Rule(
        name="top-k-changes-log-probs",
        option="rollout_top_k",
        reads=("rollout_top_k",),
        broken=lambda v: v.rollout_top_k != -1,
        message="makes the engine's log-probs differ from the trainer's, which count every token.",
        severity="warning",
    ),
    Rule(
        name="stop-texts-are-few",
        option="rollout_stop",
        reads=("rollout_stop",),
        each=_bad_stops,
        message="{reason}",
    ),
    # Groups that a step does not need
    Rule(
        name="spread-needs-two-samples",
        option="dynamic_sampling_filter_path",
        reads=("dynamic_sampling_filter_path", "n_samples_per_prompt"),
        broken=lambda v: (
            v.n_samples_per_prompt < 2
            and str(our_path(v.dynamic_sampling_filter_path or "")).endswith(".check_reward_nonzero_std")
        ),
        message="keeps no group of one sample, which has no spread: the first step would never end.",
        fix="Make --n-samples-per-prompt 2 or more, or leave it out.",
    ),
    Rule(
        name="kept-groups-are-older",
        option="over_sampling_batch_size",
        reads=(*SELECTING, "true_on_policy_mode", "advantage_estimator", "loss_type"),
        each=_older_groups,
        message="{reason}",
        severity="warning",
    ),
    idle(
        "what-is-kept-needs-more-prompts",
        ("partial_rollout", "buffer_filter_path"),
        SELECTING,
        lambda v: not _selects(v),
        "has no effect: no step submits more prompts than it needs, and nothing is stopped or kept.",
        "Add --over-sampling-batch-size above --rollout-batch-size, or --dynamic-sampling-filter-path.",
    ),
    # Unfinished responses
    idle(
        "partial-options-need-partial-rollout",
        ("partial_rollout_max_aborted_count", "mask_offpolicy_in_partial_rollout"),
        ("partial_rollout",),
        lambda v: not v.partial_rollout,
        "has no effect without --partial-rollout.",
    ),
    # Weights of the engines
    Rule(
        name="old-weights-are-known",
        option="update_weights_interval",
        reads=("update_weights_interval", "keep_old_actor", "use_rollout_logprobs"),
        broken=lambda v: v.update_weights_interval > 1 and not v.keep_old_actor and not v.use_rollout_logprobs,
        message="lets samples come from weights that the trainer no longer has: the old policy's log-probs would be of"
        " newer ones.",
        fix="Add --keep-old-actor or --use-rollout-logprobs.",
        severity="warning",
    ),
    idle(
        "old-actor-computes-log-probs",
        ("keep_old_actor",),
        ("use_rollout_logprobs", "true_on_policy_mode"),
        lambda v: v.use_rollout_logprobs or v.true_on_policy_mode,
        "keeps weights that nothing computes with: the old policy's log-probs come from elsewhere.",
        "Leave it out.",
    ),
    # Profiler
    idle(
        "profile-options-need-the-profiler",
        PROFILER,
        ("sglang_profile",),
        lambda v: not v.sglang_profile,
        "has no effect without --sglang-profile.",
    ),
    idle(
        "profile-steps-win",
        ("sglang_profile_step_start", "sglang_profile_step_end"),
        ("sglang_profile", "sglang_profile_steps"),
        lambda v: v.sglang_profile and v.sglang_profile_steps is not None,
        "is not used: --sglang-profile-steps {sglang_profile_steps} says which steps are profiled.",
        "Leave one out.",
    ),
    Rule(
        name="profile-range",
        option="sglang_profile_step_end",
        reads=("sglang_profile_step_end", "sglang_profile_step_start"),
        broken=lambda v: (
            v.sglang_profile_step_end is not None
            and v.sglang_profile_step_start is not None
            and v.sglang_profile_step_end < v.sglang_profile_step_start
        ),
        message="is before --sglang-profile-step-start {sglang_profile_step_start}.",
    ),
    Rule(
        name="profiled-steps-happen",
        option="sglang_profile_steps",
        reads=("sglang_profile", "sglang_profile_steps", "sglang_profile_step_start", "num_rollout"),
        each=_steps_after_the_end,
        message="is after the last of --num-rollout {num_rollout} steps, which are counted from 0.",
        severity="warning",
    ),
    Rule(
        name="profiled-activities",
        option="sglang_profile_activities",
        reads=("sglang_profile_activities",),
        each=_bad_activities,
        message="{reason}",
        fix=f"Names: {', '.join(ACTIVITIES)}.",
    ),
)
