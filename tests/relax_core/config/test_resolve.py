from typing import Any

import pytest
from configs import configs, thorough
from hypothesis import given

from relax_core.config import derived
from relax_core.config.options import get_option, option_values, with_options
from relax_core.config.resolve import resolve
from relax_core.config.sections import RelaxConfig
from relax_core.training.shape import ModelShape

MODEL = ModelShape(
    family="qwen3",
    layers=4,
    hidden=64,
    ffn=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=512,
    tie=False,
    rope_theta=10000.0,
    rope_scaling=None,
    norm_eps=1e-6,
    qkv_bias=False,
    qk_norm=True,
    max_positions=2048,
)


def resolved(model: ModelShape | None = None, **options: Any) -> RelaxConfig:
    return resolve(with_options(RelaxConfig(), options), model)


@thorough
@given(configs)
def test_resolving_twice_is_resolving_once(config: RelaxConfig) -> None:
    for model in (None, MODEL):
        once = resolve(config, model)
        assert resolve(once, model) == once


@thorough
@given(configs)
def test_the_given_configuration_is_left_alone(config: RelaxConfig) -> None:
    before = config.model_dump()
    resolve(config, MODEL)
    assert config.model_dump() == before


@thorough
@given(configs)
def test_only_unset_options_are_filled(config: RelaxConfig) -> None:
    after = option_values(resolve(config, MODEL))
    for name, value in option_values(config).items():
        if name not in ("eval_prompt_data", "eval_datasets", "disable_grpo_std_normalization") and value is not None:
            assert after[name] == value


@pytest.mark.parametrize(
    ("given_options", "derived_options"),
    [
        ({"eps_clip": 0.3}, {"eps_clip_high": 0.3}),
        ({"eps_clip": 0.3, "eps_clip_high": 0.28}, {"eps_clip_high": 0.28}),
        ({"rollout_temperature": 0.7}, {"eval_temperature": 0.7}),
        ({"rollout_temperature": 0.7, "eval_temperature": 0.0}, {"eval_temperature": 0.0}),
        ({"rollout_top_p": 0.9, "rollout_top_k": 5}, {"eval_top_p": 0.9, "eval_top_k": 5}),
        ({"rollout_max_response_len": 64}, {"eval_max_response_len": 64}),
        ({"input_key": "q", "label_key": "a"}, {"eval_input_key": "q", "eval_label_key": "a"}),
        # 8 prompts x 4 = 32 samples a step
        ({"rollout_batch_size": 8, "n_samples_per_prompt": 4}, {"global_batch_size": 32, "num_steps_per_rollout": 1}),
        (
            {"rollout_batch_size": 8, "n_samples_per_prompt": 4, "num_steps_per_rollout": 2},
            {"global_batch_size": 16},
        ),
        (
            {"rollout_batch_size": 8, "n_samples_per_prompt": 4, "global_batch_size": 8},
            {"num_steps_per_rollout": 4},
        ),
        # gbs = rbs * n // steps: 10 // 3
        ({"rollout_batch_size": 10, "num_steps_per_rollout": 3}, {"global_batch_size": 3}),
        ({"rollout_max_context_len": 100, "rollout_max_response_len": 64}, {"rollout_max_prompt_len": 99}),
        ({"rollout_max_context_len": 100}, {"rollout_max_response_len": 99, "eval_max_response_len": 99}),
        ({"max_tokens_per_gpu": 512}, {"log_probs_max_tokens_per_gpu": 512}),
        ({"max_tokens_per_gpu": 512, "log_probs_max_tokens_per_gpu": 900}, {"log_probs_max_tokens_per_gpu": 900}),
        ({}, {"disable_grpo_std_normalization": True, "sglang_dtype": "float32"}),  # one sample a prompt
        ({"n_samples_per_prompt": 2}, {"disable_grpo_std_normalization": False}),
        ({"bf16": True}, {"sglang_dtype": "bfloat16"}),
        ({"bf16": True, "sglang_dtype": "float32"}, {"sglang_dtype": "float32"}),
        ({"eval_prompt_data": ["x.jsonl"]}, {"eval_prompt_data": ["aime", "x.jsonl"]}),
        ({"eval_prompt_data": ["a", "x", "b"]}, {"eval_prompt_data": ["a", "x", "b"]}),
        ({}, {"run_dir": None, "rollout_max_context_len": None, "global_batch_size": None}),
    ],
)
def test_derived_values(given_options: dict[str, Any], derived_options: dict[str, Any]) -> None:
    config = resolved(**given_options)
    assert {name: get_option(config, name) for name in derived_options} == derived_options


def test_the_model_bounds_the_context_where_no_option_does() -> None:
    config = resolved(MODEL, rollout_max_response_len=64)
    assert config.rollout.rollout_max_context_len == 2048
    assert config.rollout.rollout_max_prompt_len == 2047
    assert (
        resolved(MODEL, rollout_max_response_len=64, rollout_max_context_len=500).rollout.rollout_max_prompt_len == 499
    )


def test_the_engines_context_bounds_it_too() -> None:
    config = resolved(MODEL, rollout_max_response_len=64, sglang_context_length=512)
    assert config.rollout.rollout_max_context_len == 512


def test_the_models_context_alone_bounds_no_response() -> None:
    assert resolved(MODEL).rollout.rollout_max_response_len is None


def test_what_was_set_is_still_known_after_resolving() -> None:
    # a rule asks whether the weight of the KL was given
    assert "kl_loss_coef" not in resolved(use_kl_loss=True).algorithm.model_fields_set
    assert "kl_loss_coef" in resolved(use_kl_loss=True, kl_loss_coef=0.0).algorithm.model_fields_set


def test_sizes_of_the_parts() -> None:
    config = resolved(
        resource={"actor": (1, 8), "rollout": (1, 6)},
        rollout_num_gpus_per_engine=2,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        rollout_batch_size=8,
        n_samples_per_prompt=4,
        rollout_max_context_len=100,
        rollout_max_prompt_len=20,
        rollout_max_response_len=64,
    )
    assert derived.trainer_world_size(config) == 8
    assert derived.data_parallel_size(config) == 2
    assert derived.num_engines(config) == 3
    assert derived.samples_per_step(config) == 32
    assert derived.longest_sample(config) == 84
