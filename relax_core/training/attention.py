"""Causal self-attention over packed sequences.

Guarantee: a token attends to the earlier tokens of its own sequence and to itself, whatever is packed beside it; no
token is padded. The same module serves a CPU (torch's SDPA, sequence by sequence) and a GPU (torch's variable-length
flash attention). It rotates queries and keys itself, with tables that the micro-batch carries, so that no layer
recomputes angles or reads lengths back from the device. Needs torch only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

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
        ruler: [longest] of nothing: a size is a symbol for what is compiled, where a number would be a constant.
    """

    lengths: tuple[int, ...]
    cu_seqlens: Tensor
    cos: Tensor
    sin: Tensor
    ruler: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], frequencies: Tensor, dtype: torch.dtype) -> "Packing":
        """The packing of sequences with these lengths, on the device of the rotary ``frequencies``."""
        lengths = tuple(int(length) for length in lengths)
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        cos, sin = rotary_tables(lengths, frequencies, dtype)
        ruler = frequencies.new_empty(1).expand(max(lengths, default=0))
        return cls(lengths, bounds.to(frequencies.device, non_blocking=True), cos, sin, ruler)

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
        return flash(query, key, value, packing.cu_seqlens, packing.longest, scale)
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


def flash(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, scale: float | None) -> Tensor:
    """Variable-length flash attention, causal within each sequence; key-value heads are shared, not repeated.

    torch's public ``varlen_attn`` shares them since 2.13 only; this operator beneath it always has.

    Args:
        query, key, value: float16 or bfloat16 on a GPU, as of :func:`attend`.
        bounds: int32 [N + 1], where each sequence begins and, last, T.
        longest: tokens of the longest sequence.
    """
    found = torch.ops.aten._flash_attention_forward(
        query, key, value, bounds, bounds, longest, longest, 0.0, True, False, scale=scale
    )
    return found[0]  # type: ignore[no-any-return]
