"""Rules between the options and the shape of the model."""

from pathlib import Path
from typing import Any

import pytest
from configs import model_folder
from rule_cases import Case, check_case, check_names, report_of

from relax_core.config.options import OPTIONS, find_option
from relax_core.config.rules.model import RULES, SHAPE, SHAPE_OPTIONS

# the model: Qwen3 with 4 layers, hidden 64, 4 heads of 16 in 2 groups, feed-forward 128, 512 entries, 2048 positions
RIGHT: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "group_query_attention": True,
    "kv_channels": 16,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "untie_embeddings_and_output_weights": True,
    "position_embedding_type": "rope",
    "use_rotary_position_embeddings": True,
    "no_position_embedding": True,
    "rotary_base": 10000.0,
    "rotary_percent": 1.0,
    "use_rope_scaling": False,
    "normalization": "RMSNorm",
    "layernorm_epsilon": 1e-6,
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "qk_layernorm": True,
    "gated_linear_unit": True,
    "softmax_scale": 0.25,
}
AGREES = "is not what the model's config.json says"
LACKS = "describes something that the model does not have (config.json)."
FIX = "Leave it out: config.json decides."


def _shape(option: str, value: Any, text: str, **kept: Any) -> tuple[str, Case]:
    return "shape-is-the-model's", Case({option: value}, text, kept)


