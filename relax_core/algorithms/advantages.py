"""Advantages and returns of response tokens.

Guarantee: pure functions of packed arrays [T]; sample i owns ``offsets[i]:offsets[i + 1]``. A sample without a score
gets zeros; that it also weighs nothing in the loss (whose KL term needs no advantage) is the loss mask's task. Where an
estimator sums along a response, masked tokens are not there: they take no reward, no KL, no discount and no value, and
get 0; what they hold, NaN included, reaches no other token. No Python loop over tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from relax_core.algorithms.blockwise import blocks, clear_masked, spans
from relax_core.algorithms.scan import discounted_sums
from relax_core.algorithms.whitening import SumOverRanks, whiten

if TYPE_CHECKING:
    from relax_core.algorithms.registry import EstimatorSpec


@dataclass(frozen=True)
class AdvantageOptions:
    """Options that estimators read, under their names on the command line."""

    gamma: float = 1.0
    """Discount from token to token, 0 to 1."""
    lambd: float = 1.0
    """Lambda of generalised advantage estimation, 0 to 1."""
    kl_coef: float = 0.0
    """Weight of the KL in the reward."""
    kl_loss_type: str = "k1"
    """Estimator of that KL."""

    @classmethod
    def of(cls, options: Any) -> AdvantageOptions:
        """From attributes of these names (a namespace of all options)."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class AdvantageInputs:
    """What an estimator may use."""

    rewards: NDArray[np.float64]
    """[N] normalised rewards; NaN = no score."""
    offsets: NDArray[np.int64]
    """[N + 1] bounds of the samples among the T response tokens."""
    loss_mask: NDArray[np.uint8]
    """[T] 1 where the token is trained."""
    options: AdvantageOptions = AdvantageOptions()
    values: NDArray[np.float32] | None = None
    """[T] of the critic, for estimators that need one."""
    old_log_probs: NDArray[np.float32] | None = None
    """[T] of the policy that is trained, before the rollout step's first update."""
    ref_log_probs: NDArray[np.float32] | None = None
    """[T] of the reference policy; needed with ``old_log_probs`` where ``kl_coef`` is not 0."""


@dataclass(frozen=True)
class Advantages:
    """What an estimator gives, all [T] float32."""

    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]
    kl: NDArray[np.float32] | None = None
    """KL to the reference that went into the rewards; 0 where masked. None: none did."""
    opd_reverse_kl: NDArray[np.float32] | None = None
    """Student's - teacher's log-probability; 0 where masked. None without on-policy distillation."""


def spread_over_tokens(inputs: AdvantageInputs) -> Advantages:
    """A_t = r for every token of the response, and returns = advantages.

    Masked tokens get r too: an estimator of one number per sample has nothing to mask, and the loss selects the tokens.
    Source: Shao et al., "DeepSeekMath" (2024), section 4.1.2 (outcome supervision).
    """
    per_sample = np.nan_to_num(inputs.rewards, nan=0.0).astype(np.float32)
    values = np.repeat(per_sample, np.diff(inputs.offsets))
    return Advantages(values, values)


def spread_over_trained_tokens(inputs: AdvantageInputs) -> Advantages:
    """A_t = r m_t, and returns = advantages: 0 where masked.

    Source: Hu et al., "REINFORCE++" (2025), the variant with a group's mean as baseline.
    """
    values = spread_over_tokens(inputs).advantages
    values[inputs.loss_mask == 0] = 0.0
    return Advantages(values, values)


def discounted_returns(inputs: AdvantageInputs) -> Advantages:
    """A_t = returns_t = rho_t + gamma A_{t+1} along the trained tokens of each response.

    rho_t = -kl_coef KL_t, plus the sample's reward on its last trained token. Source: Hu et al., "REINFORCE++" (2025):
    token rewards with a KL penalty and their discounted sum (whitened afterwards, see ``whiten``).

    Raises:
        ValueError: ``kl_coef`` without log-probabilities.
    """
    gamma = inputs.options.gamma

    def estimate(part: _Trained) -> tuple[NDArray, ...]:
        return (discounted_sums(part.rewards, part.offsets, gamma),)

    (returns,), kl = _along_trained_tokens(inputs, estimate, 1)
    return Advantages(returns, returns, kl)


