"""Rules between the options and the shape of the model.

Guarantee: a split that the model does not allow is refused before anything starts, with both numbers; what a launch
script says about the model must agree with its config.json, which alone decides.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from relax_core.config.options import OPTIONS, find_option
from relax_core.config.passthrough import pass_throughs
from relax_core.config.rules.base import Rule
from relax_core.config.values import Values
from relax_core.training.shape import ModelShape

SHAPE: dict[str, Callable[[ModelShape], Any]] = {
    "num_layers": lambda model: model.layers,
    "hidden_size": lambda model: model.hidden,
    "ffn_hidden_size": lambda model: model.ffn,
    "num_attention_heads": lambda model: model.heads,
    "num_query_groups": lambda model: model.kv_heads,
    "kv_channels": lambda model: model.head_dim,
    "vocab_size": lambda model: model.vocab,
    "max_position_embeddings": lambda model: model.max_positions,
    # every head of its own key and value is a group too
    "group_query_attention": lambda model: True,
    "untie_embeddings_and_output_weights": lambda model: not model.tie,
    "position_embedding_type": lambda model: "rope",
    "use_rotary_position_embeddings": lambda model: True,
    "no_position_embedding": lambda model: True,
    "rope_type": lambda model: "rope",
    "rotary_base": lambda model: model.rope_theta,
    "rotary_percent": lambda model: 1.0,
    "use_rope_scaling": lambda model: model.rope_scaling is not None,
    "rope_scaling_factor": lambda model: model.rope_scaling and model.rope_scaling.factor,
    "original_max_position_embeddings": lambda model: (
        model.rope_scaling and model.rope_scaling.original_max_position_embeddings
    ),
    "normalization": lambda model: "RMSNorm",
    "layernorm_epsilon": lambda model: model.norm_eps,
    "add_bias_linear": lambda model: False,
    "add_qkv_bias": lambda model: model.qkv_bias,
    "qk_layernorm": lambda model: model.qk_norm,
    "gated_linear_unit": lambda model: True,
    "softmax_scale": lambda model: 1 / math.sqrt(model.head_dim),
}
"""Megatron's option -> its value for a model; None where the model has nothing of the kind. An option that is not here
describes something that no supported model has."""

SHAPE_OPTIONS = tuple(
    dict.fromkeys(
        [
            *(name for name, option in OPTIONS.items() if option.effect == "relax_core/config/rules/model.py"),
            *(name for name, passed in pass_throughs().items() if passed.role == "shape" and name not in OPTIONS),
        ]
    )
)
"""The options that describe the model."""

_PADDING = ("make_vocab_size_divisible_by", "tensor_model_parallel_size")
_CONTEXTS = ("rollout_max_context_len", "sglang_context_length", "eval_max_context_len")


def _model(v: Values) -> ModelShape:
    """The shape of the model: rules that need it are judged only where it is known."""
    assert v.model is not None
    return v.model


def _is_package_default(name: str, value: Any) -> bool:
    """Whether a value says no more than that the model lacks something."""
    option = find_option(name)
    return not value or (option is not None and option.passed is not None and value == option.passed.default)


def _padded(v: Values, entries: int) -> int:
    """A number of vocabulary entries as Megatron's launcher pads it."""
    unit = v.make_vocab_size_divisible_by * v.tensor_model_parallel_size
    return math.ceil(entries / unit) * unit


def _agrees(v: Values, name: str, value: Any, right: Any) -> bool:
    if name == "vocab_size":
        return value == right or value == _padded(v, right) or right == _padded(v, value)
    if name == "group_query_attention":
        return bool(value) or _model(v).kv_heads == _model(v).heads
    return math.isclose(value, right, rel_tol=1e-6) if isinstance(right, float) else bool(value == right)


def _other_shape(v: Values) -> Iterator[dict[str, Any]]:
    for name in SHAPE_OPTIONS:
        value = v[name]
        if value is None:
            continue
        right = SHAPE[name](_model(v)) if name in SHAPE else None
        if right is None:
            if not _is_package_default(name, value):
                yield {"option": name, "why": "describes something that the model does not have (config.json)."}
        elif not _agrees(v, name, value, right):
            shown = "" if isinstance(right, bool) else f": {right}"
            yield {"option": name, "why": f"is not what the model's config.json says{shown}."}


def _beyond_the_model(v: Values) -> Iterator[dict[str, Any]]:
    rollout, most = v.rollout_max_context_len, _model(v).max_positions
    for name in _CONTEXTS:
        copied = name == "eval_max_context_len" and v[name] == rollout
        if v[name] is not None and v[name] > most and not copied:
            yield {"option": name, "most": most}


def _tensor_parts(v: Values) -> Iterator[dict[str, Any]]:
    counts = {
        "attention heads": _model(v).heads,
        "key-value heads": _model(v).kv_heads,
        "vocabulary entries": _model(v).vocab,
        "feed-forward columns": _model(v).ffn,
    }
    for what, count in counts.items():
        if count % v.tensor_model_parallel_size:
            yield {"what": what, "count": count}


def _layers_of_a_stage(v: Values) -> int:
    return int(_model(v).layers // v.pipeline_model_parallel_size)


RULES: tuple[Rule, ...] = (
    Rule(
        name="model-knows-the-positions",
        option="rollout_max_context_len",
        reads=_CONTEXTS,
        each=_beyond_the_model,
        message="is more than the model's {most} positions (config.json).",
        needs_model=True,
    ),
    Rule(
        name="tensor-parallel-divides-the-model",
        option="tensor_model_parallel_size",
        reads=("tensor_model_parallel_size",),
        each=_tensor_parts,
        message="does not divide the model's {count} {what}.",
        needs_model=True,
    ),
    Rule(
        name="pipeline-divides-the-layers",
        option="pipeline_model_parallel_size",
        reads=("pipeline_model_parallel_size",),
        each=lambda v: [{"layers": _model(v).layers}] if _model(v).layers % v.pipeline_model_parallel_size else [],
        message="does not divide the model's {layers} layers.",
        needs_model=True,
    ),
    Rule(
        name="recomputed-layers-are-there",
        option="recompute_num_layers",
        reads=("recompute_num_layers", "pipeline_model_parallel_size"),
        each=lambda v: (
            [{"layers": _layers_of_a_stage(v)}]
            if v.recompute_num_layers is not None and v.recompute_num_layers > _layers_of_a_stage(v)
            else []
        ),
        message="is more than the {layers} layers of a pipeline stage.",
        needs_model=True,
    ),
    Rule(
        name="engines-divide-the-heads",
        option="rollout_num_gpus_per_engine",
        reads=("rollout_num_gpus_per_engine",),
        each=lambda v: [{"heads": _model(v).heads}] if _model(v).heads % v.rollout_num_gpus_per_engine else [],
        message="does not divide the model's {heads} attention heads.",
        needs_model=True,
    ),
    Rule(
        name="stop-tokens-exist",
        option="rollout_stop_token_ids",
        reads=("rollout_stop_token_ids",),
        each=lambda v: [
            {"value": token, "entries": _model(v).vocab}
            for token in v.rollout_stop_token_ids or ()
            if token >= _model(v).vocab
        ],
        message="is outside the model's vocabulary of {entries} entries.",
        needs_model=True,
    ),
    Rule(
        name="shape-is-the-model's",
        option="num_layers",
        reads=(*SHAPE_OPTIONS, *_PADDING),
        each=_other_shape,
        message="{why}",
        fix="Leave it out: config.json decides.",
        needs_model=True,
    ),
)
