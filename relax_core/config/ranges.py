"""The values that a number may have by itself.

Guarantee: every numeric option is in ``RANGES`` (a test sees to it), so that no negative count and no probability of 2
gets as far as a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """A condition on one value and its wording, which ends `must be ...`."""

    holds: Callable[[Any], bool]
    text: str


def at_least(low: float) -> Range:
    """``value >= low``."""
    return Range(lambda value: value >= low, f"{low} or more")


def above(low: float) -> Range:
    """``value > low``."""
    return Range(lambda value: value > low, f"above {low}")


COUNT = at_least(1)
NOT_NEGATIVE = at_least(0)
PROBABILITY = Range(lambda value: 0 < value <= 1, "above 0 and at most 1")
DECAY = Range(lambda value: 0 <= value < 1, "0 or more and below 1")
OFF_OR_COUNT = Range(lambda value: value == -1 or value >= 1, "-1 (off) or 1 and more")
TOKEN_IDS = Range(lambda ids: bool(ids) and all(token >= 0 for token in ids), "token ids, 0 or more")

RANGES: dict[str, Range] = {
    "engine_start_timeout": above(0),
    "rollout_num_gpus_per_engine": COUNT,
    "num_gpus_per_node": COUNT,
    "distributed_timeout_minutes": COUNT,
    "save_interval": COUNT,
    "rollout_seed": NOT_NEGATIVE,
    "num_rollout": COUNT,
    "num_epoch": COUNT,
    "rollout_batch_size": COUNT,
    "n_samples_per_prompt": COUNT,
    # the trainer divides its logits by it, so that 0 (greedy) is for evaluation only
    "rollout_temperature": above(0),
    "rollout_top_p": PROBABILITY,
    "rollout_top_k": OFF_OR_COUNT,
    "rollout_max_response_len": COUNT,
    "rollout_max_prompt_len": COUNT,
    "rollout_max_context_len": at_least(2),
    "rollout_stop_token_ids": TOKEN_IDS,
    "update_weight_buffer_size": COUNT,
    "sglang_mem_fraction_static": PROBABILITY,
    "sglang_server_concurrency": COUNT,
    "sglang_context_length": at_least(2),
    "sglang_max_running_requests": COUNT,
    "sglang_max_total_tokens": COUNT,
    "global_batch_size": COUNT,
    "micro_batch_size": COUNT,
    "num_steps_per_rollout": COUNT,
    "max_tokens_per_gpu": COUNT,
    "log_probs_max_tokens_per_gpu": COUNT,
    "tensor_model_parallel_size": COUNT,
    "pipeline_model_parallel_size": COUNT,
    "recompute_num_layers": COUNT,
    "log_probs_chunk_size": OFF_OR_COUNT,
    "lr": NOT_NEGATIVE,
    "min_lr": NOT_NEGATIVE,
    "lr_warmup_iters": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "adam_beta1": DECAY,
    "adam_beta2": DECAY,
    "adam_eps": above(0),
    "clip_grad": NOT_NEGATIVE,
    "seed": NOT_NEGATIVE,
    # the lower side of the clip range is 1 - eps_clip, a probability ratio
    "eps_clip": Range(lambda value: 0 <= value <= 1, "between 0 and 1"),
    "eps_clip_high": NOT_NEGATIVE,
    "eps_clip_c": above(1),
    "entropy_coef": NOT_NEGATIVE,
    "kl_loss_coef": NOT_NEGATIVE,
    "eval_interval": COUNT,
    "n_samples_per_eval_prompt": COUNT,
    "eval_temperature": NOT_NEGATIVE,
    "eval_top_p": PROBABILITY,
    "eval_top_k": OFF_OR_COUNT,
    "eval_max_response_len": COUNT,
}
