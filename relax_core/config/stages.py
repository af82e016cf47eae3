"""Which options change the output of which stage.

Guarantee: a stage's options are exactly those that change what it writes, so that its hash changes when and only when
its output would; every option is in a stage or in ``NO_OUTPUT`` (a test sees to it). Two outputs are the same here when
they differ only in the rounding of sums: how samples are spread over devices and micro-batches is therefore no
part of them. What a stage reads from the stage before it enters its key as a reference, not through options.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from relax_core.config.options import get_option
from relax_core.config.sections import RelaxConfig

Stage = Literal["generate", "reward", "advantage", "train", "evaluate"]

_MODEL = ("hf_checkpoint", "load")
_ENGINE = ("sglang_dtype", "sglang_context_length", "sglang_enable_deterministic_inference")
_TEMPLATE = ("metadata_key", "tool_key", "apply_chat_template", "apply_chat_template_kwargs", "system_prompt")
_LIMITS = ("rollout_seed", "rollout_max_prompt_len", "rollout_max_context_len")
_STOP = ("rollout_stop", "rollout_stop_token_ids", "rollout_skip_special_tokens")
_REWARD = ("rm_type", "custom_rm_path", "reward_key")

STAGES: dict[Stage, tuple[str, ...]] = {
    "generate": (
        *_MODEL,
        *_ENGINE,
        *_TEMPLATE,
        *_LIMITS,
        *_STOP,
        "prompt_data",
        "input_key",
        "label_key",
        "rollout_shuffle",
        "rollout_batch_size",
        "n_samples_per_prompt",
        "rollout_temperature",
        "rollout_top_p",
        "rollout_top_k",
        "rollout_max_response_len",
    ),
    "reward": _REWARD,
    "advantage": ("advantage_estimator", "disable_grpo_std_normalization", "disable_rewards_normalization"),
    "train": (
        *_MODEL,
        "ref_load",
        "train_backend",
        "bf16",
        "rollout_temperature",
        "num_rollout",
        "num_epoch",
        "global_batch_size",
        "num_steps_per_rollout",
        "lr",
        "min_lr",
        "lr_decay_style",
        "lr_warmup_iters",
        "optimizer",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_eps",
        "clip_grad",
        "seed",
        "calculate_per_token_loss",
        "eps_clip",
        "eps_clip_high",
        "eps_clip_c",
        "entropy_coef",
        "use_kl_loss",
        "kl_loss_coef",
        "kl_loss_type",
        "use_unbiased_kl",
        "use_rollout_logprobs",
    ),
    "evaluate": (
        *_MODEL,
        *_ENGINE,
        *_TEMPLATE,
        *_LIMITS,
        *_STOP,
        *_REWARD,
        "eval_prompt_data",
        "eval_input_key",
        "eval_label_key",
        "n_samples_per_eval_prompt",
        "eval_temperature",
        "eval_top_p",
        "eval_top_k",
        "eval_max_response_len",
    ),
}
"""Stage -> the options that change its output."""

NO_OUTPUT: tuple[str, ...] = (
    # where and how long
    "run_dir",
    "ray_address",
    "engine_start_timeout",
    "debug",
    "resource",
    "rollout_num_gpus_per_engine",
    "num_gpus_per_node",
    "distributed_backend",
    "distributed_timeout_minutes",
    # what is kept beside the output
    "save",
    "save_interval",
    "save_hf",
    "no_save_optim",
    "eval_interval",
    "skip_eval_before_train",
    # how the same numbers are computed
    "qkv_format",
    "update_weight_buffer_size",
    "check_weight_update_equal",
    "sglang_mem_fraction_static",
    "sglang_server_concurrency",
    "sglang_max_running_requests",
    "sglang_max_total_tokens",
    "sglang_attention_backend",
    "sglang_disable_radix_cache",
    "sglang_log_level",
    "micro_batch_size",
    "balance_data",
    "use_dynamic_batch_size",
    "max_tokens_per_gpu",
    "log_probs_max_tokens_per_gpu",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "sequence_parallel",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "log_probs_chunk_size",
    "use_distributed_optimizer",
)
"""Options that change no stage's output."""


def _decays(config: RelaxConfig) -> bool:
    return config.optimizer.lr_decay_style != "constant"


def _has_reference(config: RelaxConfig) -> bool:
    return config.algorithm.use_kl_loss


MATTERS_WHEN: dict[str, Callable[[RelaxConfig], bool]] = {
    # the length of the run stretches the schedule of the learning rate, if there is one
    "num_rollout": _decays,
    "num_epoch": lambda config: _decays(config) and config.rollout.num_rollout is None,
    "min_lr": _decays,
    "ref_load": _has_reference,
    "kl_loss_coef": _has_reference,
    "kl_loss_type": _has_reference,
    "use_unbiased_kl": _has_reference,
}
"""Options that change an output only under a condition."""


def stage_options(config: RelaxConfig, stage: Stage) -> dict[str, Any]:
    """The options of a resolved configuration that change the output of ``stage``, by name, as JSON values.

    With ``options_hash`` this is the options' part of a stage's key: the hash covers exactly what changes the output.
    """
    return {
        name: get_option(config, name)
        for name in sorted(STAGES[stage])
        if name not in MATTERS_WHEN or MATTERS_WHEN[name](config)
    }


def options_hash(options: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that are the same for equal options, in any order and in any process."""
    text = json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
