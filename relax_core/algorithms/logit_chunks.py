"""Softmax statistics of a chunk of logits and the gradient back to it, each one pass over the chunk.

Guarantee: the formulas of ``relax_core.algorithms.logprobs``, in float32 from logits of any type (float64 of float64).
Compiled on a GPU they read the chunk once and write nothing of its size but the gradient.

Shapes: R rows, V vocabulary rows of this rank. With ``z = logits / temperature`` and ``E = exp(z - max z)``.
"""

import torch
from torch import Tensor

from relax_core.algorithms.compiled import compiled
from relax_core.algorithms.logprobs_parts import wide


@compiled
def chunk_statistics(logits: Tensor, local: Tensor, inverse: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Largest ``z``, ``sum E``, ``z - max z`` of the target and ``sum E (z - max z)`` of each row.

    Args:
        logits: [R, V], before the temperature.
        local: [R] int64, the target's column; any column where this rank does not have it.
        inverse: 1 / temperature.

    Returns:
        Four float32 [R].
    """
    z = logits.to(wide(logits.dtype)) * inverse
    peak = z.amax(1)
    z = z - peak[:, None]
    exponential = z.exp()
    target = (logits.gather(1, local[:, None]).to(peak.dtype) * inverse).squeeze(1) - peak
    return peak, exponential.sum(1), target, (exponential * z).sum(1)


@compiled
def chunk_gradient(
    logits: Tensor, peak: Tensor, local: Tensor, inverse: float, factor: Tensor, picked: Tensor
) -> Tensor:
    """Gradient with respect to the logits where only log-probabilities have one: ``factor E``, and ``picked`` more at
    the target.

    Args:
        logits, local, inverse: as of ``chunk_statistics``.
        peak: [R] float32, as it gives it.
        factor: [R] float32: - gradient / (sum E x temperature).
        picked: [R] float32: gradient / temperature; 0 where this rank does not have the target.

    Returns:
        [R, V] in the type of the logits.
    """
    slope = (logits.to(wide(logits.dtype)) * inverse - peak[:, None]).exp() * factor[:, None]
    return _with_target(slope, local, picked).to(logits.dtype)


@compiled
def chunk_gradient_with_entropy(
    logits: Tensor,
    peak: Tensor,
    local: Tensor,
    inverse: float,
    factor: Tensor,
    picked: Tensor,
    grad: Tensor,
    entropy_grad: Tensor,
    shift: Tensor,
) -> Tensor:
    """As ``chunk_gradient`` where the entropy has a gradient too.

    Args:
        factor: [R] float32: - 1 / (sum E x temperature).
        grad, entropy_grad: [R] float32, of the log-probability and of the entropy.
        shift: [R] float32: entropy - log sum E, so that ``z - max z + shift`` is log p + entropy.

    Returns:
        [R, V] in the type of the logits.
    """
    z = logits.to(wide(logits.dtype)) * inverse - peak[:, None]
    slope = (z + shift[:, None]) * entropy_grad[:, None] + grad[:, None]
    return _with_target(z.exp() * slope * factor[:, None], local, picked).to(logits.dtype)


def _with_target(gradient: Tensor, local: Tensor, picked: Tensor) -> Tensor:
    """``picked`` more in the target's column: by a comparison, which is part of the same pass."""
    columns = torch.arange(gradient.shape[1], device=gradient.device)
    return gradient + torch.where(columns[None, :] == local[:, None], picked[:, None], 0.0)
