from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names, report_of

from relax_core.config.options import get_option
from relax_core.config.rules.debugging import RULES

SAVED: dict[str, Any] = {"load_debug_rollout_data": "dump/{rollout_id}.pt", "debug_train_only": True}
MEMORY: dict[str, Any] = {"record_memory_history": True}
PROFILER: dict[str, Any] = {"use_pytorch_profiler": True, "profile_step_start": 1, "profile_step_end": 2}

CASES: list[tuple[str, Case]] = [
    (
        "saved-rollouts-replace-engines",
        Case(
            {"load_debug_rollout_data": "dump/{rollout_id}.pt"},
            "--load-debug-rollout-data dump/{rollout_id}.pt: turns --debug-train-only on: nothing is generated.",
            SAVED,
            {"debug_train_only": True},
        ),
    ),
    (
        "dump-has-paths",
        Case(
            {"dump_details": "dump/"},
            "--dump-details dump/: sets --save-debug-rollout-data and --save-debug-train-data.",
            {
                "dump_details": "dump",
                "save_debug_rollout_data": "a/{rollout_id}",
                "save_debug_train_data": "b/{rollout_id}",
            },
            {
                "save_debug_rollout_data": "dump/rollout_data/{rollout_id}.parquet",
                "save_debug_train_data": "dump/train_data/{rollout_id}_{rank}.parquet",
            },
        ),
    ),
    (
        "half-a-loop",
        Case(
            {**SAVED, "debug_rollout_only": True},
            "--debug-rollout-only: cannot be used with --debug-train-only",
            {"debug_rollout_only": True},
        ),
    ),
    (
        "no-advantages-without-their-models",
        Case(
            {"debug_rollout_only": True, "advantage_estimator": "ppo"},
            "--debug-rollout-only: makes samples and scores, but no advantages",
            {"debug_rollout_only": True},
        ),
    ),
    (
        "training-alone-has-data",
        Case(
            {"debug_train_only": True},
            "--debug-train-only: needs --load-debug-rollout-data, the samples to train on.",
            SAVED,
        ),
    ),
    (
        "training-alone-has-no-engines",
        Case(
            {**SAVED, "check_weight_update_equal": True},
            "--check-weight-update-equal: compares nothing with --debug-train-only, which starts no engine.",
            SAVED,
        ),
    ),
    (
        "training-alone-has-no-engines",
        Case(
            {**SAVED, "eval_interval": 2, "eval_prompt_data": ["a", "memory://set/a.jsonl"]},
            "--eval-interval 2: evaluates nothing with --debug-train-only",
            {"eval_interval": 2, "eval_prompt_data": ["a", "memory://set/a.jsonl"]},
        ),
    ),
    (
        "debug-placeholders",
        Case(
            {"save_debug_rollout_data": "dump/{rank}_{rollout_id}"},
            "--save-debug-rollout-data dump/{rank}_{rollout_id}: can contain no other placeholder than {rollout_id}.",
            {"save_debug_train_data": "dump/{rank}_{rollout_id}"},
        ),
    ),
    (
        "rollouts-alone-start-from-the-model",
        Case(
            {"debug_rollout_only": True, "load": "checkpoints"},
            "--debug-rollout-only: generates with the weights of --hf-checkpoint",
            {"debug_rollout_only": True},
        ),
    ),
    (
        "dumps-do-not-meet",
        Case(
            {"save_debug_rollout_data": "dump.pt"},
            "--save-debug-rollout-data dump.pt: is one file for all: each step replaces the one before. Put"
            " {rollout_id} into it.",
            {"save_debug_rollout_data": "dump.pt", "num_rollout": 1},
        ),
    ),
    (
        "recorded-samples-are-not-tracked",
        Case(
            {**SAVED, "use_tensorboard": True, "tb_project_name": "events"},
            "--use-tensorboard: gets nothing with --load-debug-rollout-data: metrics of recorded samples are in"
            " metrics.jsonl alone.",
            {"use_tensorboard": True, "tb_project_name": "events"},
        ),
    ),
    (
        "subsample-of-saved-rollouts",
        Case(
            {"load_debug_rollout_data_subsample": 0.5},
            "--load-debug-rollout-data-subsample 0.5: has no effect without --load-debug-rollout-data.",
            {**SAVED, "load_debug_rollout_data_subsample": 0.5},
        ),
    ),
    (
        "profiled-steps-in-order",
        Case(
            {**PROFILER, "profile_step_end": 0},
            "--profile-step-end 0: is before --profile-step-start 1.",
            {**PROFILER, "profile_step_end": 1},
        ),
    ),
    (
        "profiled-training-happens",
        Case(
            {"use_pytorch_profiler": True},  # 3 steps, and the first that is recorded is the tenth
            "--profile-step-start 10: is after the last of --num-rollout 3 steps, counted from 0: nothing is recorded.",
            PROFILER,
        ),
    ),
    (
        "profile-details-need-the-profiler",
        Case(
            {"profile_with_stack": True},
            "--profile-with-stack: has no effect without --use-pytorch-profiler.",
            {**PROFILER, "profile_with_stack": True},
        ),
    ),
    (
        "one-profiler-at-a-time",
        Case({**PROFILER, "profile": True}, "--profile: traces the same kernels as --use-pytorch-profiler", PROFILER),
    ),
    (
        "snapshots-need-a-history",
        Case(
            {"memory_snapshot_dir": "shots"},
            "--memory-snapshot-dir shots: has no effect without --record-memory-history.",
            {**MEMORY, "memory_snapshot_dir": "shots"},
        ),
    ),
    (
        "snapshot-is-a-file",
        Case(
            {**MEMORY, "memory_snapshot_path": "shots/a.pickle"},
            "--memory-snapshot-path shots/a.pickle: is no file name. Its folder is --memory-snapshot-dir.",
            {**MEMORY, "memory_snapshot_path": "a.pickle"},
        ),
    ),
    (
        "snapshot-is-taken",
        Case(
            {**MEMORY, "memory_snapshot_num_steps": 4},
            "--memory-snapshot-num-steps 4: is more than --num-rollout 3 steps",
            {**MEMORY, "memory_snapshot_num_steps": 3},
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_a_dump_keeps_the_path_that_was_given_and_braces_of_its_folder(tmp_path: Path) -> None:
    options = {"dump_details": "dump{1}", "save_debug_train_data": "own/{rollout_id}_{rank}"}
    config = report_of(tmp_path, options).config
    assert get_option(config, "save_debug_train_data") == "own/{rollout_id}_{rank}"
    path = str(get_option(config, "save_debug_rollout_data"))
    assert path.format(rollout_id=3) == "dump{1}/rollout_data/3.parquet"
