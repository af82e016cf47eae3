"""Log-probabilities and entropies of tokens straight from hidden states, over a vocabulary split between ranks.

Guarantee: values and gradients equal those of ``log_softmax(hidden @ weight.T / temperature)`` to rounding, whatever
the number of ranks or the chunk size, while float32 logits exist for one chunk of rows only (if they are small: once).
Rows of zero upstream gradient cost nothing in the backward pass on a CPU.

Shapes: R rows (response tokens), H hidden size, V vocabulary rows of this rank.
With ``E = exp(z - max z)`` and ``p = E / sum E``: d log p_y / dz = 1_y - p; d entropy / dz = -p (log p + entropy).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

KEEP_BYTES = 1 << 30
"""Without a chunk size, exponentials up to this many bytes are kept for the backward pass: a quarter less time."""
CHUNK_BYTES = 1 << 28
"""Otherwise the rows of a chunk are chosen to make its float32 logits this large."""
CPU_BLOCK_BYTES = 1 << 25
"""Element-wise passes on a CPU go over blocks of this size: it bounds what copies (entropy, bfloat16) add to memory."""


@dataclass(frozen=True)
class _Options:
    temperature: float
    group: dist.ProcessGroup | None
    chunk_rows: int
    """Rows whose logits exist at once."""
    keep: bool
    """Keep the exponentials of all rows for the backward pass."""
    entropy: bool
    entropy_grad: bool
    first_id: int
    """Vocabulary id of this rank's first row."""


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
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    row_bytes = max(real, 1) * dtype.itemsize
    rows = hidden.shape[0]
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    keep = needs_grad and chunk_size <= 0 and rows * row_bytes <= KEEP_BYTES
    if chunk_size <= 0:
        chunk_size = rows if keep else max(CHUNK_BYTES // row_bytes, 1)
    options = _Options(
        temperature=temperature,
        group=group if size > 1 else None,
        chunk_rows=max(chunk_size, 1),
        keep=keep,
        entropy=with_entropy,
        entropy_grad=with_entropy and entropy_grad,
        first_id=first_id,
    )
    # A view without the padding rows: autograd gives those zeros, and no masking of columns is needed.
    log_probs, entropy = _TokenLogProbs.apply(hidden, weight[:real], targets, options)
    return log_probs, entropy if with_entropy else None


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor | None]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        rows, vocab = hidden.shape[0], weight.shape[0]
        local, owned = _local_targets(targets, vocab, options)
        lowest = torch.finfo(dtype).min  # a rank without real ids: finite, and its exponentials vanish
        peak = torch.full((rows,), lowest, dtype=dtype, device=hidden.device)
        total, target, energy = (torch.zeros_like(peak) for _ in range(3))
        kept: Tensor | None = None
        for chunk in _slices(rows if vocab else 0, options.chunk_rows):
            logits = hidden[chunk] @ weight.t()
            if options.keep:
                kept = logits if logits.dtype == dtype else torch.empty_like(logits, dtype=dtype)
            for block in _slices(logits.shape[0], _block_rows(logits, dtype)):
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
        # One exchange for all chunks: first the peak, then everything relative to it.
        local_peak = peak
        if options.group is not None:
            peak = peak.clone()
            dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=options.group)
        shift = local_peak - peak
        scale = shift.exp()
        sums = torch.stack((total * scale, torch.where(owned, target + shift, 0.0), (energy + total * shift) * scale))
        if options.group is not None:
            dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=options.group)
        total, target, energy = sums
        log_total = total.log()
        entropy = log_total - energy / total if options.entropy else None

        ctx.options, ctx.kept = options, kept
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, local, owned, local_peak, shift - log_total, entropy)
        if entropy is not None and not options.entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return target - log_total, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, local, owned, peak, offset, entropy = ctx.saved_tensors
        options: _Options = ctx.options
        # Consumed in place; a second backward through the same graph recomputes.
        kept, ctx.kept = ctx.kept, None
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        if grad is None:
            grad = torch.zeros_like(peak)
        if not options.entropy_grad:
            entropy_grad = None

        rows = hidden.shape[0]
        chosen: Tensor | None = None
        if hidden.device.type == "cpu":  # on an accelerator the count would have to be waited for
            chosen = (grad != 0 if entropy_grad is None else (grad != 0) | (entropy_grad != 0)).nonzero().squeeze(1)
            rows = chosen.numel()
            if rows == hidden.shape[0]:
                chosen = None
        accumulator = _Accumulator(weight, chunks=-(-rows // options.chunk_rows)) if need_weight else None

        for chunk in _slices(rows if weight.shape[0] else 0, options.chunk_rows):
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
    options: _Options,
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
    for block in _slices(logits.shape[0], _block_rows(logits, grad.dtype)):
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


class _Accumulator:
    """Sum over chunks of ``delta.T @ part``, in float32 if there are several chunks of a narrower type."""

    def __init__(self, weight: Tensor, chunks: int) -> None:
        self.dtype = weight.dtype
        self.wide = chunks > 1 and weight.dtype not in (torch.float32, torch.float64)
        self.zero = (
            torch.zeros_like(weight, dtype=torch.float32 if self.wide else weight.dtype) if chunks != 1 else None
        )
        self.sum = self.zero

    def add(self, delta: Tensor, part: Tensor) -> None:
        if self.sum is None:
            self.sum = delta.t() @ part
        elif self.wide:
            self.sum += delta.t() @ part
        else:
            self.sum.addmm_(delta.t(), part)

    def result(self) -> Tensor | None:
        return None if self.sum is None else self.sum.to(self.dtype)


def _local_targets(targets: Tensor, vocab: int, options: _Options) -> tuple[Tensor, Tensor]:
    """Targets as row numbers of this rank's shard (0 where another rank owns them), and whether this rank owns them."""
    local = targets.long() - options.first_id
    owned = (local >= 0) & (local < vocab)
    return torch.where(owned, local, 0), owned


def _slices(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def _block_rows(logits: Tensor, dtype: torch.dtype) -> int:
    if logits.device.type != "cpu":
        return max(logits.shape[0], 1)
    return max(CPU_BLOCK_BYTES // (logits.shape[1] * dtype.itemsize), 1)
