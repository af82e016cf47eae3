"""Rules about lengths, in tokens."""

from pathlib import Path

import pytest
from rule_cases import Case, check_case, check_names, report_of

from relax_core.config.rules.lengths import RULES

# a response of the small run has 64 tokens at most

CASES: list[tuple[str, Case]] = [
    (
        "context-has-room-for-both",
        Case(
            {"rollout_max_context_len": 64},
            "--rollout-max-response-len 64: leaves no room for a prompt in a context of 64 tokens."
            " It can be at most 63.",
            {"rollout_max_context_len": 65},
        ),
    ),
    (
        "context-has-room-for-both",
        Case(
            {"rollout_max_context_len": 128, "rollout_max_prompt_len": 128},
            "--rollout-max-prompt-len 128: leaves no room for a response in a context of 128 tokens. It can be",
            {"rollout_max_context_len": 128, "rollout_max_prompt_len": 127},
        ),
    ),
    (
        "context-has-room-for-both",
        Case(
            {"rollout_max_context_len": 128, "eval_max_response_len": 128},
            "--eval-max-response-len 128: leaves no room for a prompt in a context of 128 tokens.",
            {"rollout_max_context_len": 128, "eval_max_response_len": 128, "eval_max_context_len": 256},
        ),
    ),
    (
        "context-has-room-for-both",
        Case(  # the length is the rollout's, the context is not
            {"eval_max_context_len": 32, "eval_max_prompt_len": 8},
            "--eval-max-response-len 64: leaves no room for a prompt in a context of 32 tokens.",
            {"eval_max_context_len": 32, "eval_max_prompt_len": 8, "eval_max_response_len": 8},
        ),
    ),
    (
        "context-has-room-for-both",
        Case(
            {"eval_max_context_len": 128, "eval_max_prompt_len": 128},
            "--eval-max-prompt-len 128: leaves no room for a response in a context of 128 tokens.",
            {"eval_max_context_len": 128, "eval_max_prompt_len": 127},
        ),
    ),
    (
        "engines-hold-the-context",
        Case(
            {"rollout_max_context_len": 128, "sglang_context_length": 100},
            "--sglang-context-length 100: is below --rollout-max-context-len 128: the engine would cut responses short."
            " Make it 128 or more, or leave it out.",
            {"rollout_max_context_len": 128, "sglang_context_length": 128},
        ),
    ),
    (
        "engines-hold-the-context",
        Case(
            {"rollout_max_context_len": 128, "eval_max_context_len": 256, "sglang_context_length": 200},
            "--sglang-context-length 200: is below --eval-max-context-len 256",
            {"rollout_max_context_len": 128, "eval_max_context_len": 256, "sglang_context_length": 256},
        ),
    ),
    (
        "least-tokens-fit-the-response",
        Case(
            {"eval_min_new_tokens": 65},
            "--eval-min-new-tokens 65: is more than --eval-max-response-len 64.",
            {"eval_min_new_tokens": 64},
        ),
    ),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_rules(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


def test_a_length_that_an_evaluation_takes_over_is_told_once(tmp_path: Path) -> None:
    told = [str(problem) for problem in report_of(tmp_path, {"rollout_max_context_len": 64}).errors]
    assert len(told) == 1
