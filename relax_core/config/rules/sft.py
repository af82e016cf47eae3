"""Rules of supervised fine-tuning.

Guarantee: what only reinforcement learning uses is off in supervised fine-tuning, and said to be; what only supervised
fine-tuning uses is told elsewhere; a division of a batch that leaves a remainder is refused.
"""

from collections.abc import Iterator
from typing import Any

from relax_core.config.options import OPTIONS
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import idle, is_changed, is_rl, is_sft
from relax_core.config.values import SIZE_READS, Values

RL_ONLY = (
    "normalize_advantages",
    "use_rollout_logprobs",
    "kl_coef",
    "use_kl_loss",
    "kl_loss_coef",
    "use_unbiased_kl",
    "ref_update_interval",
    "entropy_coef",
    "num_critic_only_steps",
    "critic_train_only",
    "use_tis",
    "get_mismatch_metrics",
    "use_routing_replay",
    "use_rollout_routing_replay",
    "use_opsm",
    "use_rollout_entropy",
    "true_on_policy_mode",
    "fully_async",
    "keep_old_actor",
    "partial_rollout",
    "use_opd",
    "group_rm",
)
"""Switches and weights that supervised fine-tuning sets back to their defaults."""

SFT_ONLY = (
    "eval_size",
    "sft_predict_interval",
    "sft_prefetch_buffer_size",
    "sft_prefetch_chunk_size",
    "sft_prefetch_num_workers",
    "sft_async_prepack",
    "sft_max_in_flight_steps",
    "sft_tq_shards",
    "sft_oversize_strategy",
    "sft_oversize_custom_function_path",
    "sft_invalid_multimodal_strategy",
    "task_type",
    "custom_dataset_class",
    "custom_dataset_class_path",
)
"""Options that have an effect in supervised fine-tuning only."""

_SHARDED = ("loss_type", "sft_async_prepack", "sft_tq_shards")
_LOCAL = (
    "task_type",
    "custom_dataset_class",
    "custom_dataset_class_path",
    "sft_oversize_strategy",
    "sft_invalid_multimodal_strategy",
)
_PREPACK = (
    "per_rank_fetch",
    "max_staleness",
    "sft_max_in_flight_steps",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "qkv_format",
)


_EVAL = ("eval_size", "eval_datasets", "eval_prompt_data", "eval_config")


def _eval_source(values: Values) -> bool:
    """Whether there is anything to evaluate. Reads ``_EVAL``."""
    return bool(values.eval_size is not None or _eval_sets(values))


def _eval_sets(values: Values) -> bool:
    return bool(values.eval_datasets or values.eval_prompt_data or values.eval_config)


def _sharded(values: Values) -> bool:
    """Whether several parts of a step are prepared apart. Reads ``_SHARDED``."""
    return is_sft(values) and values.sft_async_prepack and values.sft_tq_shards > 1


def _switched_on(values: Values) -> list[dict[str, Any]]:
    if not is_sft(values):
        return []
    names = [f"--{name.replace('_', '-')}" for name in RL_ONLY if is_changed(values, name)]
    return [{"names": ", ".join(names), "are": "is" if len(names) == 1 else "are"}] if names else []


