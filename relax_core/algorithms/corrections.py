"""What makes up for samples that another policy, or another implementation of the policy, has drawn.

Guarantee: corrections are constants of the gradient: they weight, bound or leave out tokens and never carry one
themselves. For finite log-probabilities weights are finite; masked tokens keep the loss 0 whatever they hold.

Two sources of difference: the weights have moved since the rollout (``old`` against ``new``: off-policy sequence
masking), and trainer and engine disagree about the same weights (``train`` against ``rollout``: importance weights).
w = e^(train - rollout) is the raw weight of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from data.errors import UserError
from relax_core.algorithms.kl import approx_kl
from relax_core.algorithms.loss_parts import Tokens
from relax_core.algorithms.numerics import keep_where, log_difference, safe_exp
from relax_core.algorithms.sequences import Sequences


def off_policy_sequences(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, sequences: Sequences, *, delta: float
) -> Tensor:
    """Tokens that off-policy sequence masking leaves out: A_t < 0 in a sample with mean(old - new) > delta.

    The mean is over the unmasked tokens of the whole sample. Source: DeepSeek-AI, "DeepSeek-V3.2" (2025), off-policy
    sequence masking.

    Args:
        log_probs, old_log_probs, advantages, mask: [T].
        delta: nats a token, --opsm-delta.

    Returns:
        [T] bool.
    """
    moved = log_difference(keep_where(mask, old_log_probs), keep_where(mask, log_probs)).detach()
    far = sequences.means(moved, mask) > delta
    return sequences.spread(far, mask.numel()) & (keep_where(mask, advantages) < 0)


class Correction(NamedTuple):
    """What an importance correction gives."""

    loss: Tensor
    """[T] policy loss of each token; carries the gradient."""
    mask: Tensor | None
    """[T] bool: the tokens over which it is averaged from now on. None: the same ones."""
    metrics: Mapping[str, Tensor]
    """[T] values each, averaged over the original mask."""


CorrectionFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Sequence[int], Sequence[int]], Correction]
"""``(loss, train_log_probs, rollout_log_probs, mask, total_lengths, response_lengths) -> Correction``: [T] tensors, and
for each sample its tokens with and without the prompt."""


def importance_weights(train_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """w = e^(train - rollout), [T], detached; 1 where masked."""
    difference = log_difference(keep_where(mask, train_log_probs), keep_where(mask, rollout_log_probs))
    return safe_exp(difference.detach())


def truncate(
    loss: Tensor, train_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, *, low: float, high: float
) -> Correction:
    """Truncated importance sampling (TIS): the loss x clip(w, low, high).

    Source: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025); with a lower
    bound as an option.

    Args:
        loss, train_log_probs, rollout_log_probs, mask: [T].
        low, high: --tis-clip-low, --tis-clip.
    """
    raw = importance_weights(train_log_probs, rollout_log_probs, mask)
    return _weighted(loss, raw, raw.clamp(low, high), mask)


def discard(
    loss: Tensor, train_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, *, low: float, high: float
) -> Correction:
    """IcePop: the loss x w where low <= w <= high, else x 0; the mean is still over all tokens.

    Source: Ling Team, "Every Step Evolves" (2025), IcePop. Arguments as ``truncate``.
    """
    raw = importance_weights(train_log_probs, rollout_log_probs, mask)
    return _weighted(loss, raw, torch.where((raw >= low) & (raw <= high), raw, 0.0), mask)


def reject(
    loss: Tensor, train_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, *, low: float, high: float
) -> Correction:
    """Rejection: tokens outside low <= w <= high are not there: the mean is over the others, unweighted.

    Arguments as ``truncate``. Metrics as of the others; ``tis_clipfrac`` is the part that is rejected.
    """
    raw = importance_weights(train_log_probs, rollout_log_probs, mask)
    kept = (raw >= low) & (raw <= high) & mask.bool()
    result = _weighted(loss, raw, torch.where(kept, 1.0, 0.0), mask)
    metrics = {**result.metrics, "tis_clipfrac": (mask.bool() & ~kept).to(raw.dtype)}
    return Correction(result.loss, kept, metrics)


def _weighted(loss: Tensor, raw: Tensor, weights: Tensor, mask: Tensor) -> Correction:
    """``tis``: raw weights; ``tis_clipfrac``: tokens whose weight was changed; ``tis_abs``: |w - 1|."""
    metrics = {"tis": raw, "tis_clipfrac": (weights != raw).to(raw.dtype), "tis_abs": (raw - 1.0).abs()}
    return Correction(keep_where(mask, loss) * weights, None, metrics)


def mismatch_metrics(train_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How far trainer and engine are apart under the same weights, per token.

    Returns:
        ``mismatch_kl`` = train - rollout; ``mismatch_k3_kl`` = w - 1 - log w, the k3 estimate of KL(rollout || train),
        never negative. Both [T], 0 where masked.
    """
    train, rollout = keep_where(mask, train_log_probs).detach(), keep_where(mask, rollout_log_probs).detach()
    return {"mismatch_kl": log_difference(train, rollout), "mismatch_k3_kl": approx_kl(rollout, train, "k3")}


