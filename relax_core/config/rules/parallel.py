"""Rules about how the model is split over ranks, and what overlaps.

Guarantee: sizes that do not divide what they split are refused with all numbers of the division.
"""

from collections.abc import Iterator
from typing import Any

from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import estimator
from relax_core.config.values import SIZE_READS, Values

_SPLIT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
_RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers")


def _uneven_world(v: Values) -> list[dict[str, Any]]:
    return _uneven(v, v.world)


def _uneven_critic(v: Values) -> list[dict[str, Any]]:
    devices = v.devices("critic") if estimator(v).needs_critic else 0
    return [{"value": f"critic {devices}", **place} for place in _uneven(v, devices)]


def _uneven(v: Values, devices: int) -> list[dict[str, Any]]:
    """What does not divide the devices of a role that trains."""
    context = v.context_parallel_size
    ranks = v.tensor_model_parallel_size * v.pipeline_model_parallel_size * context
    shown = f" x context {context}" if context > 1 else ""
    return [{"context": shown, "ranks": ranks}] if devices % ranks else []


def _uneven_experts(v: Values) -> list[dict[str, Any]]:
    expert, tensor = v.expert_model_parallel_size, v.expert_tensor_parallel_size
    ranks = expert * tensor * v.pipeline_model_parallel_size
    return [{"ranks": ranks}] if (expert > 1 or tensor > 1) and v.world % ranks else []


def _without_experts(v: Values) -> Iterator[dict[str, Any]]:
    if v.num_moe_experts is None:
        for name in ("expert_model_parallel_size", "expert_tensor_parallel_size"):
            if v[name] > 1:
                yield {"option": name}


def _on(v: Values, condition: bool) -> Iterator[dict[str, Any]]:
    yield from ({"option": name} for name in _OVERLAPS if condition and v[name])


RULES: tuple[Rule, ...] = (
    Rule(
        name="world-holds-whole-models",
        option="tensor_model_parallel_size",
        reads=(*_SPLIT, *SIZE_READS["world"]),
        each=_uneven_world,
        message="tensor {tensor_model_parallel_size} x pipeline {pipeline_model_parallel_size}{context} = {ranks}"
        " does not divide the {world} devices of the role actor.",
        fix="Change the parallel sizes, or --resource.",
    ),
    Rule(
        name="critic-holds-whole-models",
        option="resource",
        reads=(*_SPLIT, "resource", "advantage_estimator"),
        each=_uneven_critic,
        message="is no multiple of {ranks} = tensor {tensor_model_parallel_size} x pipeline"
        " {pipeline_model_parallel_size}{context}: the critic is split as the actor is.",
        fix="Change it, or the parallel sizes.",
    ),
    Rule(
        name="sequence-parallel-has-ranks",
        option="sequence_parallel",
        reads=("sequence_parallel", "tensor_model_parallel_size"),
        broken=lambda v: v.sequence_parallel and v.tensor_model_parallel_size == 1,
        message="needs --tensor-model-parallel-size above 1.",
    ),
    Rule(
        name="full-recomputation-says-which-layers",
        option="recompute_method",
        reads=_RECOMPUTE,
        each=lambda v: [
            {"option": name} for name in _RECOMPUTE[1:] if v.recompute_granularity == "full" and v[name] is None
        ],
        message="is required with --recompute-granularity full.",
    ),
    Rule(
        name="only-full-recomputation-chooses-layers",
        option="recompute_method",
        reads=_RECOMPUTE,
        each=lambda v: [
            {"option": name} for name in _RECOMPUTE[1:] if v.recompute_granularity != "full" and v[name] is not None
        ],
        message="has an effect only with --recompute-granularity full.",
    ),
    Rule(
        name="spread-experts-are-there",
        option="expert_model_parallel_size",
        reads=("expert_model_parallel_size", "expert_tensor_parallel_size", "num_moe_experts"),
        each=_without_experts,
        message="splits experts, and the model has none (config.json).",
        fix="Leave it out.",
        needs_model=True,
    ),
    Rule(
        name="experts-are-shared-out",
        option="expert_model_parallel_size",
        reads=("expert_model_parallel_size", "num_moe_experts"),
        broken=lambda v: v.num_moe_experts is not None and v.num_moe_experts % v.expert_model_parallel_size,
        message="does not divide the {num_moe_experts} experts of a layer.",
    ),
    Rule(
        name="world-holds-whole-mixtures",
        option="expert_model_parallel_size",
        reads=(
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
            "pipeline_model_parallel_size",
            *SIZE_READS["world"],
        ),
        each=_uneven_experts,
        message="expert {expert_model_parallel_size} x expert tensor {expert_tensor_parallel_size}"
        " x pipeline {pipeline_model_parallel_size} = {ranks} does not divide the {world} devices of the role actor.",
        fix="Change the parallel sizes, or --resource.",
    ),
    Rule(
        name="expert-and-tensor-parallel-split-tokens",
        option="expert_model_parallel_size",
        reads=("expert_model_parallel_size", "tensor_model_parallel_size", "sequence_parallel"),
        broken=lambda v: (
            v.expert_model_parallel_size > 1 and v.tensor_model_parallel_size > 1 and not v.sequence_parallel
        ),
        message="needs --sequence-parallel where --tensor-model-parallel-size is above 1.",
    ),
    Rule(
        name="gathering-ahead-needs-reducing-ahead",
        option="overlap_param_gather",
        reads=("overlap_param_gather", "overlap_grad_reduce"),
        broken=lambda v: v.overlap_param_gather and not v.overlap_grad_reduce,
        message="needs --overlap-grad-reduce.",
    ),
    Rule(
        name="gathering-ahead-needs-the-distributed-optimizer",
        option="overlap_param_gather",
        reads=("overlap_param_gather", "use_distributed_optimizer"),
        broken=lambda v: v.overlap_param_gather and not v.use_distributed_optimizer,
        message="needs --use-distributed-optimizer: without it there is nothing to gather.",
    ),
    Rule(
        name="mixtures-do-not-overlap",
        option="overlap_grad_reduce",
        reads=(*_OVERLAPS, "num_moe_experts"),
        each=lambda v: _on(v, v.num_moe_experts is not None),
        message="cannot be used with a mixture of experts (--num-experts {num_moe_experts}).",
        fix="Leave it out; --use-distributed-optimizer can stay.",
    ),
    Rule(
        name="split-images-do-not-overlap",
        option="overlap_grad_reduce",
        reads=(*_OVERLAPS, "multimodal_keys", "context_parallel_size", "num_moe_experts"),
        each=lambda v: _on(v, bool(v.multimodal_keys) and v.context_parallel_size > 1 and v.num_moe_experts is None),
        message="cannot be used with --multimodal-keys where --context-parallel-size is above 1.",
        fix="Leave it out; --use-distributed-optimizer can stay.",
    ),
    Rule(
        name="gathered-context-is-split",
        option="allgather_cp",
        reads=("allgather_cp", "context_parallel_size"),
        broken=lambda v: v.allgather_cp and v.context_parallel_size == 1,
        message="has no effect without --context-parallel-size above 1.",
        severity="warning",
    ),
)