def _uneven_shards(values: Values) -> Iterator[dict[str, Any]]:
    size = values.global_batch_size
    if not _sharded(values) or size is None:
        return
    shards, replicas = values.sft_tq_shards, values.replicas
    if size % shards:
        yield {"what": f"--global-batch-size {size}"}
    elif replicas > 0 and size % replicas == 0 and (size // replicas) % shards:
        yield {"what": f"the {size // replicas} samples of each of {replicas} data-parallel replicas"}


def _why_local(values: Values) -> Iterator[dict[str, Any]]:
    if not _sharded(values):
        return
    reasons = {
        "task_type": values.task_type == "seq_cls",
        "custom_dataset_class": values.custom_dataset_class is not None,
        "custom_dataset_class_path": values.custom_dataset_class_path is not None,
        "sft_oversize_strategy": values.sft_oversize_strategy in ("skip", "custom"),
        "sft_invalid_multimodal_strategy": values.sft_invalid_multimodal_strategy == "skip",
    }
    yield from ({"option": name} for name, holds in reasons.items() if holds)


def _prepack_misses(values: Values) -> Iterator[dict[str, Any]]:
    if not is_sft(values) or not values.sft_async_prepack:
        return
    if not values.per_rank_fetch:
        yield {"needs": "--per-rank-fetch"}
    if values.max_staleness < 1 and (values.sft_max_in_flight_steps or 1) < 2:
        yield {"needs": "two steps in flight: --sft-max-in-flight-steps 2 or --max-staleness 1"}
    for name in ("pipeline_model_parallel_size", "context_parallel_size", "virtual_pipeline_model_parallel_size"):
        if (values[name] or 1) > 1:
            yield {"needs": f"--{name.replace('_', '-')} 1"}
    if values.qkv_format != "thd":
        yield {"needs": "--qkv-format thd"}


RULES: tuple[Rule, ...] = (
    Rule(
        name="sft-is-no-rl",
        option="loss_type",
        reads=("loss_type", *RL_ONLY),
        each=_switched_on,
        message="learns from given answers: {names} {are} off.",
        corrects=lambda v: {name: OPTIONS[name].default for name in RL_ONLY},
    ),
    Rule(
        name="sft-packs-by-length",
        option="loss_type",
        reads=("loss_type", "use_dynamic_batch_size", "balance_data"),
        broken=lambda v: is_sft(v) and not (v.use_dynamic_batch_size and v.balance_data),
        message="packs samples by their lengths: --use-dynamic-batch-size and --balance-data are on.",
        corrects=lambda v: {"use_dynamic_batch_size": True, "balance_data": True},
    ),
    Rule(
        name="shards-are-one-or-more",
        option="sft_tq_shards",
        reads=("sft_tq_shards",),
        broken=lambda v: v.sft_tq_shards < 1,
        message="counts as 1.",
        corrects=lambda v: {"sft_tq_shards": 1},
    ),
    idle(
        "sft-options-need-sft",
        SFT_ONLY,
        ("loss_type",),
        is_rl,
        "has no effect without --loss-type sft.",
    ),
    # Evaluation
    Rule(
        name="one-source-of-held-out-samples",
        option="eval_size",
        reads=("loss_type", *_EVAL),
        broken=lambda v: is_sft(v) and v.eval_size is not None and _eval_sets(v),
        message="cannot be used with evaluation sets of their own.",
        fix="Give --eval-size, or --eval-prompt-data or --eval-config.",
    ),
    Rule(
        name="whole-samples-are-held-out",
        option="eval_size",
        reads=("eval_size",),
        broken=lambda v: v.eval_size is not None and v.eval_size >= 1 and v.eval_size != int(v.eval_size),
        message="is no whole number of samples; below 1 it is a share.",
    ),
    Rule(
        name="sft-evaluates-something",
        option="eval_interval",
        reads=("eval_interval", "loss_type", *_EVAL),
        broken=lambda v: is_sft(v) and v.eval_interval is not None and not _eval_source(v),
        message="needs --eval-size, or --eval-prompt-data NAME PATH.",
    ),
    Rule(
        name="sft-predicts-something",
        option="sft_predict_interval",
        reads=("sft_predict_interval", "loss_type", *_EVAL),
        broken=lambda v: is_sft(v) and v.sft_predict_interval is not None and not _eval_source(v),
        message="needs --eval-size, --eval-prompt-data NAME PATH or --eval-config: what to predict for.",
    ),
    # Preparing samples
    Rule(
        name="prepack-conditions",
        option="sft_async_prepack",
        reads=("sft_async_prepack", "loss_type", *_PREPACK),
        each=_prepack_misses,
        message="needs {needs}.",
        shows=False,
    ),
    idle(
        "shards-need-prepack",
        ("sft_tq_shards",),
        ("sft_async_prepack", "loss_type"),
        lambda v: is_sft(v) and not v.sft_async_prepack and v.sft_tq_shards > 1,
        "has no effect without --sft-async-prepack: a step is one part.",
    ),
    Rule(
        name="shards-divide-the-batch",
        option="sft_tq_shards",
        reads=(*_SHARDED, "global_batch_size", *SIZE_READS["replicas"]),
        each=_uneven_shards,
        message="does not divide {what}.",
    ),
    Rule(
        name="shards-without-processes",
        option="sft_tq_shards",
        reads=(*_SHARDED, *_LOCAL),
        each=_why_local,
        message="leaves the {sft_tq_shards} parts of a step to one process: it is not divided among several.",
        severity="warning",
    ),
    idle(
        "prefetch-is-switched-on",
        ("sft_prefetch_chunk_size", "sft_prefetch_num_workers"),
        ("loss_type", "sft_prefetch_buffer_size"),
        lambda v: is_sft(v) and v.sft_prefetch_buffer_size == 0,
        "has no effect with --sft-prefetch-buffer-size 0.",
        "Leave one out.",
    ),
    Rule(
        name="steps-in-flight-agree",
        option="sft_max_in_flight_steps",
        reads=("sft_max_in_flight_steps", "max_staleness", "loss_type"),
        broken=lambda v: (
            is_sft(v)
            and v.sft_max_in_flight_steps is not None
            and v.max_staleness > 0
            and v.sft_max_in_flight_steps != v.max_staleness + 1
        ),
        message="is not --max-staleness {max_staleness} + 1, which says the same.",
        fix="Leave one out.",
        severity="warning",
    ),
    # Samples that do not fit
    Rule(
        name="oversize-needs-a-function",
        option="sft_oversize_strategy",
        reads=("sft_oversize_strategy", "sft_oversize_custom_function_path"),
        broken=lambda v: v.sft_oversize_strategy == "custom" and v.sft_oversize_custom_function_path is None,
        message="needs --sft-oversize-custom-function-path.",
    ),
    Rule(
        name="oversize-function-is-called",
        option="sft_oversize_custom_function_path",
        reads=("sft_oversize_custom_function_path", "sft_oversize_strategy"),
        broken=lambda v: v.sft_oversize_custom_function_path is not None and v.sft_oversize_strategy != "custom",
        message="is not called with --sft-oversize-strategy {sft_oversize_strategy}.",
        fix="Use --sft-oversize-strategy custom, or leave it out.",
    ),
    Rule(
        name="truncation-keeps-media",
        option="sft_oversize_strategy",
        reads=("sft_oversize_strategy", "multimodal_keys", "loss_type"),
        broken=lambda v: (
            is_sft(v) and v.multimodal_keys and v.sft_oversize_strategy in ("truncate_left", "truncate_right")
        ),
        message="can cut tokens of a picture, a video or a sound whose content stays.",
        fix="Use custom or skip.",
        severity="warning",
    ),
    Rule(
        name="one-dataset-class",
        option="custom_dataset_class_path",
        reads=("custom_dataset_class_path", "custom_dataset_class"),
        broken=lambda v: (
            None not in (v.custom_dataset_class_path, v.custom_dataset_class)
            and v.custom_dataset_class_path != v.custom_dataset_class
        ),
        message="is another class than --custom-dataset-class {custom_dataset_class}, which means the same.",
        fix="Leave one out.",
    ),
)