def importance_sums(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Sum of weights, sum of their squares and number of unmasked tokens, for ``effective_sample_fraction``.

    Returns:
        float64 [3]; adds up over micro-batches and ranks.
    """
    weights = keep_where(mask, importance_weights(log_probs.detach(), rollout_log_probs, mask)).double()
    return torch.stack((weights.sum(), weights.square().sum(), mask.bool().sum().double()))


# -- functions of the user ---------------------------------------------------------------------------------------------


def user_correction(function: Callable[..., Any], args: Any) -> CorrectionFunction:
    """A user's function (``--custom-tis-function-path``) as a correction.

    It is called as ``function(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths,
    response_lengths)``: ``args`` is a namespace of all options, ``pg_loss`` the packed tokens [T], and the others are
    lists with one entry for each sample of the micro-batch. It returns ``(pg_loss, loss_masks, metrics)``: the loss
    [T], the masks to average over (a list like the one given), and a dictionary of metrics, each [T]. Under context
    parallelism all of them hold this rank's tokens.

    Raises (when it is called):
        UserError: a result of another form.
    """

    def correct(
        loss: Tensor,
        train_log_probs: Tensor,
        rollout_log_probs: Tensor,
        mask: Tensor,
        total_lengths: Sequence[int],
        response_lengths: Sequence[int],
    ) -> Correction:
        lengths = list(response_lengths)
        result = function(
            args,
            pg_loss=loss,
            train_log_probs=list(train_log_probs.split(lengths)),
            rollout_log_probs=list(rollout_log_probs.split(lengths)),
            loss_masks=list(mask.split(lengths)),
            total_lengths=list(total_lengths),
            response_lengths=lengths,
        )
        if not isinstance(result, tuple) or len(result) != 3:
            raise _wrong(f"returned {type(result).__name__}")
        new_loss, masks, metrics = result
        if not isinstance(new_loss, Tensor) or new_loss.shape != loss.shape:
            raise _wrong(f"returned no loss of the {loss.numel()} tokens")
        if [len(part) for part in masks] != lengths:
            raise _wrong("returned masks of other lengths than the responses'")
        for name, values in metrics.items():
            if not isinstance(values, Tensor) or values.shape != loss.shape:
                raise _wrong(f"returned a metric '{name}' that has no value for each token")
        kept = torch.cat([part.bool() for part in masks]) & mask.bool()
        return Correction(keep_where(mask, new_loss), kept, {name: value.detach() for name, value in metrics.items()})

    return correct


@dataclass(frozen=True)
class CorrectionProbe:
    """What a user's correction does to a whole optimiser step.

    Args:
        kept_tokens: tokens that its masks leave.
        metrics: names of its metrics.
    """

    kept_tokens: int
    metrics: tuple[str, ...]


def probe_correction(correction: CorrectionFunction, step: Tokens) -> CorrectionProbe:
    """Ask a correction about an optimiser step beforehand, with a loss of 0 everywhere.

    Args:
        correction: of a user; its masks must not depend on the loss.
        step: all samples of the step over all ranks, with ``train_log_probs``.

    Raises:
        ValueError: without the recomputed log-probs nothing is known before the step.
    """
    if step.train_log_probs is None or step.rollout_log_probs is None:
        raise ValueError("a correction can be asked only after the pass that recomputes log-probs")
    train, mask = step.train_log_probs, step.mask.bool()
    lengths = step.response_lengths
    result = correction(torch.zeros_like(train), train, step.rollout_log_probs, mask, step.total_lengths, lengths)
    return CorrectionProbe(int((mask if result.mask is None else result.mask).sum()), tuple(result.metrics))


def _wrong(what: str) -> UserError:
    return UserError(
        f"The function of --custom-tis-function-path {what}.",
        "It returns (pg_loss, loss_masks, metrics): the loss of all tokens, one mask a response, and a dictionary of"
        " tensors like the loss.",
    )


def tis_function(args: Any, **inputs: Any) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """``truncate`` as --custom-tis-function-path."""
    return _as_user_function(truncate, args, **inputs)


def icepop_function(args: Any, **inputs: Any) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """``discard`` as --custom-tis-function-path."""
    return _as_user_function(discard, args, **inputs)


def rejection_function(args: Any, **inputs: Any) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """``reject`` as --custom-tis-function-path."""
    return _as_user_function(reject, args, **inputs)


def _as_user_function(
    correct: Callable[..., Correction],
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **_: Any,
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    train, rollout, mask = (torch.cat(list(parts)) for parts in (train_log_probs, rollout_log_probs, loss_masks))
    result = correct(pg_loss, train, rollout, mask, low=args.tis_clip_low, high=args.tis_clip)
    masks = loss_masks if result.mask is None else result.mask.split([len(part) for part in loss_masks])
    return result.loss, list(masks), dict(result.metrics)