def generalized_advantages(inputs: AdvantageInputs) -> Advantages:
    """Generalised advantage estimation along the trained tokens of each response.

    delta_t = rho_t + gamma V_{t+1} - V_t with V = 0 after the last one, A_t = delta_t + gamma lambda A_{t+1},
    returns_t = A_t + V_t; rho as in ``discounted_returns``. Source: Schulman et al., "High-Dimensional Continuous
    Control Using Generalized Advantage Estimation" (2016), eq. 16.

    Raises:
        ValueError: no values, or ``kl_coef`` without log-probabilities.
    """
    gamma, decay = inputs.options.gamma, inputs.options.gamma * inputs.options.lambd
    if inputs.values is None:
        raise ValueError("generalised advantage estimation needs the critic's values")

    def estimate(part: _Trained) -> tuple[NDArray, ...]:
        assert part.values is not None
        values = part.values.astype(np.float64)
        following = np.multiply(values, gamma)
        following[part.first] = 0.0  # none follows a sample's last token
        deltas = part.rewards
        deltas[:-1] += following[1:]
        deltas -= values
        advantages = discounted_sums(deltas, part.offsets, decay)
        return advantages, np.add(advantages, values, out=values)

    (advantages, returns), kl = _along_trained_tokens(inputs, estimate, 2)
    return Advantages(advantages, returns, kl)


@dataclass(frozen=True)
class _Trained:
    """The trained tokens of some samples, packed; [t] of them."""

    offsets: NDArray[np.int64]
    first: NDArray[np.int64]
    """Places of the first trained token of each sample that has one."""
    rewards: NDArray[np.float64]
    """[t]; may be overwritten."""
    values: NDArray[np.float32] | None


def _along_trained_tokens(
    inputs: AdvantageInputs, estimate: Callable[[_Trained], tuple[NDArray, ...]], count: int
) -> tuple[list[NDArray[np.float32]], NDArray[np.float32] | None]:
    """The ``count`` columns that ``estimate`` gives, which never sees a masked token; and the KL in the rewards."""
    total = len(inputs.loss_mask)
    columns = [np.zeros(total, np.float32) for _ in range(count)]
    kl = np.zeros(total, np.float32) if inputs.options.kl_coef else None
    for samples, tokens in blocks(inputs.offsets):
        rewards = inputs.rewards[samples]
        offsets = inputs.offsets[samples.start : samples.stop + 1] - tokens.start
        kept = inputs.loss_mask[tokens] != 0
        if np.isnan(rewards).any():
            kept &= np.repeat(~np.isnan(rewards), np.diff(offsets))
        places: NDArray[np.int64] | None = None  # of the trained tokens, where there are others
        if not kept.all():
            places = np.flatnonzero(kept)
            offsets = np.searchsorted(places, offsets)
        trained = np.diff(offsets) > 0
        if kl is None:
            shaped = np.zeros(offsets[-1])
        else:
            own = kl[tokens]
            own[:] = _reward_kl(inputs, tokens)
            shaped = np.multiply(_pick(own, places), -inputs.options.kl_coef, dtype=np.float64)
            if places is not None:
                clear_masked(own, kept)
        shaped[offsets[1:][trained] - 1] += rewards[trained]
        values = None if inputs.values is None else _pick(inputs.values[tokens], places)
        found = estimate(_Trained(offsets, offsets[:-1][trained], shaped, values))
        for column, estimated in zip(columns, found, strict=True):
            if places is None:
                column[tokens] = estimated
            else:  # float32 first: numpy places values of the same type much faster
                column[tokens][places] = estimated.astype(np.float32)
    return columns, kl


def _pick(column: NDArray, places: NDArray[np.int64] | None) -> NDArray:
    return column if places is None else column.take(places)


