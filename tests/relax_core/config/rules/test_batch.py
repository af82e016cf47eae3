"""Rules about batches."""

from pathlib import Path

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.rules.batch import RULES

# the small run has 8 prompts with 4 responses each
MADE_OF = "--rollout-batch-size 8 x --n-samples-per-prompt 4 = 32 samples a step"
DYNAMIC = {"use_dynamic_batch_size": True}
SHORT = {"rollout_max_context_len": 128}

CASES: list[tuple[str, Case]] = [
    (
        "steps-have-samples",
        Case(
            {"num_steps_per_rollout": 33},
            f"--num-steps-per-rollout 33: is more than there are samples: {MADE_OF}. It can be at most 32.",
            {"num_steps_per_rollout": 32},
        ),
    ),
    (
        "steps-divide-samples",
        Case(
            {"num_steps_per_rollout": 3},
            f"--num-steps-per-rollout 3: does not divide {MADE_OF}.",
            {"num_steps_per_rollout": 4},
        ),
    ),
    (
        "batches-divide-samples",
        Case(
            {"global_batch_size": 12},
            f"--global-batch-size 12: does not divide {MADE_OF}.",
            {"global_batch_size": 12, "loss_type": "sft"},  # takes 12 rows a step, whatever a rollout would have
        ),
    ),
    (
        "batches-divide-samples",
        Case({"global_batch_size": 64}, "--global-batch-size 64: does not divide", {"global_batch_size": 8}),
    ),
    (
        "batches-and-steps-agree",
        Case(
            {"global_batch_size": 16, "num_steps_per_rollout": 4},
            f"--global-batch-size 16: does not agree with --num-steps-per-rollout 4: {MADE_OF}, which is 2 steps."
            " Give one of the two.",
            {"global_batch_size": 16, "num_steps_per_rollout": 2},
        ),
    ),
    (
        "batches-split-over-replicas",
        Case(
            {"resource": {"actor": (1, 3), "rollout": (1, 1)}},
            "--global-batch-size 32: cannot be shared out evenly over 3 data-parallel replicas."
            " Make it a multiple of 3.",
            {"resource": {"actor": (1, 4), "rollout": (1, 1)}},
        ),
    ),
    (
        "batches-split-over-replicas",
        Case(
            {"resource": {"actor": (1, 6), "rollout": (1, 1)}},
            "cannot be shared out evenly over 6 data-parallel replicas.",
            # 3 ranks for a sequence leave 2 replicas
            {"resource": {"actor": (1, 6), "rollout": (1, 1)}, "context_parallel_size": 3},
        ),
    ),
    (
        "padding-has-a-size",
        Case(
            {"qkv_format": "bshd"},
            "--qkv-format bshd: needs --micro-batch-size, the samples of a padded micro-batch.",
            {"qkv_format": "bshd", "micro_batch_size": 1},
        ),
    ),
    (
        "padding-excludes-packing",
        Case(
            {"qkv_format": "bshd", "max_tokens_per_gpu": 4096, **DYNAMIC},
            "--qkv-format bshd: excludes --use-dynamic-batch-size, which packs without padding.",
            {"qkv_format": "thd", "max_tokens_per_gpu": 4096, **DYNAMIC},
        ),
    ),
    (
        "padding-excludes-packing",
        Case(  # to leave it out would not help
            {"qkv_format": "bshd", "micro_batch_size": 1, "max_tokens_per_gpu": 4096, "loss_type": "sft"},
            "--qkv-format bshd: excludes --use-dynamic-batch-size, which --loss-type sft always has."
            " Use --qkv-format thd.",
            {"max_tokens_per_gpu": 4096, "loss_type": "sft"},
        ),
    ),
    (
        "packing-has-a-budget",
        Case(
            DYNAMIC,
            "--use-dynamic-batch-size: needs --max-tokens-per-gpu, the tokens of a micro-batch.",
            {"max_tokens_per_gpu": 4096, **DYNAMIC},
        ),
    ),
    (
        "budgets-are-used",
        Case(
            {"max_tokens_per_gpu": 512},
            "--max-tokens-per-gpu 512: has no effect without --use-dynamic-batch-size. Add it, or leave this out.",
            {"max_tokens_per_gpu": 512, **DYNAMIC},
        ),
    ),
    (
        "budgets-are-used",
        Case(
            {"log_probs_max_tokens_per_gpu": 512},
            "--log-probs-max-tokens-per-gpu 512: has no effect without --use-dynamic-batch-size.",
            {},
        ),
    ),
    (
        "budgets-hold-the-longest-sample",
        Case(
            {"max_tokens_per_gpu": 100, **DYNAMIC, **SHORT},
            "--max-tokens-per-gpu 100: is less than the 128 tokens that a prompt and its response may have."
            " Make it 128 or more, or shorten the samples.",
            {"max_tokens_per_gpu": 128, **DYNAMIC, **SHORT},
        ),
    ),
    (
        "budgets-hold-the-longest-sample",
        Case(  # 2 ranks hold 2 x 50 tokens of a sample
            {"max_tokens_per_gpu": 50, "context_parallel_size": 2, **DYNAMIC, **SHORT},
            "--max-tokens-per-gpu 50: times --context-parallel-size 2 is less than the 128 tokens that a prompt and"
            " its response may have. Make it 64 or more",
            {"max_tokens_per_gpu": 64, "context_parallel_size": 2, **DYNAMIC, **SHORT},
        ),
    ),
    (
        "budgets-hold-the-longest-sample",
        Case(
            {"max_tokens_per_gpu": 128, "log_probs_max_tokens_per_gpu": 100, **DYNAMIC, **SHORT},
            "--log-probs-max-tokens-per-gpu 100: is less than the 128 tokens",
            # the context is the model's: longer samples go alone
            {"max_tokens_per_gpu": 128, **DYNAMIC},
        ),
    ),
    (
        "long-samples-go-alone",
        Case(  # a budget of about the response's tokens is what people give
            {"max_tokens_per_gpu": 64, "rollout_max_response_len": 64, "rollout_max_prompt_len": 16, **DYNAMIC},
            "--max-tokens-per-gpu 64: is less than the 80 tokens that a prompt and its response may have: a longer"
            " sample gets a micro-batch of its own",
            {"max_tokens_per_gpu": 80, "rollout_max_response_len": 64, "rollout_max_prompt_len": 16, **DYNAMIC},
        ),
    ),
    (
        "long-samples-go-alone",
        Case(
            {"max_tokens_per_gpu": 64, "rollout_max_response_len": 64, "rollout_max_prompt_len": 16, **DYNAMIC},
            "--max-tokens-per-gpu 64: is less than the 80 tokens",
            {"max_tokens_per_gpu": 100, **DYNAMIC, **SHORT},  # an error of another rule
        ),
    ),
    (
        "packing-of-a-stream-balances",
        Case(
            {"balance_data": True, "fully_async": True, "max_tokens_per_gpu": 4096, **DYNAMIC},
            "--balance-data: adds nothing: --fully-async with --use-dynamic-batch-size balances tokens by itself.",
            {"balance_data": True, "max_tokens_per_gpu": 4096, **DYNAMIC},
        ),
    ),
    (
        "packing-replaces-the-micro-batch-size",
        Case(
            {"micro_batch_size": 4, "max_tokens_per_gpu": 4096, **DYNAMIC},
            "--micro-batch-size 4: has no effect beside --use-dynamic-batch-size, which decides by tokens.",
            {"micro_batch_size": 4},
        ),
    ),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_rules(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)
