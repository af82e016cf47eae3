from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names, problems_of, report_of

from relax_core.config.options import OPTIONS, get_option
from relax_core.config.rules.sft import RL_ONLY, RULES

SFT: dict[str, Any] = {
    "loss_type": "sft",
    "use_dynamic_batch_size": True,
    "max_tokens_per_gpu": 512,
    "balance_data": True,
}
PREPACK: dict[str, Any] = {**SFT, "sft_async_prepack": True, "per_rank_fetch": True, "max_staleness": 1}
SHARDS: dict[str, Any] = {**PREPACK, "sft_tq_shards": 2}
SETS: dict[str, Any] = {"eval_prompt_data": ["set", "memory://set/a.jsonl"]}

CASES: list[tuple[str, Case]] = [
    (
        "sft-is-no-rl",
        Case(
            {**SFT, "use_kl_loss": True, "kl_loss_coef": 0.1, "partial_rollout": True},
            "--loss-type sft: learns from given answers: --use-kl-loss, --kl-loss-coef, --partial-rollout are off.",
            SFT,
            {"use_kl_loss": False, "kl_loss_coef": 0.0, "partial_rollout": False},
        ),
    ),
    (
        "sft-packs-by-length",
        Case(
            {"loss_type": "sft", "max_tokens_per_gpu": 512},
            "--loss-type sft: packs samples by their lengths: --use-dynamic-batch-size and --balance-data are on.",
            {},
            {"use_dynamic_batch_size": True, "balance_data": True},
        ),
    ),
    (
        "shards-are-one-or-more",
        Case({**PREPACK, "sft_tq_shards": -2}, "--sft-tq-shards -2: counts as 1.", SHARDS, {"sft_tq_shards": 1}),
    ),
    (
        "sft-options-need-sft",
        Case(
            {"sft_prefetch_num_workers": 8},
            "--sft-prefetch-num-workers 8: has no effect without --loss-type sft.",
            {**SFT, "sft_prefetch_num_workers": 8},
        ),
    ),
    (
        "one-source-of-held-out-samples",
        Case(
            {**SFT, **SETS, "eval_size": 0.1},
            "--eval-size 0.1: cannot be used with evaluation sets of their own.",
            {**SFT, "eval_size": 0.1},
        ),
    ),
    (
        "whole-samples-are-held-out",
        Case(
            {**SFT, "eval_size": 1.5},
            "--eval-size 1.5: is no whole number of samples; below 1 it is a share.",
            {**SFT, "eval_size": 20.0},
        ),
    ),
    (
        "sft-evaluates-something",
        Case(
            {**SFT, "eval_interval": 2},
            "--eval-interval 2: needs --eval-size, or --eval-prompt-data NAME PATH.",
            {**SFT, "eval_interval": 2, "eval_size": 5.0},
        ),
    ),
    (
        "sft-predicts-something",
        Case(
            {**SFT, "sft_predict_interval": 2},
            "--sft-predict-interval 2: needs --eval-size, --eval-prompt-data NAME PATH or --eval-config",
            {**SFT, **SETS, "sft_predict_interval": 2},
        ),
    ),
    (
        "prepack-conditions",
        Case(
            {**PREPACK, "per_rank_fetch": False},
            "--sft-async-prepack: needs --per-rank-fetch.",
            PREPACK,
        ),
    ),
    (
        "prepack-conditions",
        Case(
            {**PREPACK, "max_staleness": 0},
            "--sft-async-prepack: needs two steps in flight: --sft-max-in-flight-steps 2 or --max-staleness 1.",
            {**PREPACK, "max_staleness": 0, "sft_max_in_flight_steps": 2},
        ),
    ),
    (
        "prepack-conditions",
        Case(
            {**PREPACK, "pipeline_model_parallel_size": 2}, "--sft-async-prepack: needs --pipeline-model-para", PREPACK
        ),
    ),
    (
        "prepack-conditions",
        Case({**PREPACK, "context_parallel_size": 2}, "--sft-async-prepack: needs --context-parallel-size 1.", PREPACK),
    ),
    (
        "prepack-conditions",
        Case(
            {**PREPACK, "virtual_pipeline_model_parallel_size": 2},
            "--sft-async-prepack: needs --virtual-pipeline-model-parallel-size 1.",
            PREPACK,
        ),
    ),
    (
        "prepack-conditions",
        Case({**PREPACK, "qkv_format": "bshd"}, "--sft-async-prepack: needs --qkv-format thd.", PREPACK),
    ),
    (
        "shards-need-prepack",
        Case(
            {**SFT, "sft_tq_shards": 2},
            "--sft-tq-shards 2: has no effect without --sft-async-prepack: a step is one part.",
            SHARDS,
        ),
    ),
    (
        "shards-divide-the-batch",
        Case(
            {**PREPACK, "sft_tq_shards": 5},
            "--sft-tq-shards 5: does not divide --global-batch-size 32.",
            {**PREPACK, "sft_tq_shards": 4},
        ),
    ),
    (
        "shards-divide-the-batch",
        Case(
            # 32 samples over 16 replicas are 2 each
            {**PREPACK, "sft_tq_shards": 4, "resource": {"actor": (1, 16), "rollout": (1, 1)}},
            "--sft-tq-shards 4: does not divide the 2 samples of each of 16 data-parallel replicas.",
            {**PREPACK, "sft_tq_shards": 2, "resource": {"actor": (1, 16), "rollout": (1, 1)}},
        ),
    ),
    (
        "shards-without-processes",
        Case(
            {**SHARDS, "sft_oversize_strategy": "skip"},
            "--sft-oversize-strategy skip: leaves the 2 parts of a step to one process",
            {**SHARDS, "sft_oversize_strategy": "truncate_left"},
        ),
    ),
    (
        "shards-without-processes",
        Case(
            {**SHARDS, "task_type": "seq_cls"},
            "--task-type seq_cls: leaves the 2 parts of a step to one process",
            {**PREPACK, "task_type": "seq_cls"},
        ),
    ),
    (
        "prefetch-is-switched-on",
        Case(
            {**SFT, "sft_prefetch_buffer_size": 0, "sft_prefetch_chunk_size": 8},
            "--sft-prefetch-chunk-size 8: has no effect with --sft-prefetch-buffer-size 0.",
            {**SFT, "sft_prefetch_buffer_size": 0},
        ),
    ),
    (
        "steps-in-flight-agree",
        Case(
            {**SFT, "sft_max_in_flight_steps": 4, "max_staleness": 1},
            "--sft-max-in-flight-steps 4: is not --max-staleness 1 + 1, which says the same.",
            {**SFT, "sft_max_in_flight_steps": 4},
        ),
    ),
    (
        "oversize-needs-a-function",
        Case(
            {**SFT, "sft_oversize_strategy": "custom"},
            "--sft-oversize-strategy custom: needs --sft-oversize-custom-function-path.",
            {**SFT, "sft_oversize_strategy": "custom", "sft_oversize_custom_function_path": "a.b"},
        ),
    ),
    (
        "oversize-function-is-called",
        Case(
            {**SFT, "sft_oversize_custom_function_path": "a.b"},
            "--sft-oversize-custom-function-path a.b: is not called with --sft-oversize-strategy keep.",
            {**SFT, "sft_oversize_strategy": "custom", "sft_oversize_custom_function_path": "a.b"},
        ),
    ),
    (
        "truncation-keeps-media",
        Case(
            {**SFT, "sft_oversize_strategy": "truncate_right", "multimodal_keys": {"image": "images"}},
            "--sft-oversize-strategy truncate_right: can cut tokens of a picture",
            {**SFT, "sft_oversize_strategy": "truncate_right"},
        ),
    ),
    (
        "one-dataset-class",
        Case(
            {**SFT, "custom_dataset_class_path": "a.Rows", "custom_dataset_class": "a.Lines"},
            "--custom-dataset-class-path a.Rows: is another class than --custom-dataset-class a.Lines, which means the",
            {**SFT, "custom_dataset_class_path": "a.Rows"},
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


@pytest.mark.parametrize("name", RL_ONLY)
def test_what_only_reinforcement_learning_uses_goes_back_to_its_default(tmp_path: Path, name: str) -> None:
    default = OPTIONS[name].default
    value = True if default is False else 2
    report = report_of(tmp_path, {**SFT, name: value})
    assert get_option(report.config, name) == default
    [told] = [str(problem) for problem in report.warnings if "learns from given answers: " in str(problem)]
    assert f"--{name.replace('_', '-')}" in told


def test_one_path_alone_is_a_source_too(tmp_path: Path) -> None:
    options = {**SFT, "eval_prompt_data": ["memory://set/a.jsonl"], "eval_interval": 1, "sft_predict_interval": 1}
    assert [problem for rule in RULES for problem in problems_of(tmp_path, rule, options)] == []


def test_prepacking_is_not_hindered_by_what_is_off_anyway(tmp_path: Path) -> None:
    # routing replay would switch --per-rank-fetch off, and is itself switched off
    report = report_of(tmp_path, {**PREPACK, "use_rollout_routing_replay": True})
    assert report.config.cluster.per_rank_fetch
    assert not report.config.algorithm.use_rollout_routing_replay
    told = [str(problem) for problem in report.problems]
    assert not [text for text in told if text.startswith(("--per-rank-fetch: is off", "--sft-async-prepack: needs"))]
