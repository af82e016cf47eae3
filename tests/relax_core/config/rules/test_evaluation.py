from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names, problems_of, report_of

from relax_core.config.eval_sets import EvalSet
from relax_core.config.rules.evaluation import RULES

SET: dict[str, Any] = {"eval_prompt_data": ["set", "memory://set/a.jsonl"]}


def sets(**fields: Any) -> dict[str, Any]:
    return {"eval_datasets": [EvalSet(name="a", path="memory://set/a.jsonl").model_copy(update=fields)]}


CASES: list[tuple[str, Case]] = [
    (
        "evaluation-has-sets",
        Case(
            {"eval_interval": 2},
            "--eval-interval 2: needs --eval-prompt-data NAME PATH.",
            {"eval_interval": 2, "loss_type": "sft"},  # supervised fine-tuning holds rows out
        ),
    ),
    (
        "sets-are-pairs",
        Case(
            {"eval_prompt_data": ["a", "memory://x/x", "b"]},
            "--eval-prompt-data a memory://x/x b: expects pairs of name and path, and got 3 words. Only one path",
            {"eval_prompt_data": ["memory://x/x"]},
        ),
    ),
    (
        "sets-are-right",
        Case(
            {"eval_prompt_data": ["a", "memory://x/x", "a", "memory://y/y"]},
            "--eval-prompt-data a: names two sets. Give each set a name of its own.",
            {"eval_prompt_data": ["a", "memory://x/x", "b", "memory://y/y"]},
        ),
    ),
    (
        "sets-are-right",
        Case(
            {"eval_prompt_data": ["a/b", "memory://x/x"]},
            "--eval-prompt-data a/b: is no name of an evaluation set.",
            SET,
        ),
    ),
    (
        "sets-are-right",
        Case(
            sets(top_p=2.0),
            "--eval-datasets: top_p of the evaluation set a is 2.0: it must be above 0 and at most 1.",
            sets(top_p=0.5),
        ),
    ),
    (
        "sets-are-right",
        Case(
            sets(min_new_tokens=9, max_response_len=8),
            "--eval-datasets: min_new_tokens of the evaluation set a is 9: it is above max_response_len 8.",
            {**SET, "eval_min_new_tokens": 9, "eval_max_response_len": 8},  # the options tell that themselves
        ),
    ),
    (
        "sets-have-row-slices",
        Case(
            {"eval_prompt_data": ["a", "memory://x/x@[3]"]},
            "--eval-prompt-data memory://x/x@[3]: @[3] is no row slice.",
            {"eval_prompt_data": ["a", "memory://x/x@[:3]"]},
        ),
    ),
    (
        "functions-of-sets-have-a-path",
        Case(
            sets(custom_rm_path="reward"),
            "--eval-datasets reward: names no function, as custom_rm_path of the evaluation set a.",
            {**SET, "custom_rm_path": "reward"},  # told at the option
        ),
    ),
    (
        "evaluation-file-wins",
        Case(
            {**SET, "eval_config": "{folder}/eval.yaml"},
            "--eval-prompt-data set memory://set/a.jsonl: is not used: --eval-config {folder}/eval.yaml says which",
            {"eval_config": "{folder}/eval.yaml"},
        ),
    ),
    (
        "greedy-answers-are-the-same",
        Case(
            {**SET, "eval_temperature": 0.0, "n_samples_per_eval_prompt": 4},
            "--n-samples-per-eval-prompt 4: gives the same response each time: the evaluation set set is sampled at",
            {**SET, "eval_temperature": 0.5, "n_samples_per_eval_prompt": 4},
        ),
    ),
    (
        "evaluation-before-training",
        Case(
            {"skip_eval_before_train": True},
            "--skip-eval-before-train: has no effect without --eval-interval",
            {**SET, "skip_eval_before_train": True, "eval_interval": 2},
        ),
    ),
    (
        "evaluation-options-need-sets",
        Case(
            {"eval_temperature": 0.5},
            "--eval-temperature 0.5: has no effect without --eval-prompt-data or --eval-config.",
            {**SET, "eval_temperature": 0.5},
        ),
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "eval.yaml").write_text("datasets: [{name: b, path: memory://set/b.jsonl}]\n")
    return tmp_path


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(folder: Path, name: str, case: Case) -> None:
    check_case(folder, RULES, name, case)


def test_a_mistake_in_an_option_that_sets_follow_is_told_once(tmp_path: Path) -> None:
    told = [str(problem) for problem in report_of(tmp_path, {**SET, "eval_temperature": -1.0}).errors]
    assert told == ["--eval-temperature -1.0: must be 0 or more."]


def test_options_that_follow_the_rollouts_are_no_options_of_evaluation(tmp_path: Path) -> None:
    options = {"rollout_temperature": 0.5, "label_key": "answer", "reward_key": "score"}
    assert [problem for rule in RULES for problem in problems_of(tmp_path, rule, options)] == []
