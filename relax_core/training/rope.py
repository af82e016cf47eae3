"""Rotary positions of packed sequences.

Guarantee: the angles and their application equal those of transformers' Llama and Qwen models, in float32 up to the
rounding of one multiply-add. Tables are computed once a micro-batch, for all tokens together, and used by every layer.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from relax_core.algorithms.compiled import compiled
from relax_core.training.shape import ModelShape


def inverse_frequencies(shape: ModelShape) -> Tensor:
    """The rotation per position of each pair of channels, float32 [head_dim / 2].

    ``theta ** (-2i / head_dim)``; with Llama 3.1's scaling, wavelengths longer than ``original / low_freq_factor`` are
    stretched by ``factor``, those shorter than ``original / high_freq_factor`` stay, and between them the two are
    blended linearly in the number of turns within the original context.
    """
    channels = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).to(torch.float32)
    frequencies = 1.0 / (shape.rope_theta ** (channels / shape.head_dim))
    scaling = shape.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings / (2 * math.pi / frequencies)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def rotary_tables(lengths: Sequence[int], frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine for every token of a packed micro-batch; positions count from 0 in each sequence.

    Args:
        lengths: tokens of each sequence, T together.
        frequencies: as :func:`inverse_frequencies` gives them, on the device of the result.
        dtype: of the result; the angles are float32 in any case.

    Returns:
        Two tensors [T, 1, head_dim / 2].
    """
    longest = torch.arange(max(lengths, default=0), device=frequencies.device, dtype=torch.float32)
    positions = torch.cat([longest[:length] for length in lengths]) if lengths else longest
    angles = torch.outer(positions, frequencies)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (channel i, channel i + head_dim / 2) of every head by its token's angle.

    Args:
        heads: queries or keys [T, heads, head_dim]; may be a strided view.
        cos, sin: as :func:`rotary_tables` gives them.

    Returns:
        A new contiguous tensor of the same shape.
    """
    if heads.is_cuda:
        return turn(heads, cos, sin)
    return _Rotate.apply(heads, cos, sin)  # type: ignore[no-any-return]


@compiled
def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``rotate``, for torch to compile; in float32."""
    first, second = heads.float().chunk(2, -1)
    cos, sin = cos.float(), sin.float()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(heads.dtype)


class _Rotate(torch.autograd.Function):
    """A rotation; its gradient is the rotation back. Keeps the tables only, and writes each element once."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(heads, cos, sin, 1)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors  # type: ignore[attr-defined]
        return _turn(gradient, cos, sin, -1), None, None


def _turn(heads: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    result = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    first, second = heads.chunk(2, -1)
    first_out, second_out = result.chunk(2, -1)
    torch.mul(first, cos, out=first_out).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=second_out).addcmul_(first, sin, value=sign)
    return result
