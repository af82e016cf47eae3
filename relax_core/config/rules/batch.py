"""Rules about batches: samples to optimiser steps to micro-batches.

Guarantee: every sample of a rollout step is in exactly one optimiser step, each rank gets as many as the others, and a
micro-batch can hold the longest sample.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import is_rl
from relax_core.config.values import SIZE_READS, Values

_MADE_OF = (
    "--rollout-batch-size {rollout_batch_size} x --n-samples-per-prompt {n_samples_per_prompt}"
    " = {samples} samples a step"
)
_SIZES = ("global_batch_size", "num_steps_per_rollout", "loss_type", *SIZE_READS["samples"])
_REPLICAS = (*SIZE_READS["replicas"], "context_parallel_size")
_BUDGETS = ("max_tokens_per_gpu", "log_probs_max_tokens_per_gpu")


def _is_rollout(v: Values) -> bool:
    """Whether the samples of a step are those of a rollout: supervised training takes a global batch a step."""
    return v.samples > 0 and is_rl(v)


def _wrong_division(v: Values) -> str:
    """The option at fault when the samples do not divide into batches; empty when they do."""
    size, steps = v.global_batch_size, v.num_steps_per_rollout
    if not _is_rollout(v) or size is None or v.samples % size == 0:
        return ""
    return "num_steps_per_rollout" if steps is not None and v.samples // steps == size else "global_batch_size"


def _other_steps(v: Values) -> list[dict[str, Any]]:
    size, steps = v.global_batch_size, v.num_steps_per_rollout
    if not _is_rollout(v) or size is None or steps is None or v.samples % size or v.samples // size == steps:
        return []
    return [{"batches": v.samples // size}]


def _uneven(v: Values) -> list[dict[str, Any]]:
    replicas = v.world // (v.model_parallel * v.context_parallel_size)
    size = v.global_batch_size
    return [{"replicas": replicas}] if size is not None and replicas > 0 and size % replicas else []


def _own_budgets(v: Values) -> Iterator[str]:
    """The budgets that are no copies of another."""
    if v.max_tokens_per_gpu is not None:
        yield "max_tokens_per_gpu"
    if v.log_probs_max_tokens_per_gpu not in (None, v.max_tokens_per_gpu):
        yield "log_probs_max_tokens_per_gpu"


def _is_bounded(v: Values, length: int | None) -> bool:
    """Whether a length is less than the model's, which says nothing about the samples of a run."""
    return length is not None and v.model is not None and length < v.model.max_positions


def _small_budgets(v: Values, *, in_context: bool) -> Iterator[dict[str, Any]]:
    """The budgets below the longest sample, where an option bounds the context, or else where prompt and response
    alone are bounded: such a sample gets a micro-batch of its own."""
    longest, context = v.longest_sample, v.context_parallel_size
    by_context = _is_bounded(v, v.rollout_max_context_len)
    if not v.use_dynamic_batch_size or not _is_bounded(v, longest) or by_context != in_context:
        return
    for name in _own_budgets(v):
        if v[name] * context < longest:
            times = f"times --context-parallel-size {context} " if context > 1 else ""
            yield {"option": name, "longest": longest, "times": times, "least": math.ceil(longest / context)}


def _padded_packs(v: Values) -> list[dict[str, Any]]:
    if v.qkv_format != "bshd" or not v.use_dynamic_batch_size:
        return []
    if is_rl(v):
        instead = "Use --qkv-format thd, or leave --use-dynamic-batch-size out."
        return [{"packs": "packs without padding", "instead": instead}]
    return [{"packs": "--loss-type sft always has", "instead": "Use --qkv-format thd."}]


