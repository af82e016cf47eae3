"""Per-token estimators of the KL divergence from a reference policy.

Guarantee: exact up to gaps of 20 nats on the side that grows exponentially and of 1e6 nats elsewhere. For any finite
inputs in float32 and bfloat16 values and gradients are finite; beyond those bounds no gradient has the wrong sign.

Source: J. Schulman, "Approximating KL Divergence" (2020), estimators k1, k2, k3.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from data.errors import UserError
from relax_core.algorithms.numerics import keep_where, log_difference, safe_exp, safe_expm1

KLKind = Literal["k1", "k2", "k3", "low_var_kl"]
KL_KINDS: tuple[str, ...] = get_args(KLKind)

LOW_VAR_BOUND = 10.0
"""``low_var_kl`` is k3 clamped to ± this."""


def approx_kl(
    log_probs: Tensor,
    ref_log_probs: Tensor,
    kind: str,
    *,
    unbiased_old_log_probs: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """KL estimate of each token, with d = log_probs - ref_log_probs.

    k1: d; k2: d²/2; k3: e^-d - 1 + d; low_var_kl: k3 clamped to [-10, 10] (no gradient beyond).

    Args:
        log_probs: [T] under the policy; the gradient flows through them.
        ref_log_probs: [T] under the reference policy.
        kind: one of ``KL_KINDS``.
        unbiased_old_log_probs: [T] under the policy that sampled the tokens. If given, the estimate is multiplied by
            the importance ratio e^(log_probs - old), gradient included, before the clamp.
        mask: [T]; tokens with 0 get the value 0 and no gradient whatever their inputs hold.

    Returns:
        [T] float32 (float64 for float64 inputs).

    Raises:
        UserError: unknown kind.
    """
    if kind not in KL_KINDS:
        raise UserError(f"--kl-loss-type is '{kind}'.", f"Choose one of {', '.join(KL_KINDS)}.")
    log_probs, ref_log_probs = keep_where(mask, log_probs), keep_where(mask, ref_log_probs)
    gap = log_difference(log_probs, ref_log_probs)
    if kind == "k1":
        estimate = gap
    elif kind == "k2":
        estimate = gap.square() / 2
    else:
        estimate = safe_expm1(-gap) + gap
    if unbiased_old_log_probs is not None:
        old = keep_where(mask, unbiased_old_log_probs)
        estimate = estimate * safe_exp(log_difference(log_probs, old))
    if kind == "low_var_kl":
        estimate = torch.clamp(estimate, -LOW_VAR_BOUND, LOW_VAR_BOUND)
    return estimate
