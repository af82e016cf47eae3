"""Log-probabilities and entropies of tokens straight from hidden states, over a vocabulary split between ranks.

Guarantee: values and gradients equal those of ``log_softmax(hidden @ weight.T / temperature)`` to rounding, whatever
the number of ranks or the chunk size, while float32 logits exist for one chunk of rows only (if they are small: once).
Rows of zero upstream gradient cost nothing in the backward pass on a CPU. A GPU has a way of its own
(:mod:`relax_core.algorithms.logprobs_chunks`).

Shapes: R rows (response tokens), H hidden size, V vocabulary rows of this rank.
With ``E = exp(z - max z)`` and ``p = E / sum E``: d log p_y / dz = 1_y - p; d entropy / dz = -p (log p + entropy).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from relax_core.algorithms.logprobs_chunks import DEVICE_CHUNK_BYTES, ChunkedLogProbs, device_keep_bytes, in_chunks
from relax_core.algorithms.logprobs_parts import Accumulator, Options, finished, local_targets, slices, wide

KEEP_BYTES = 1 << 30
"""Without a chunk size, exponentials up to this many bytes are kept for the backward pass: a quarter less time."""
CHUNK_BYTES = 1 << 28
"""Otherwise the rows of a chunk are chosen to make its float32 logits this large."""
CPU_BLOCK_BYTES = 1 << 25
"""Element-wise passes on a CPU go over blocks of this size: it bounds what copies (entropy, bfloat16) add to memory."""


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    group: dist.ProcessGroup | None = None,
    chunk_size: int = -1,
    with_entropy: bool = False,
    entropy_grad: bool = False,
    vocab_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target token, and the entropy of the distribution that it was drawn from.

    The matrix product runs in the type of the inputs, the softmax in float32 (float64 for float64 inputs). With a group
    every rank gets the same, complete results; the gradient with respect to ``hidden`` is this rank's *partial* sum, to
    be reduced over the group by the caller (Megatron: ``copy_to_tensor_model_parallel_region`` before the call), that
    with respect to ``weight`` is complete.

    Args:
        hidden: [R, H] hidden states of the positions that predict the targets; equal on all ranks of the group.
        weight: [V, H] output weights; rank r of the group holds the ids ``r V ... (r + 1) V - 1``.
        targets: [R] int64 ids.
        temperature: divides the logits; above 0.
        group: tensor-parallel group; None: this process holds the whole vocabulary.
        chunk_size: rows computed at once, recomputed in the backward pass; -1: chosen by size.
        with_entropy: also compute the entropy (nats, at ``temperature``).
        entropy_grad: the entropy carries a gradient.
        vocab_size: ids from here on are padding: no probability, zero gradient.

    Returns:
        log_probs [R] and entropy [R] (None unless asked for), both float32 (float64 for float64 inputs).
    """
    rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    shard = weight.shape[0]
    first_id = rank * shard
    real = shard if vocab_size is None else min(max(vocab_size - first_id, 0), shard)
    dtype = wide(hidden.dtype)
    row_bytes = max(real, 1) * dtype.itemsize
    rows = hidden.shape[0]
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    by_chunks = in_chunks(hidden)
    if by_chunks:  # in the type of the logits, and always several
        row_bytes = max(real, 1) * hidden.element_size()
    keep_bytes = device_keep_bytes(hidden.device) if by_chunks else KEEP_BYTES
    keep = needs_grad and chunk_size <= 0 and rows * row_bytes <= keep_bytes
    if chunk_size <= 0:
        bounded = max((DEVICE_CHUNK_BYTES if by_chunks else CHUNK_BYTES) // row_bytes, 1)
        chunk_size = rows if keep and not by_chunks else bounded
    options = Options(
        temperature=temperature,
        group=group if size > 1 else None,
        chunk_rows=max(chunk_size, 1),
        keep=keep,
        entropy=with_entropy,
        entropy_grad=with_entropy and entropy_grad,
        first_id=first_id,
    )
    # A view without the padding rows: autograd gives those zeros, and no masking of columns is needed.
    function = ChunkedLogProbs if by_chunks else _TokenLogProbs
    log_probs, entropy = function.apply(hidden, weight[:real], targets, options)
    return log_probs, entropy if with_entropy else None


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: Options
    ) -> tuple[Tensor, Tensor | None]:
        dtype = wide(hidden.dtype)
        rows, vocab = hidden.shape[0], weight.shape[0]
        local, owned = local_targets(targets, vocab, options)
        lowest = torch.finfo(dtype).min  # a rank without real ids: finite, and its exponentials vanish
        peak = torch.full((rows,), lowest, dtype=dtype, device=hidden.device)
        total, target, energy = (torch.zeros_like(peak) for _ in range(3))
        kept: Tensor | None = None
        for chunk in slices(rows if vocab else 0, options.chunk_rows):
            logits = hidden[chunk] @ weight.t()
            if options.keep:
                kept = logits if logits.dtype == dtype else torch.empty_like(logits, dtype=dtype)
            for block in slices(logits.shape[0], _block_rows(logits, dtype)):
                at = slice(chunk.start + block.start, chunk.start + block.stop)
                z = logits[block].to(dtype)  # a view for float32: what follows is in place
                if options.temperature != 1.0:
                    z.mul_(1.0 / options.temperature)
                peak[at] = z.amax(dim=1)
                z.sub_(peak[at, None])
                target[at] = z.gather(1, local[at, None]).squeeze(1)
                centred = z.clone() if options.entropy else None
                z.exp_()
                total[at] = z.sum(dim=1)
                if centred is not None:
                    energy[at] = centred.mul_(z).sum(dim=1)
                if kept is not None and kept is not logits:
                    kept[block] = z
        return finished(ctx, hidden, weight, local, owned, (peak, total, target, energy), options, kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, local, owned, peak, offset, entropy = ctx.saved_tensors
        options: Options = ctx.options
        # Consumed in place; a second backward through the same graph recomputes.
        kept, ctx.kept = ctx.kept, None
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        if grad is None:
            grad = torch.zeros_like(peak)
        if not options.entropy_grad:
            entropy_grad = None

        wanted = (grad != 0 if entropy_grad is None else (grad != 0) | (entropy_grad != 0)).nonzero().squeeze(1)
        rows = len(wanted)
        chosen = None if rows == hidden.shape[0] else wanted
        accumulator = Accumulator(weight, chunks=-(-rows // options.chunk_rows)) if need_weight else None

        for chunk in slices(rows if weight.shape[0] else 0, options.chunk_rows):
            index: slice | Tensor = chunk if chosen is None else chosen[chunk]
            part = hidden[index]
            logits = part @ weight.t() if kept is None else kept[index]
            delta = _logit_gradient(
                logits,
                recomputed=kept is None,
                options=options,
                peak=peak[index],
                offset=offset[index],
                grad=grad[index],
                entropy_grad=None if entropy_grad is None else entropy_grad[index],
                entropy=None if entropy_grad is None else entropy[index],
                local=local[index],
                owned=owned[index],
                out_dtype=hidden.dtype,
            )
            if grad_hidden is not None:
                grad_hidden[index] = delta @ weight
            if accumulator is not None:
                accumulator.add(delta, part)
        return grad_hidden, accumulator.result() if accumulator is not None else None, None, None


def _logit_gradient(
    logits: Tensor,
    *,
    recomputed: bool,
    options: Options,
    peak: Tensor,
    offset: Tensor,
    grad: Tensor,
    entropy_grad: Tensor | None,
    entropy: Tensor | None,
    local: Tensor,
    owned: Tensor,
    out_dtype: torch.dtype,
) -> Tensor:
    """Gradient with respect to the unscaled logits of a chunk, computed in place where the types allow.

    ``logits`` are raw logits if ``recomputed``, else exponentials relative to this rank's ``peak``. ``offset`` is
    log(p / exponential).
    """
    inverse = 1.0 / options.temperature
    factor = offset.exp() * -inverse  # exponential x factor = -p / temperature
    delta = logits if logits.dtype == out_dtype else torch.empty_like(logits, dtype=out_dtype)
    picked = torch.where(owned, grad * inverse, 0.0)
    for block in slices(logits.shape[0], _block_rows(logits, grad.dtype)):
        z = logits[block].to(grad.dtype)
        if recomputed:
            if options.temperature != 1.0:
                z.mul_(inverse)
            z.sub_(peak[block][:, None])
        if entropy_grad is None or entropy is None:
            if recomputed:
                z.exp_()
            z.mul_((factor[block] * grad[block])[:, None])
        else:
            # log p, bounded where the exponential underflowed: p log p is 0 there
            slope = z.clone() if recomputed else z.log().clamp_(min=torch.finfo(z.dtype).min / 4)
            if recomputed:
                z.exp_()
            slope.add_((offset[block] + entropy[block])[:, None])
            slope.mul_(entropy_grad[block][:, None]).add_(grad[block][:, None])
            z.mul_(slope).mul_(factor[block][:, None])
        at = torch.arange(z.shape[0], device=z.device), local[block]
        z[at] = z[at] + picked[block]  # one place a row: no accumulation, so deterministic
        if z.dtype != out_dtype:
            delta[block] = z
    return delta


def _block_rows(logits: Tensor, dtype: torch.dtype) -> int:
    return max(CPU_BLOCK_BYTES // (logits.shape[1] * dtype.itemsize), 1)
