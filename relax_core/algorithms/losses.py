"""Policy losses of single response tokens, before any reduction.

Guarantee: inputs are packed response tokens [T] of any number of samples; a token's result depends on that token only,
so that packing, micro-batches and data-parallel splits cannot change it. Masked tokens give exactly 0 and no gradient,
whatever NaN or infinity they hold. For finite inputs values and gradients are finite.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relax_core.algorithms.numerics import keep_where, log_difference, safe_exp, widen


class PolicyLoss(NamedTuple):
    """What a policy loss gives per token; all [T], float32 or wider. Only ``loss`` carries a gradient."""

    loss: Tensor
    """To be minimised."""
    clipped: Tensor
    """bool: the clipped branch is the larger one."""
    ppo_kl: Tensor
    """k1 estimate of KL(old || new): old - new log-probability, detached."""


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    eps_clip: float,
    eps_clip_high: float | None = None,
    eps_clip_c: float | None = None,
    mask: Tensor | None = None,
) -> PolicyLoss:
    """Clipped surrogate loss, with ratio = e^(log_probs - old_log_probs) and A = advantages.

    loss = max(-ratio A, -clip(ratio, 1 - eps_clip, 1 + eps_clip_high) A); where A < 0 and ``eps_clip_c`` is given it is
    bounded above by -eps_clip_c A. Sources: Schulman et al., "Proximal Policy Optimization Algorithms" (2017), eq. 7;
    Yu et al., "DAPO" (2025), eq. 10 (separate upper clip); Ye et al., "Mastering Complex Control in MOBA Games" (2020),
    eq. 5 (dual clip).

    Args:
        log_probs: [T] under the policy being trained; carries the gradient.
        old_log_probs: [T] under the policy of the ratio's denominator; treated as constant.
        advantages: [T]; treated as constant.
        eps_clip: lower clip range, e.g. 0.2.
        eps_clip_high: upper clip range; None takes ``eps_clip``.
        eps_clip_c: dual-clip bound, above 1; None leaves the dual clip out.
        mask: [T] of 0 and 1; None trains every token.
    """
    high = eps_clip if eps_clip_high is None else eps_clip_high
    log_probs = keep_where(mask, log_probs)
    old_log_probs = keep_where(mask, old_log_probs).detach()
    advantages = widen(keep_where(mask, advantages)).detach()

    log_ratio = log_difference(log_probs, old_log_probs)
    ratio = safe_exp(log_ratio)
    plain = -ratio * advantages
    bounded = -ratio.clamp(1.0 - eps_clip, 1.0 + high) * advantages
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if eps_clip_c is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -eps_clip_c * advantages), loss)
    return PolicyLoss(loss, clipped.detach(), -log_ratio.detach())
