"""A transformer layer as one function of tensors, which torch compiles as a whole.

Guarantee: what Megatron's layer of the same specification computes, with the same weights and their gradients, up to
rounding: all layers of a model share one compiled function, and another packing compiles nothing anew. Megatron's own
forward pass is a hundred calls a layer, behind which a GPU waits for the host. ``fuse`` leaves a layer as it is where
the function is not all of it: several tensor-parallel ranks, recomputation of parts, weights that arrive while layers
run, float32.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relax_core.algorithms.compiled import compiled, wants_compiled
from relax_core.training.activation import swiglu
from relax_core.training.attention import Packing, flash
from relax_core.training.norm import rms_norm
from relax_core.training.rope import turn

_norm, _turn, _gated = rms_norm.plain, turn.plain, swiglu.plain


class LayerWeights(NamedTuple):
    """The weights of a layer, by what they do; None where the architecture has none."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    projection: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Any) -> "LayerWeights":
        """Those of one of Megatron's layers."""
        attention, mlp = layer.self_attention, layer.mlp
        return cls(
            attention_norm=layer.input_layernorm.weight,
            qkv=attention.linear_qkv.weight,
            qkv_bias=attention.linear_qkv.bias,
            query_norm=getattr(attention.q_layernorm, "weight", None),
            key_norm=getattr(attention.k_layernorm, "weight", None),
            projection=attention.linear_proj.weight,
            mlp_norm=layer.pre_mlp_layernorm.weight,
            gate_up=mlp.linear_fc1.weight,
            down=mlp.linear_fc2.weight,
        )


@compiled
def transformer_layer(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    bounds: Tensor,
    ruler: Tensor,
    weights: LayerWeights,
    shape: tuple[int, int, int],
    epsilon: float,
) -> Tensor:
    """``x + attention(norm(x))``, and of that again ``x + MLP(norm(x))``, over packed sequences, as in Llama and Qwen.

    Args:
        x: [T, 1, hidden], float16 or bfloat16.
        cos, sin, bounds, ruler: of the packing, as ``Packing`` has them.
        shape: query heads, key-value heads, head size.
        epsilon: of all norms.

    Returns:
        [T, 1, hidden]
    """
    heads, kv_heads, size = shape
    normed = _norm(x, weights.attention_norm, epsilon)
    # key-value head by key-value head: its queries, its key, its value
    mixed = F.linear(normed, weights.qkv, weights.qkv_bias).view(-1, kv_heads, heads // kv_heads + 2, size)
    query, key, value = mixed[:, :, :-2].reshape(-1, heads, size), mixed[:, :, -2], mixed[:, :, -1]
    if weights.query_norm is not None and weights.key_norm is not None:
        query, key = _norm(query, weights.query_norm, epsilon), _norm(key, weights.key_norm, epsilon)
    attended = flash(_turn(query, cos, sin), _turn(key, cos, sin), value, bounds, ruler.shape[0], None)
    x = x + F.linear(attended.flatten(1).unsqueeze(1), weights.projection)
    gate_up = F.linear(_norm(x, weights.mlp_norm, epsilon), weights.gate_up)
    return x + F.linear(_gated(gate_up), weights.down)


def fits(config: Any) -> bool:
    """Whether the function is all that a layer of this configuration does.

    Args:
        config: Megatron's TransformerConfig.
    """
    return bool(
        config.tensor_model_parallel_size == 1
        and config.params_dtype in (torch.float16, torch.bfloat16)
        and config.recompute_granularity != "selective"
        and not config.add_bias_linear
        and not config.fp32_residual_connection
        and not getattr(config, "cpu_offloading", False)
        and not getattr(config, "fine_grained_activation_offloading", False)
    )


def fuse(decoder: Any, config: Any) -> bool:
    """Let the layers of a decoder run as ``transformer_layer`` on a GPU; whether they do.

    Args:
        decoder: Megatron's TransformerBlock, with the specification of ``relax_core.training.model``.
        config: its TransformerConfig.
    """
    if not fits(config):
        return False
    for layer in decoder.layers:
        layer.forward = LayerForward(layer)
    return True


def takes(hidden_states: Tensor) -> bool:
    """Whether hidden states go through the function. (One that is not compiled keeps more than Megatron's layer.)"""
    return hidden_states.is_cuda and wants_compiled() and transformer_layer.usable


def alike(hidden_states: Tensor) -> Tensor:
    """The same numbers with the strides that a layer's result has.

    The embedding's result, which is transposed, has another one of the dimension of size 1, and is a view: for each of
    both the function would be compiled once more.

    Args:
        hidden_states: [T, 1, hidden].
    """
    steps = (hidden_states.shape[2], hidden_states.shape[2], 1)
    if hidden_states.stride() == steps:
        return hidden_states
    return hidden_states.clone(memory_format=torch.contiguous_format)


class LayerForward:
    """In place of a layer's ``forward``.

    Args:
        layer: of Megatron; its own forward pass serves what ``takes`` does not.
    """

    def __init__(self, layer: Any) -> None:
        attention = layer.self_attention
        self._megatrons, self._weights = layer.forward, LayerWeights.of(layer)
        self._shape = (
            attention.num_attention_heads_per_partition,
            attention.num_query_groups_per_partition,
            attention.hidden_size_per_attention_head,
        )
        self._epsilon = layer.config.layernorm_epsilon

    def __call__(
        self, hidden_states: Tensor, *args: Any, packed_seq_params: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Hidden states [T, 1, hidden] in and out, and no context."""
        if hidden_states.shape[0] < 2 or not takes(hidden_states):  # sizes 0 and 1 would be compiled on their own
            found: tuple[Tensor, Any] = self._megatrons(
                hidden_states, *args, packed_seq_params=packed_seq_params, **kwargs
            )
            return found
        packing: Packing = packed_seq_params.packing
        result = transformer_layer(
            alike(hidden_states),
            packing.cos,
            packing.sin,
            packing.cu_seqlens,
            packing.ruler,
            self._weights,
            self._shape,
            self._epsilon,
        )
        return result, None