CASES: list[tuple[str, Case]] = [
    (
        "model-knows-the-positions",
        Case(
            {"rollout_max_context_len": 4096},
            "--rollout-max-context-len 4096: is more than the model's 2048 positions (config.json).",
            {"rollout_max_context_len": 2048},
        ),
    ),
    (
        "model-knows-the-positions",
        Case(
            {"sglang_context_length": 4096},
            "--sglang-context-length 4096: is more than the model's 2048 positions (config.json).",
            {"sglang_context_length": 2048},
        ),
    ),
    (
        "model-knows-the-positions",
        Case(
            {"rollout_max_context_len": 128, "eval_max_context_len": 4096},
            "--eval-max-context-len 4096: is more than the model's 2048 positions (config.json).",
            {"rollout_max_context_len": 128, "eval_max_context_len": 2048},
        ),
    ),
    *(
        (
            "tensor-parallel-divides-the-model",
            Case(
                {"tensor_model_parallel_size": 3},
                f"--tensor-model-parallel-size 3: does not divide the model's {what}.",
                {"tensor_model_parallel_size": 2},
            ),
        )
        for what in ("4 attention heads", "2 key-value heads", "512 vocabulary entries", "128 feed-forward columns")
    ),
    (
        "pipeline-divides-the-layers",
        Case(
            {"pipeline_model_parallel_size": 3},
            "--pipeline-model-parallel-size 3: does not divide the model's 4 layers.",
            {"pipeline_model_parallel_size": 4},
        ),
    ),
    (
        "recomputed-layers-are-there",
        Case(
            {"recompute_num_layers": 3, "pipeline_model_parallel_size": 2},
            "--recompute-num-layers 3: is more than the 2 layers of a pipeline stage.",
            {"recompute_num_layers": 2, "pipeline_model_parallel_size": 2},
        ),
    ),
    (
        "engines-divide-the-heads",
        Case(
            {"rollout_num_gpus_per_engine": 3},
            "--rollout-num-gpus-per-engine 3: does not divide the model's 4 attention heads.",
            {"rollout_num_gpus_per_engine": 4},
        ),
    ),
    (
        "stop-tokens-exist",
        Case(
            {"rollout_stop_token_ids": [1, 512]},
            "--rollout-stop-token-ids 512: is outside the model's vocabulary of 512 entries.",
            {"rollout_stop_token_ids": [511]},
        ),
    ),
    _shape("num_layers", 5, f"--num-layers 5: {AGREES}: 4. {FIX}", **RIGHT),
    _shape("hidden_size", 65, f"--hidden-size 65: {AGREES}: 64."),
    _shape("normalization", "LayerNorm", f"--normalization LayerNorm: {AGREES}: RMSNorm."),
    _shape("layernorm_epsilon", 1e-5, f"--norm-epsilon 1e-05: {AGREES}: 1e-06."),
    _shape("rotary_base", 500000.0, f"--rotary-base 500000.0: {AGREES}: 10000.0."),
    _shape("add_bias_linear", True, f"--add-bias-linear: {AGREES}."),
    _shape("qk_layernorm", False, f"--qk-layernorm false: {AGREES}."),
    _shape("untie_embeddings_and_output_weights", False, f"--untie-embeddings-and-output-weights false: {AGREES}."),
    _shape("group_query_attention", False, f"--group-query-attention false: {AGREES}."),
    _shape("use_rope_scaling", True, f"--use-rope-scaling: {AGREES}."),
    _shape("rope_scaling_factor", 8.0, f"--rope-scaling-factor 8.0: {LACKS}"),
    _shape("num_moe_experts", 8, f"--num-experts 8: {LACKS} {FIX}"),
    _shape("multi_latent_attention", True, f"--multi-latent-attention: {LACKS}", multi_latent_attention=False),
    _shape("moe_router_topk", 8, f"--moe-router-topk 8: {LACKS}", moe_router_topk=2),  # 2 is Megatron's default
    _shape("mtp_num_layers", 1, f"--mtp-num-layers 1: {LACKS}", mtp_num_layers=0),
    # 512 in multiples of 100: 600
    _shape("vocab_size", 600, f"--vocab-size 600: {AGREES}: 512.", vocab_size=600, make_vocab_size_divisible_by=100),
    # 500 in multiples of 64 x 2 ranks: 512
    _shape(
        "vocab_size",
        500,
        f"--vocab-size 500: {AGREES}: 512.",
        vocab_size=500,
        make_vocab_size_divisible_by=64,
        tensor_model_parallel_size=2,
    ),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_rules(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_every_part_of_the_shape_is_compared(tmp_path: Path, name: str) -> None:
    right = RIGHT[name]
    wrong = (not right) if isinstance(right, bool) else right + 1 if isinstance(right, int | float) else "none"
    told = [str(problem) for problem in report_of(tmp_path, {name: wrong}).errors]
    option = find_option(name)
    assert option is not None
    assert any(f"{option.flag}" in problem and AGREES in problem for problem in told), told


def test_every_declared_flag_of_the_shape_has_a_counterpart() -> None:
    assert set(SHAPE) <= set(SHAPE_OPTIONS)
    assert {name for name in SHAPE_OPTIONS if name in OPTIONS} <= set(SHAPE)


def test_scaled_rotary_positions_are_compared(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    folder = model_folder(tmp_path / "scaled", model_type="llama", rope_scaling=scaling)
    right = {
        "hf_checkpoint": str(folder),
        "use_rope_scaling": True,
        "rope_scaling_factor": 8.0,
        "original_max_position_embeddings": 1024,
    }

    def told(**options: Any) -> list[str]:
        return [str(problem) for problem in report_of(tmp_path, right | options).problems if AGREES in str(problem)]

    assert told() == []
    assert told(rope_scaling_factor=4.0) == [f"--rope-scaling-factor 4.0: {AGREES}: 8.0. {FIX}"]
    assert told(use_rope_scaling=False) == [f"--use-rope-scaling false: {AGREES}. {FIX}"]


def test_heads_of_their_own_are_groups_of_one(tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "ungrouped", num_key_value_heads=4))
    for grouped in (True, False):
        options = {"hf_checkpoint": folder, "group_query_attention": grouped}
        assert not [one for one in report_of(tmp_path, options).problems if AGREES in str(one)]


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        # SmolLM2-135M: 9 heads, 3 of them key-value heads, 30 layers
        (
            {"num_attention_heads": 9, "num_key_value_heads": 3},
            {"tensor_model_parallel_size": 2},
            "the model's 9 attention heads",
        ),
        ({"num_hidden_layers": 3}, {"pipeline_model_parallel_size": 2}, "the model's 3 layers"),
    ],
)
def test_the_model_itself_is_looked_at(
    tmp_path: Path, model: dict[str, int], options: dict[str, int], text: str
) -> None:
    folder = str(model_folder(tmp_path / "other", **model))
    problems = report_of(tmp_path, {"hf_checkpoint": folder, **options}).errors
    assert any(text in str(problem) for problem in problems)
