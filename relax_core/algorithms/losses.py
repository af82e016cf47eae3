"""Losses of single response tokens, before any reduction.

Guarantee: inputs are packed response tokens [T] of any number of samples; a token's result depends on that token only
(GSPO: on its sample), so that packing, micro-batches and data-parallel splits cannot change it. Masked tokens give
exactly 0 and no gradient, whatever NaN or infinity they hold. For finite inputs values and gradients are finite.

A policy loss is called as ``loss(log_probs, old_log_probs, advantages, *, mask, ...)`` with the options that its
estimator's specification names (``loss_options``), under their names on the command line; one that needs whole samples
also gets ``sequences``. Below, ratio = e^(log_probs - old_log_probs) and A = advantages.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relax_core.algorithms.numerics import keep_where, log_difference, safe_exp, widen
from relax_core.algorithms.sequences import Sequences

MAX_VALUE_DIFFERENCE = 1e18
"""A difference of values is bounded here, so that its square stays finite in float32."""

SAPO_GATE = 0.9
"""SAPO clips nothing; a token counts as clipped where its gate has lowered its gradient to less than this part."""


class PolicyLoss(NamedTuple):
    """What a policy loss gives per token; all [T], float32 or wider. Only ``loss`` carries a gradient."""

    loss: Tensor
    """To be minimised."""
    clipped: Tensor
    """bool: the token's gradient was bounded."""
    ppo_kl: Tensor
    """k1 estimate of KL(old || new): old - new log-probability, detached (GSPO: the mean of the sample)."""


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
    """Clipped surrogate loss.

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
    log_ratio, advantages = _inputs(log_probs, old_log_probs, advantages, mask)
    return _clipped_surrogate(log_ratio, advantages, eps_clip, eps_clip_high, eps_clip_c)


def gspo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    eps_clip: float,
    eps_clip_high: float | None = None,
    eps_clip_c: float | None = None,
    mask: Tensor,
    sequences: Sequences,
) -> PolicyLoss:
    """Clipped surrogate loss with one ratio for each sample: the geometric mean of its tokens' ratios.

    Every unmasked token of sample i has the log-ratio sum_t m_t (new_t - old_t) / max(sum_t m_t, 1), through which the
    gradient flows, and its own A. Source: Zheng et al., "Group Sequence Policy Optimization" (2025), eq. 5 and 7; with
    an A of each token this is the gradient of eq. 5 where A is the same for a whole sample.

    Args:
        sequences: bounds of the samples, and the ranks that hold the rest of them.
        others: as ``policy_loss``.
    """
    log_ratio, advantages = _inputs(log_probs, old_log_probs, advantages, mask)
    mean = sequences.spread(sequences.means(log_ratio, mask).to(log_ratio.dtype), log_ratio.numel())
    return _clipped_surrogate(keep_where(mask, mean), advantages, eps_clip, eps_clip_high, eps_clip_c)


def sapo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    sapo_tau_pos: float,
    sapo_tau_neg: float,
    mask: Tensor | None = None,
) -> PolicyLoss:
    """A smooth gate in place of the clip: loss = -4/tau s(tau (ratio - 1)) A, with s the logistic function.

    tau is ``sapo_tau_pos`` where A > 0, else ``sapo_tau_neg``. The gradient with respect to log_probs is that of the
    unclipped surrogate, -ratio A, times 4 p (1 - p) with p = s(tau (ratio - 1)): 1 at ratio 1, falling off on both
    sides. ``clipped`` is 4 p (1 - p) < ``SAPO_GATE``. Source: Gao et al., "Soft Adaptive Policy Optimization" (2025),
    the objective and its gate.

    Args:
        sapo_tau_pos, sapo_tau_neg: temperatures, above 0.
        others: as ``policy_loss``.
    """
    log_ratio, advantages = _inputs(log_probs, old_log_probs, advantages, mask)
    tau = torch.full_like(advantages, sapo_tau_neg).masked_fill(advantages > 0, sapo_tau_pos)
    p = torch.sigmoid(tau * (safe_exp(log_ratio) - 1.0))
    gate = p.detach()
    return PolicyLoss(-4.0 / tau * p * advantages, 4.0 * gate * (1.0 - gate) < SAPO_GATE, _kl(log_ratio))


def cispo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    eps_clip: float,
    eps_clip_high: float | None = None,
    mask: Tensor | None = None,
) -> PolicyLoss:
    """REINFORCE whose importance weight is bounded, so that no token loses its gradient: loss = -c A log_probs.

    The weight c is constant: min(ratio, 1 + eps_clip_high) where A >= 0, max(ratio, 1 - eps_clip) where A < 0: bounded
    on the side that the surrogate's clip bounds. Source: MiniMax, "MiniMax-M1" (2025), eq. 4 and 5, which bounds both
    sides whatever the sign of A.

    Args:
        as ``policy_loss``.
    """
    high = eps_clip if eps_clip_high is None else eps_clip_high
    log_ratio, advantages = _inputs(log_probs, old_log_probs, advantages, mask)
    ratio = safe_exp(log_ratio.detach())
    weight = torch.where(advantages >= 0, ratio.clamp(max=1.0 + high), ratio.clamp(min=1.0 - eps_clip))
    loss = -(weight * advantages) * _bounded(keep_where(mask, log_probs))
    return PolicyLoss(loss, weight != ratio, _kl(log_ratio))


def reinforce_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, mask: Tensor | None = None
) -> PolicyLoss:
    """REINFORCE: loss = -A log_probs, with nothing clipped.

    Sources: Williams, "Simple Statistical Gradient-Following Algorithms" (1992); Ahmadian et al., "Back to Basics"
    (2024), whose RLOO estimator is this loss with leave-one-out advantages. ``old_log_probs`` is for ``ppo_kl`` only.

    Args:
        as ``policy_loss``.
    """
    log_ratio, advantages = _inputs(log_probs, old_log_probs, advantages, mask)
    loss = -advantages * _bounded(keep_where(mask, log_probs))
    return PolicyLoss(loss, torch.zeros_like(advantages, dtype=torch.bool), _kl(log_ratio))


class ValueLoss(NamedTuple):
    """What the critic's loss gives per token, both [T]."""

    loss: Tensor
    """To be minimised; carries the gradient."""
    clipped: Tensor
    """bool: the value has moved further than the clip range."""


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float, mask: Tensor | None = None
) -> ValueLoss:
    """Clipped squared error: max((V - R)², (clip(V, V_old - value_clip, V_old + value_clip) - R)²), without a half.

    Source: Schulman et al., "Proximal Policy Optimization Algorithms" (2017), L^VF of eq. 9, with the clip of the
    authors' implementation (OpenAI Baselines, ppo2).

    Args:
        values: [T] of the critic being trained; carries the gradient.
        old_values: [T] of the critic before the rollout step's first update.
        returns: [T] targets.
        value_clip: how far a value may move before its gradient stops, in units of the reward.
        mask: [T]; None trains every token.
    """
    values = widen(keep_where(mask, values))
    old_values, returns = (widen(keep_where(mask, x)).detach() for x in (old_values, returns))
    bounded = torch.clamp(values, old_values - value_clip, old_values + value_clip)
    loss = torch.maximum(_square(values - returns), _square(bounded - returns))
    return ValueLoss(loss, ((values - old_values).abs() > value_clip).detach())


