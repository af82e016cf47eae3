"""Derived values: what an option is when nobody gave it.

Guarantee: ``resolve`` is pure and idempotent, touches no option that was given but for the two spellings named at
``_given_forms``, and never fails: what makes no sense is left as it is for ``check`` to report.
"""

from typing import Any

from relax_core.config.derived import samples_per_step
from relax_core.config.options import get_option, with_options
from relax_core.config.sections import RelaxConfig
from relax_core.training.shape import ModelShape

LONE_EVAL_SET = "aime"
"""Name of an evaluation set that is given as one path without a name."""

FOLLOWS: dict[str, str] = {
    "eps_clip_high": "eps_clip",
    "log_probs_max_tokens_per_gpu": "max_tokens_per_gpu",
    "eval_input_key": "input_key",
    "eval_label_key": "label_key",
    "eval_temperature": "rollout_temperature",
    "eval_top_p": "rollout_top_p",
    "eval_top_k": "rollout_top_k",
    "eval_max_response_len": "rollout_max_response_len",
}
"""Option -> the option whose value it takes when it has none of its own."""


def resolve(config: RelaxConfig, model: ModelShape | None = None) -> RelaxConfig:
    """A copy of ``config`` in which every derived value is filled in.

    Args:
        config: what the person gave.
        model: the shape of the model, which bounds the context where no option does.
    """
    config = _fill(config, _given_forms(config))
    # before what follows: the evaluation's response length is the rollout's, which may come from the context
    config = _fill(config, _lengths(config, model))
    config = _fill(config, _batch_sizes(config))
    others = {name: get_option(config, source) for name, source in FOLLOWS.items()}
    others["sglang_dtype"] = "bfloat16" if config.backend.bf16 else "float32"
    return _fill(config, {name: value for name, value in others.items() if get_option(config, name) is None})


def _fill(config: RelaxConfig, values: dict[str, Any]) -> RelaxConfig:
    """Set what differs; an option that keeps its value does not count as set."""
    changed = {name: value for name, value in values.items() if get_option(config, name) != value}
    return with_options(config, changed) if changed else config


def _given_forms(config: RelaxConfig) -> dict[str, Any]:
    """A lone evaluation path gets a name; in a group of one there is no standard deviation to divide by."""
    values: dict[str, Any] = {}
    if config.eval.eval_prompt_data is not None and len(config.eval.eval_prompt_data) == 1:
        values["eval_prompt_data"] = [LONE_EVAL_SET, *config.eval.eval_prompt_data]
    if config.rollout.n_samples_per_prompt == 1:
        values["disable_grpo_std_normalization"] = True
    return values


def _lengths(config: RelaxConfig, model: ModelShape | None) -> dict[str, Any]:
    context, response = config.rollout.rollout_max_context_len, config.rollout.rollout_max_response_len
    values: dict[str, Any] = {}
    if context is None and response is not None:
        # only beside a given response length: the model's limit alone bounds no response that anyone wants
        limits = [model.max_positions if model else None, config.sglang.sglang_context_length]
        context = min((limit for limit in limits if limit is not None), default=None)
        values["rollout_max_context_len"] = context
    if context is not None and context > 1:
        if response is None:
            values["rollout_max_response_len"] = context - 1
        if config.rollout.rollout_max_prompt_len is None:
            values["rollout_max_prompt_len"] = context - 1
    return values


def _batch_sizes(config: RelaxConfig) -> dict[str, Any]:
    samples, size, steps = samples_per_step(config), config.batch.global_batch_size, config.batch.num_steps_per_rollout
    if samples <= 0:
        return {}
    if size is None and (steps is None or steps > 0):
        size = samples // (steps or 1)
        return {"global_batch_size": size, "num_steps_per_rollout": steps or 1} if size else {}
    if size is not None and steps is None and 0 < size <= samples:
        return {"num_steps_per_rollout": samples // size}
    return {}