RULES: tuple[Rule, ...] = (
    Rule(
        name="steps-have-samples",
        option="num_steps_per_rollout",
        reads=_SIZES,
        broken=lambda v: _is_rollout(v) and v.global_batch_size is None,
        message=f"is more than there are samples: {_MADE_OF}.",
        fix="It can be at most {samples}.",
    ),
    Rule(
        name="steps-divide-samples",
        option="num_steps_per_rollout",
        reads=_SIZES,
        broken=lambda v: _wrong_division(v) == "num_steps_per_rollout",
        message=f"does not divide {_MADE_OF}.",
    ),
    Rule(
        name="batches-divide-samples",
        option="global_batch_size",
        reads=_SIZES,
        broken=lambda v: _wrong_division(v) == "global_batch_size",
        message=f"does not divide {_MADE_OF}.",
    ),
    Rule(
        name="batches-and-steps-agree",
        option="global_batch_size",
        reads=_SIZES,
        each=_other_steps,
        message=f"does not agree with --num-steps-per-rollout {{num_steps_per_rollout}}: {_MADE_OF},"
        " which is {batches} steps.",
        fix="Give one of the two.",
    ),
    Rule(
        name="batches-split-over-replicas",
        option="global_batch_size",
        reads=("global_batch_size", *_REPLICAS),
        each=_uneven,
        message="cannot be shared out evenly over {replicas} data-parallel replicas.",
        fix="Make it a multiple of {replicas}.",
    ),
    Rule(
        name="padding-has-a-size",
        option="qkv_format",
        reads=("qkv_format", "micro_batch_size"),
        broken=lambda v: v.qkv_format == "bshd" and not v.is_given("micro_batch_size"),
        message="needs --micro-batch-size, the samples of a padded micro-batch.",
    ),
    Rule(
        name="padding-excludes-packing",
        option="qkv_format",
        reads=("qkv_format", "use_dynamic_batch_size", "loss_type"),
        each=_padded_packs,
        message="excludes --use-dynamic-batch-size, which {packs}.",
        fix="{instead}",
    ),
    Rule(
        name="packing-has-a-budget",
        option="use_dynamic_batch_size",
        reads=("use_dynamic_batch_size", "max_tokens_per_gpu"),
        broken=lambda v: v.use_dynamic_batch_size and v.max_tokens_per_gpu is None,
        message="needs --max-tokens-per-gpu, the tokens of a micro-batch.",
        shows=False,
    ),
    Rule(
        name="budgets-are-used",
        option="max_tokens_per_gpu",
        reads=("use_dynamic_batch_size", *_BUDGETS),
        each=lambda v: [{"option": name} for name in _own_budgets(v) if not v.use_dynamic_batch_size],
        message="has no effect without --use-dynamic-batch-size.",
        fix="Add it, or leave this out.",
    ),
    Rule(
        name="budgets-hold-the-longest-sample",
        option="max_tokens_per_gpu",
        reads=("use_dynamic_batch_size", "context_parallel_size", *_BUDGETS, *SIZE_READS["longest_sample"]),
        each=partial(_small_budgets, in_context=True),
        message="{times}is less than the {longest} tokens that a prompt and its response may have.",
        fix="Make it {least} or more, or shorten the samples.",
        needs_model=True,
    ),
    Rule(
        name="long-samples-go-alone",
        option="max_tokens_per_gpu",
        reads=("use_dynamic_batch_size", "context_parallel_size", *_BUDGETS, *SIZE_READS["longest_sample"]),
        each=partial(_small_budgets, in_context=False),
        message="{times}is less than the {longest} tokens that a prompt and its response may have: a longer sample gets"
        " a micro-batch of its own, which takes more memory than this allows.",
        fix="Make it {least}, or shorten the samples.",
        severity="warning",
        needs_model=True,
    ),
    Rule(
        name="packing-of-a-stream-balances",
        option="balance_data",
        reads=("balance_data", "fully_async", "use_dynamic_batch_size"),
        broken=lambda v: v.balance_data and v.fully_async and v.use_dynamic_batch_size,
        message="adds nothing: --fully-async with --use-dynamic-batch-size balances tokens by itself.",
        severity="warning",
    ),
    Rule(
        name="packing-replaces-the-micro-batch-size",
        option="micro_batch_size",
        reads=("micro_batch_size", "use_dynamic_batch_size"),
        broken=lambda v: v.use_dynamic_batch_size and v.micro_batch_size != 1,
        message="has no effect beside --use-dynamic-batch-size, which decides by tokens.",
        severity="warning",
    ),
)
