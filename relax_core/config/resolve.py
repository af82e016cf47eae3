"""Derived values: what an option is when nobody gave it.

Guarantee: ``resolve`` is idempotent, touches no option that was given but for the spellings named at ``_given_forms``,
and never fails: what makes no sense is left as it is for the rules to report. Of files it reads --eval-config only.
"""

from typing import Any

from relax_core.config.derived import samples_per_step
from relax_core.config.eval_sets import LONE_EVAL_SET, complete_sets, read_eval_config, sets_from_pairs
from relax_core.config.options import get_option, option_values, with_options
from relax_core.config.sections import RelaxConfig
from relax_core.training.shape import ModelShape

FOLLOWS: dict[str, str] = {
    "load": "ref_load",
    "eps_clip_high": "eps_clip",
    "log_probs_max_tokens_per_gpu": "max_tokens_per_gpu",
    "over_sampling_batch_size": "rollout_batch_size",
    "critic_load": "load",
    "critic_lr": "lr",
    "eval_input_key": "input_key",
    "eval_label_key": "label_key",
    "eval_tool_key": "tool_key",
    "eval_reward_key": "reward_key",
    "eval_function_path": "rollout_function_path",
    "eval_temperature": "rollout_temperature",
    "eval_top_p": "rollout_top_p",
    "eval_top_k": "rollout_top_k",
    "eval_max_response_len": "rollout_max_response_len",
    "eval_max_prompt_len": "rollout_max_prompt_len",
    "eval_max_context_len": "rollout_max_context_len",
}
"""Option -> the option whose value it takes when it has none of its own."""


_DTYPES = {(True, False): "bfloat16", (False, True): "float16"}
"""--bf16 and --fp16 -> what SGLang calls the format."""

SHARED_OFFLOAD = ("offload_train", "offload_rollout")
"""Options that are on where trainer and engines share devices, unless they are given."""


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
    config = _fill(config, _start(config))  # before what follows it: the critic's start
    others: dict[str, Any] = {name: get_option(config, source) for name, source in FOLLOWS.items()}
    others["sglang_dtype"] = _DTYPES.get((config.backend.bf16, config.backend.fp16), "float32")
    both = config.cluster.colocate or config.cluster.offload
    others |= dict.fromkeys(SHARED_OFFLOAD, both)
    config = _fill(config, {name: value for name, value in others.items() if get_option(config, name) is None})
    return _fill(config, _eval_sets(config))


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


def _start(config: RelaxConfig) -> dict[str, Any]:
    """Without --load the actor starts where the reference does."""
    options = config.checkpoint
    if options.load is not None or options.ref_load is None:
        return {}
    step = options.ref_ckpt_step
    place = options.ref_load
    # the name that relax_core.training.checkpoint_index gives the folder of a step
    return {"load": place if step is None else f"{place.rstrip('/')}/iter_{step:07d}"}


def _eval_sets(config: RelaxConfig) -> dict[str, Any]:
    """The evaluation sets in full; a file that cannot be read gives none, and is reported by the check of the files."""
    options = config.eval
    sets = options.eval_datasets
    if sets is None and options.eval_config:
        sets = read_eval_config(options.eval_config)[0]
    elif sets is None and options.eval_prompt_data and len(options.eval_prompt_data) % 2 == 0:
        sets = sets_from_pairs(options.eval_prompt_data)
    return {"eval_datasets": complete_sets(sets, option_values(config))} if sets else {}