def sft_loss(log_probs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Negative log-likelihood of each learned token, [T].

    Args:
        log_probs: [T] of the given tokens; carries the gradient.
        mask: [T], 1 where the token is learned; None learns every token.
    """
    return -_bounded(keep_where(mask, log_probs))


def _inputs(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The log-ratio (with gradient) and the advantages (without), 0 where masked."""
    old = keep_where(mask, old_log_probs).detach()
    log_ratio = log_difference(keep_where(mask, log_probs), old)
    return log_ratio, widen(keep_where(mask, advantages)).detach()


def _clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float | None, eps_clip_c: float | None
) -> PolicyLoss:
    high = eps_clip if eps_clip_high is None else eps_clip_high
    ratio = safe_exp(log_ratio)
    plain = -ratio * advantages
    bounded = -ratio.clamp(1.0 - eps_clip, 1.0 + high) * advantages
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if eps_clip_c is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -eps_clip_c * advantages), loss)
    return PolicyLoss(loss, clipped.detach(), _kl(log_ratio))


def _kl(log_ratio: Tensor) -> Tensor:
    return -log_ratio.detach()


def _bounded(log_probs: Tensor) -> Tensor:
    """Log-probabilities whose product with a weight stays finite."""
    return log_difference(log_probs, torch.zeros_like(log_probs))


def _square(difference: Tensor) -> Tensor:
    return difference.clamp(-MAX_VALUE_DIFFERENCE, MAX_VALUE_DIFFERENCE).square()
