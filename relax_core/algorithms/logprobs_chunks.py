"""Log-probabilities on a GPU: a chunk of logits is read once on the way forward and once on the way back.

Guarantee: values and gradients of :func:`relax_core.algorithms.logprobs.token_log_probs`. Logits exist in the type of
the inputs only; those of all rows are kept for the backward pass where they are a small part of the device's memory,
and made again otherwise. Nothing is read back from the device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from relax_core.algorithms.logit_chunks import chunk_gradient, chunk_gradient_with_entropy, chunk_statistics
from relax_core.algorithms.logprobs_parts import Accumulator, Options, finished, local_targets, slices, wide

DEVICE_CHUNK_BYTES = 5 << 28
"""Without a chunk size, a chunk's logits are this large (1.25 GiB): matrix products of 4,000 rows run at full speed."""
DEVICE_KEEP_BYTES = 5 << 30
"""Logits of all rows up to this size are kept for the backward pass, which saves a quarter of the products; no more
than a twentieth of the device's memory."""


def in_chunks(hidden: Tensor) -> bool:
    """Whether these hidden states take this way."""
    return hidden.is_cuda


@functools.cache
def device_keep_bytes(device: torch.device) -> int:
    """Largest size of the logits of all rows that are kept."""
    return min(DEVICE_KEEP_BYTES, torch.cuda.get_device_properties(device).total_memory // 20)


class ChunkedLogProbs(torch.autograd.Function):
    """Arguments and results as of ``token_log_probs``'s function on a CPU."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: Options
    ) -> tuple[Tensor, Tensor | None]:
        rows, vocab, dtype = hidden.shape[0], weight.shape[0], wide(hidden.dtype)
        local, owned = local_targets(targets, vocab, options)
        # a rank without real ids: finite, and its exponentials vanish
        peak = torch.full((rows,), torch.finfo(dtype).min, dtype=dtype, device=hidden.device)
        total, target, energy = (torch.zeros_like(peak) for _ in range(3))
        kept: list[Tensor] = []
        for chunk in slices(rows if vocab else 0, options.chunk_rows):
            logits = hidden[chunk] @ weight.t()
            found = chunk_statistics(logits, local[chunk], 1.0 / options.temperature)
            peak[chunk], total[chunk], target[chunk], energy[chunk] = found
            if options.keep:
                kept.append(logits)
        return finished(ctx, hidden, weight, local, owned, (peak, total, target, energy), options, kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, local, owned, peak, offset, entropy = ctx.saved_tensors
        options: Options = ctx.options
        kept, ctx.kept = ctx.kept, []  # a second backward through the same graph makes them again
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        grad = torch.zeros_like(peak) if grad is None else grad
        entropy_grad = entropy_grad if options.entropy_grad else None

        inverse = 1.0 / options.temperature
        factor, picked = offset.exp() * -inverse, torch.where(owned, grad * inverse, 0.0)
        rows = hidden.shape[0] if weight.shape[0] else 0
        accumulator = Accumulator(weight, chunks=-(-rows // options.chunk_rows)) if need_weight else None
        for number, chunk in enumerate(slices(rows, options.chunk_rows)):
            part = hidden[chunk]
            logits = kept[number] if kept else part @ weight.t()
            if kept:
                kept[number] = peak  # its memory is the next gradient's
            given = (logits, peak[chunk], local[chunk], inverse)
            if entropy_grad is None or entropy is None:
                delta = chunk_gradient(*given, factor[chunk] * grad[chunk], picked[chunk])
            else:
                own = (grad[chunk], entropy_grad[chunk], offset[chunk] + entropy[chunk])
                delta = chunk_gradient_with_entropy(*given, factor[chunk], picked[chunk], *own)
            del logits, given
            if grad_hidden is not None:
                grad_hidden[chunk] = delta @ weight
            if accumulator is not None:
                accumulator.add(delta, part)
        return grad_hidden, accumulator.result() if accumulator is not None else None, None, None
