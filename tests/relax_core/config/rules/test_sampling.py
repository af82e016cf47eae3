from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.options import OPTIONS
from relax_core.config.rules.sampling import FUNCTIONS, RULES, names_function

SPREAD = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
PROFILE: dict[str, Any] = {"sglang_profile": True}

CASES: list[tuple[str, Case]] = [
    (
        "functions-have-a-path",
        Case(
            {"custom_rm_path": "reward"},
            "--custom-rm-path reward: names no function. Write package.module.function",
            {"custom_rm_path": "my/reward.py:reward", "custom_tis_function_path": "a.b:c"},
        ),
    ),
    (
        "functions-have-a-path",
        Case(
            {"rollout_function_path": "generate"},  # evaluation follows it: told once
            "function-path generate: names no function.",
            {"rollout_function_path": "my.module.generate"},
        ),
    ),
    (
        "functions-have-a-path",
        Case(
            {"custom_dataset_class": "Rows"},
            "--custom-dataset-class Rows: names no class. Write package.module.class, ",
            {"custom_dataset_class": "package.Rows"},
        ),
    ),
    (
        "enough-prompts-at-a-time",
        Case(
            {"over_sampling_batch_size": 7},
            "--over-sampling-batch-size 7: is below --rollout-batch-size 8, the prompts that a step needs.",
            {"over_sampling_batch_size": 8},
        ),
    ),
    (
        "spread-needs-two-samples",
        Case(
            {"dynamic_sampling_filter_path": SPREAD, "n_samples_per_prompt": 1},
            f"--dynamic-sampling-filter-path {SPREAD}: keeps no group of one sample",
            {"dynamic_sampling_filter_path": SPREAD, "n_samples_per_prompt": 2},
        ),
    ),
    (
        "kept-groups-are-older",
        Case(
            {"over_sampling_batch_size": 9, "true_on_policy_mode": True},
            "--over-sampling-batch-size 9: leaves finished groups to the next step, for whose weights they are a step"
            " old, and --true-on-policy-mode corrects nothing.",
            {"over_sampling_batch_size": 8, "true_on_policy_mode": True},
        ),
    ),
    (
        "kept-groups-are-older",
        Case(
            {"dynamic_sampling_filter_path": SPREAD, "advantage_estimator": "rloo"},
            f"--dynamic-sampling-filter-path {SPREAD}: leaves finished groups to the next step, for whose weights they"
            " are a step old, and --advantage-estimator rloo corrects nothing.",
            {"dynamic_sampling_filter_path": SPREAD},
        ),
    ),
    (
        "what-is-kept-needs-more-prompts",
        Case(
            {"partial_rollout": True},
            "--partial-rollout: has no effect: no step submits more prompts than it needs",
            {"partial_rollout": True, "over_sampling_batch_size": 9},
        ),
    ),
    (
        "what-is-kept-needs-more-prompts",
        Case(
            {"buffer_filter_path": "mine.choose"},
            "--buffer-filter-path mine.choose: has no effect",
            {"buffer_filter_path": "mine.choose", "dynamic_sampling_filter_path": "mine.keep"},
        ),
    ),
    (
        "nucleus-changes-log-probs",
        Case({"rollout_top_p": 0.9}, "--rollout-top-p 0.9: makes the engine's log-probs differ", {"eval_top_p": 0.9}),
    ),
    (
        "top-k-changes-log-probs",
        Case({"rollout_top_k": 20}, "--rollout-top-k 20: makes the engine's log-probs differ", {"eval_top_k": 20}),
    ),
    (
        "stop-texts-are-few",
        Case(
            {"rollout_stop": [str(number) for number in range(33)]},
            "--rollout-stop: has 33 texts, and SGLang takes 32 at most.",
            {"rollout_stop": ["###"]},
        ),
    ),
    (
        "stop-texts-are-few",
        Case({"rollout_stop": ["a", ""]}, "--rollout-stop: has an empty text", {"rollout_stop": None}),
    ),
    (
        "partial-options-need-partial-rollout",
        Case(
            {"partial_rollout_max_aborted_count": 2},
            "--partial-rollout-max-aborted-count 2: has no effect without --partial-rollout. Add it, or leave this",
            {"partial_rollout_max_aborted_count": 2, "partial_rollout": True},
        ),
    ),
    (
        "old-weights-are-known",
        Case(
            {"update_weights_interval": 2},
            "--update-weights-interval 2: lets samples come from weights that the trainer no longer has",
            {"update_weights_interval": 2, "keep_old_actor": True},
        ),
    ),
    (
        "old-actor-computes-log-probs",
        Case(
            {"keep_old_actor": True, "use_rollout_logprobs": True},
            "--keep-old-actor: keeps weights that nothing computes with",
            {"keep_old_actor": True},
        ),
    ),
    (
        "profile-options-need-the-profiler",
        Case(
            {"sglang_profile_num_steps": 5},
            "--sglang-profile-num-steps 5: has no effect without --sglang-profile.",
            {**PROFILE, "sglang_profile_num_steps": 5},
        ),
    ),
    (
        "profile-steps-win",
        Case(
            {**PROFILE, "sglang_profile_steps": [0, 2], "sglang_profile_step_start": 1},
            "--sglang-profile-step-start 1: is not used: --sglang-profile-steps 0 2 says which steps are profiled.",
            {**PROFILE, "sglang_profile_step_start": 1},
        ),
    ),
    (
        "profile-range",
        Case(
            {**PROFILE, "sglang_profile_step_start": 2, "sglang_profile_step_end": 1},
            "--sglang-profile-step-end 1: is before --sglang-profile-step-start 2.",
            {**PROFILE, "sglang_profile_step_start": 2, "sglang_profile_step_end": 2},
        ),
    ),
    (
        "profiled-steps-happen",
        Case(
            {**PROFILE, "sglang_profile_steps": [1, 3, 10]},
            "--sglang-profile-steps 3 10: is after the last of --num-rollout 3 steps, which are counted from 0.",
            {**PROFILE, "sglang_profile_steps": [2]},
        ),
    ),
    (
        "profiled-steps-happen",
        Case(
            {**PROFILE, "sglang_profile_step_start": 3},
            "--sglang-profile-step-start 3: is after the last of --num-rollout 3 steps",
            {**PROFILE, "sglang_profile_step_start": 2, "sglang_profile_step_end": 20},
        ),
    ),
    (
        "profiled-activities",
        Case(
            {**PROFILE, "sglang_profile_activities": ["CPU", "gpu"]},
            "--sglang-profile-activities gpu: is nothing that SGLang's profiler records. Names: CPU, GPU",
            {**PROFILE, "sglang_profile_activities": ["CPU", "MEM"]},
        ),
    ),
    (
        "profiled-activities",
        Case(
            {**PROFILE, "sglang_profile_activities": []},
            "--sglang-profile-activities: names nothing to record.",
            PROFILE,
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


@pytest.mark.parametrize(
    "path", ["a.b", "a.b:c", "a:b", "a.b.c", "a.py:f", "./x y/a.py:f", "~/a.py:f", "s3://b/a.py:f"]
)
def test_what_names_a_function(path: str) -> None:
    assert names_function(path)


@pytest.mark.parametrize("path", ["", "a", "a.", ".a", "a..b", "a/b", "a/b.py", "a.py:", "a-b.c", "1.2", "a.b:c:d"])
def test_what_names_none(path: str) -> None:
    assert not names_function(path)


def test_every_option_that_names_a_function_is_looked_at() -> None:
    others = {
        "memory_snapshot_path",
        "data_path",
        "genrm_model_path",
        "custom_config_path",
    }
    named = {name for name in OPTIONS if name.endswith("_path")}
    assert named - others | {"custom_dataset_class"} == set(FUNCTIONS)
