"""Causal self-attention over packed sequences.

Guarantee: a token attends to the earlier tokens of its own sequence and to itself, whatever is packed beside it; no
token is padded. The same module serves a CPU (torch's SDPA, sequence by sequence) and a GPU (torch's variable-length
flash attention). It rotates queries and keys itself, with tables that the micro-batch carries, so that no layer
recomputes angles or reads lengths back from the device. Needs torch only.
"""

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from relax_core.training.rope import rotary_tables, rotate


@dataclass(frozen=True)
class Packing:
    """How the T tokens of a micro-batch divide into sequences; made once, read by every layer.

    Attributes:
        lengths: tokens of each sequence, in order.
        cu_seqlens: int32 [N + 1], where each sequence begins and, last, T; on the model's device.
        cos, sin: rotary tables [T, 1, head_dim / 2] in the model's type.
    """

    lengths: tuple[int, ...]
    cu_seqlens: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], frequencies: Tensor, dtype: torch.dtype) -> "Packing":
        """The packing of sequences with these lengths, on the device of the rotary ``frequencies``."""
        lengths = tuple(int(length) for length in lengths)
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        cos, sin = rotary_tables(lengths, frequencies, dtype)
        return cls(lengths, bounds.to(frequencies.device, non_blocking=True), cos, sin)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths, default=0)


class PackedAttention(torch.nn.Module):
    """Core attention for Megatron's layer specification (the arguments are those that Megatron passes).

    Raises:
        ValueError: for attention dropout or context parallelism, which it does not have.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if (config.attention_dropout if attention_dropout is None else attention_dropout) != 0.0:
            raise ValueError("packed attention has no dropout")
        if config.context_parallel_size != 1:
            raise ValueError("packed attention has no context parallelism")
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: [T, heads, head_dim], not rotated; key and value: [T, kv_heads, head_dim].
            packed_seq_params: carries the micro-batch's :class:`Packing` as ``packing``.

        Returns:
            [T, heads x head_dim].
        """
        packing: Packing = packed_seq_params.packing
        query, key = rotate(query, packing.cos, packing.sin), rotate(key, packing.cos, packing.sin)
        return attend(query, key, value, packing, self.scale).flatten(1)


def attend(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None = None) -> Tensor:
    """Causal attention within each sequence.

    Args:
        query: [T, heads, head_dim]; key and value: [T, kv_heads, head_dim], each shared by heads / kv_heads heads.
        scale: factor of the scores; default ``head_dim ** -0.5``.

    Returns:
        [T, heads, head_dim].
    """
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):  # flash attention knows no float32
        kernel = _varlen_kernel()
        if kernel is not None:
            return kernel(query, key, value, packing, scale)
    outputs = []
    lengths = list(packing.lengths)
    for one_query, one_key, one_value in zip(
        query.split(lengths), key.split(lengths), value.split(lengths), strict=True
    ):
        output = F.scaled_dot_product_attention(
            one_query.transpose(0, 1).unsqueeze(0),
            one_key.transpose(0, 1).unsqueeze(0),
            one_value.transpose(0, 1).unsqueeze(0),
            is_causal=True,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        outputs.append(output.squeeze(0).transpose(0, 1))  # [0] would have a dense gradient
    return torch.cat(outputs)


@functools.cache
def _varlen_kernel() -> Any:
    """torch's variable-length attention behind one signature, or None in a torch that has none.

    Its arguments changed between torch 2.10 and 2.13: causality is a window (-1, 0) or a flag, and only newer ones
    share key-value heads.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters

    def kernel(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None) -> Tensor:
        options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
        if scale is not None:
            options["scale"] = scale
        shared = query.shape[1] // key.shape[1]
        if shared > 1 and "enable_gqa" in known:
            options["enable_gqa"] = True
        elif shared > 1:
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        bounds, longest = packing.cu_seqlens, packing.longest
        return cast(Tensor, varlen_attn(query, key, value, bounds, bounds, longest, longest, **options))

    return kernel