def _reward_kl(inputs: AdvantageInputs, tokens: slice) -> NDArray[np.float32]:
    """KL of each token of a block."""
    import torch  # advantages without a KL need none

    from relax_core.algorithms.kl import approx_kl

    if inputs.old_log_probs is None or inputs.ref_log_probs is None:
        raise ValueError("a KL in the reward needs the old and the reference policy's log-probabilities")
    # Columns of a table are read-only, which torch does not know: those are copied.
    old, reference = (
        torch.from_numpy(np.require(column[tokens], np.float32, "W"))
        for column in (inputs.old_log_probs, inputs.ref_log_probs)
    )
    return approx_kl(old, reference, inputs.options.kl_loss_type).numpy()


def subtract_reverse_kl(
    result: Advantages,
    student_log_probs: NDArray[np.float32],
    teacher_log_probs: NDArray[np.float32],
    loss_mask: NDArray[np.uint8],
    coefficient: float,
) -> Advantages:
    """On-policy distillation: A_t - coefficient (student_t - teacher_t) at trained tokens; returns stay.

    The reverse KL of the sampled token, as a constant in the advantage of any estimator. Sources: Agarwal et al.,
    "On-Policy Distillation of Language Models" (2024); Gu et al., "MiniLLM" (2024), whose objective is this KL.

    Args:
        student_log_probs, teacher_log_probs: [T] of the sampled tokens, at one temperature.
        loss_mask: [T].
        coefficient: --opd-kl-coef.

    Raises:
        UserError: a trained token without a finite log-probability.
    """
    gap, advantages = np.empty(len(loss_mask), np.float32), np.empty(len(loss_mask), np.float32)
    for tokens in spans(len(loss_mask)):
        own, kept = gap[tokens], loss_mask[tokens] != 0
        with np.errstate(invalid="ignore"):  # infinite on both sides: told below
            np.subtract(student_log_probs[tokens], teacher_log_probs[tokens], out=own, casting="same_kind")
        if not kept.all():
            clear_masked(own, kept)
        if not np.isfinite(own).all():
            place = tokens.start + int(np.argmin(np.isfinite(own)))
            raise UserError(
                f"Response token {place} of the batch has log-probability {student_log_probs[place]} by the student and"
                f" {teacher_log_probs[place]} by the teacher.",
                "The teacher must give a log-probability for every sampled token: does it have the student's"
                " tokenizer?",
            )
        np.subtract(result.advantages[tokens], np.float32(coefficient) * own, out=advantages[tokens])
    return replace(result, advantages=advantages, opd_reverse_kl=gap)


def compute_advantages(
    spec: EstimatorSpec,
    inputs: AdvantageInputs,
    *,
    teacher_log_probs: NDArray[np.float32] | None = None,
    opd_kl_coef: float = 1.0,
    normalize: bool = False,
    sum_over_ranks: SumOverRanks | None = None,
) -> Advantages:
    """The advantage stage: the estimator, then on-policy distillation, then whitening. Returns are the estimator's.

    Args:
        spec: the estimator.
        inputs: for it; ``old_log_probs`` are the student's.
        teacher_log_probs: [T]; None: no distillation.
        opd_kl_coef: its weight.
        normalize: --normalize-advantages.
        sum_over_ranks: as in ``whiten``.

    Raises:
        UserError: see ``subtract_reverse_kl``.
        ValueError: an input that the estimator needs is not given.
    """
    result = spec.load_advantages()(inputs)
    if teacher_log_probs is not None:
        if inputs.old_log_probs is None:
            raise ValueError("on-policy distillation needs the student's log-probabilities")
        result = subtract_reverse_kl(result, inputs.old_log_probs, teacher_log_probs, inputs.loss_mask, opd_kl_coef)
    if normalize:
        advantages = whiten(result.advantages, inputs.loss_mask, spec.whitening, sum_over_ranks)
        result = replace(result, advantages=advantages)
    return result
