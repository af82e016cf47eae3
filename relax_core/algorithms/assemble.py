"""The loss of a micro-batch, put together: policy, critic and supervised.

Guarantee: every term and every metric is a sum over tokens whose weights know the whole optimiser step, so that the
results of micro-batches and ranks add up to those of the step; a micro-batch without samples gives zeros under the same
names. The policy's terms come in one order: policy loss -> off-policy sequence masking -> importance correction ->
reduction -> minus entropy -> plus KL.

A trainer makes one objective for each optimiser step, calls it with each micro-batch, differentiates ``loss``, adds up
``sums`` and takes the maxima of ``largest`` over micro-batches and ranks, and passes both to ``finish``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from relax_core.algorithms.corrections import (
    Correction,
    CorrectionFunction,
    CorrectionProbe,
    importance_sums,
    mismatch_metrics,
    off_policy_sequences,
    truncate,
)
from relax_core.algorithms.kl import approx_kl
from relax_core.algorithms.loss_parts import LossOptions, LossParts, Tokens, largest_part, mean_part
from relax_core.algorithms.losses import sft_loss, value_loss
from relax_core.algorithms.metrics import effective_sample_fraction
from relax_core.algorithms.numerics import keep_where, safe_exp, widen
from relax_core.algorithms.reduce import ReducerFactory, StepSize, custom_reduction, step_weights, weighted_sum
from relax_core.algorithms.registry import EstimatorSpec
from relax_core.algorithms.sequences import Sequences

DIFFERENCE = "train_rollout_logprob_abs_diff"
PROBABILITY_DIFFERENCE = "train_rollout_prob_abs_diff"

_WEIGHTS = ("_weight_sum", "_weight_square_sum", "_weight_count")
_NLL, _TOKENS = "_nll", "_tokens"


class PolicyObjective:
    """The policy's loss in one optimiser step.

    Args:
        estimator: whose policy loss it is.
        options: see there.
        size: samples and trained tokens of the whole step, over all ranks.
        correction: in place of the built-in TIS: ``corrections.user_correction`` of a user's function. It is called
            with ``use_tis`` or ``get_mismatch_metrics``.
        reducer: in place of the mean, for the policy loss alone: a user's, see ``reduce.ReducerFactory``.
        probe: what ``corrections.probe_correction`` found for the whole step. None: with ``calculate_per_token_loss``
            the denominator stays the number of trained tokens, and a micro-batch without samples lacks the metrics of
            a user's correction.

    Raises:
        ValueError: ``get_mismatch_metrics`` without a correction.
    """

    def __init__(
        self,
        estimator: EstimatorSpec,
        options: LossOptions,
        size: StepSize,
        *,
        correction: CorrectionFunction | None = None,
        reducer: ReducerFactory | None = None,
        probe: CorrectionProbe | None = None,
    ) -> None:
        if options.get_mismatch_metrics and correction is None:
            raise ValueError("get_mismatch_metrics needs a correction")
        self._options, self._size, self._reducer = options, size, reducer
        self._kept_size = size if probe is None else replace(size, tokens=probe.kept_tokens)
        self._probed = () if probe is None else probe.metrics
        self._of_user = correction is not None
        self._correct: CorrectionFunction | None = None
        if options.use_tis or options.get_mismatch_metrics:
            self._correct = correction or partial(_built_in_correction, options)
        self._policy_loss = partial(
            estimator.load_policy_loss(), **{name: getattr(options, name) for name in estimator.loss_options}
        )
        self._sequence_loss = estimator.sequence_loss

    @property
    def entropy_grad(self) -> bool:
        """The entropy is part of the loss, and not only a metric."""
        return self._options.entropy_coef != 0

    def __call__(self, tokens: Tokens) -> LossParts:
        """A micro-batch's part.

        ``sums``: ``loss`` = ``pg_loss`` - entropy_coef ``entropy_loss`` + kl_loss_coef ``kl_loss``; ``pg_clipfrac``;
        ``ppo_kl``; ``advantage_nonzero_frac`` (0: nothing to learn from); with OPSM ``opsm_clipfrac``; with a
        correction ``ois`` (ratio new/old), ``mismatch_kl``, ``mismatch_k3_kl`` and the correction's own; with engine
        log-probs the difference to the trainer's, of log-probs and of probabilities (also in ``largest``), and what
        ``importance_ess`` is made of. All are means with the weights of the loss under the original mask.

        Raises:
            UserError: a user's function gave something else than it should.
            ValueError: an input that the options need is not given.
        """
        options, mask = self._options, tokens.mask.bool()
        current = tokens.log_probs.detach()
        old = current if tokens.old_log_probs is None else tokens.old_log_probs
        whole = {"sequences": tokens.sequences} if self._sequence_loss else {}
        policy = self._policy_loss(tokens.log_probs, old, tokens.advantages, mask=mask, **whole)
        metrics: dict[str, Tensor] = {
            "pg_clipfrac": policy.clipped,
            "ppo_kl": policy.ppo_kl,
            "advantage_nonzero_frac": tokens.advantages != 0,
        }
        losses = policy.loss
        if options.use_opsm:
            dropped = off_policy_sequences(
                current, old, tokens.advantages, mask, tokens.sequences, delta=options.opsm_delta
            )
            losses = torch.where(dropped, 0.0, losses)
            metrics["opsm_clipfrac"] = dropped
        kept: Tensor | None = None
        if self._correct is not None:
            corrected = self._corrected(self._correct, losses, tokens, mask)
            losses, kept = corrected.loss, corrected.mask
            metrics |= {"ois": safe_exp(-policy.ppo_kl), **corrected.metrics}
        if self._reducer is not None:
            pg_loss = self._reduced(self._reducer, losses, mask if kept is None else kept, tokens)
        elif kept is None:
            pg_loss = weighted_sum(losses, tokens.weights)
        else:
            pg_loss = weighted_sum(losses, self._kept_weights(kept, tokens.sequences))

        loss, parts = pg_loss, {"pg_loss": pg_loss}
        if tokens.entropy is not None:
            parts["entropy_loss"] = weighted_sum(tokens.entropy, tokens.weights)
        if self.entropy_grad:
            if tokens.entropy is None:
                raise ValueError("entropy_coef needs the entropy")
            loss = loss - options.entropy_coef * parts["entropy_loss"]
        if tokens.ref_log_probs is not None:
            unbiased = old if options.use_unbiased_kl else None
            kl = approx_kl(
                tokens.log_probs, tokens.ref_log_probs, options.kl_loss_type, unbiased_old_log_probs=unbiased, mask=mask
            )
            parts["kl_loss"] = weighted_sum(kl, tokens.weights)
            loss = loss + options.kl_loss_coef * parts["kl_loss"]

        parts = {"loss": loss, **parts}
        sums = {name: value.detach().double() for name, value in parts.items()}
        sums |= {name: mean_part(values, tokens.weights) for name, values in metrics.items()}
        largest: dict[str, Tensor] = {}
        if tokens.rollout_log_probs is not None:
            engine = tokens.rollout_log_probs
            sums |= dict(zip(_WEIGHTS, importance_sums(current, engine, mask), strict=True))
            trainer = current if tokens.train_log_probs is None and tokens.first_update else tokens.train_log_probs
            if trainer is not None:
                for name, gap in _differences(trainer, engine).items():
                    sums[name] = mean_part(gap, tokens.weights)
                    largest[f"{name}_max"] = largest_part(gap, tokens.weights)
        return LossParts(loss, sums, largest)

    def names(self, tokens: Tokens) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of ``sums`` and of ``largest``, the same for all micro-batches of a step: for the ranks that compute no
        loss (a pipeline's earlier stages) and must take part in the sum over ranks.

        Args:
            tokens: of any micro-batch, or of the whole step; only which of its fields are there matters.
        """
        columns = {field.name: getattr(tokens, field.name) for field in fields(tokens)}
        empty: dict[str, Any] = {
            name: value[:0] if isinstance(value, Tensor) else value for name, value in columns.items()
        }
        empty |= {"sequences": Sequences(tokens.sequences.offsets[:1]), "total_lengths": ()}
        with torch.no_grad():
            parts = self(Tokens(**empty))
        return tuple(parts.sums), tuple(parts.largest)

    def finish(self, sums: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
        """The step's metrics from the totals over micro-batches and ranks; ``importance_ess`` is the effective part of
        the trained tokens under the weights policy / engine."""
        metrics = {name: value for name, value in sums.items() if not name.startswith("_")}
        if _WEIGHTS[0] in sums:
            metrics["importance_ess"] = effective_sample_fraction(*(sums[name] for name in _WEIGHTS))
        return {**metrics, **largest}

    def _corrected(self, correct: CorrectionFunction, losses: Tensor, tokens: Tokens, mask: Tensor) -> Correction:
        if tokens.rollout_log_probs is None:
            raise ValueError("importance corrections need the engine's log-probabilities")
        train = tokens.log_probs.detach() if tokens.train_log_probs is None else tokens.train_log_probs
        mismatch = mismatch_metrics(train, tokens.rollout_log_probs, mask)
        if self._of_user and not len(tokens.sequences):  # a dummy has nothing for a user's function to work on
            return Correction(losses, None, mismatch | dict.fromkeys(self._probed, torch.zeros_like(train)))
        lengths = tokens.response_lengths if self._of_user else ()
        result = correct(losses, train, tokens.rollout_log_probs, mask, tokens.total_lengths, lengths)
        return result._replace(metrics={**mismatch, **result.metrics})

    def _reduced(self, reducer: ReducerFactory, losses: Tensor, mask: Tensor, tokens: Tokens) -> Tensor:
        if not len(tokens.sequences):
            return losses.sum()
        lengths = tokens.response_lengths
        return custom_reduction(
            reducer,
            keep_where(mask, losses),
            mask.split(lengths),
            tokens.total_lengths,
            lengths,
            self._kept_size,
            per_token=self._options.calculate_per_token_loss,
        )

    def _kept_weights(self, kept: Tensor, sequences: Sequences) -> Tensor:
        return step_weights(
            kept,
            sequences.offsets,
            self._kept_size,
            per_token=self._options.calculate_per_token_loss,
            token_counts=sequences.counts(kept),
        )


class ValueObjective:
    """The critic's loss in one optimiser step.

    Args:
        options: ``value_clip``.
    """

    def __init__(self, options: LossOptions) -> None:
        self._clip = options.value_clip

    def __call__(self, values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, weights: Tensor) -> LossParts:
        """A micro-batch's part; arguments [T] as in ``losses.value_loss`` and ``Tokens``.

        ``sums``: ``loss`` and the same as ``value_loss``; ``value_clipfrac``, ``value_mean``, ``return_mean``.
        """
        result = value_loss(values, old_values, returns, value_clip=self._clip, mask=mask)
        loss = weighted_sum(result.loss, weights)
        metrics = {"value_clipfrac": result.clipped, "value_mean": values, "return_mean": returns}
        sums = dict.fromkeys(("loss", "value_loss"), loss.detach().double())
        return LossParts(loss, sums | {name: mean_part(column, weights) for name, column in metrics.items()}, {})

    def finish(self, sums: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
        """The step's metrics from the totals over micro-batches and ranks."""
        return {**sums, **largest}


class SupervisedObjective:
    """The supervised loss in one optimiser step."""

    def __call__(self, log_probs: Tensor, mask: Tensor, weights: Tensor, entropy: Tensor | None = None) -> LossParts:
        """A micro-batch's part: the mean negative log-likelihood of the learned tokens, with the weights given.

        ``sums``: ``loss``, ``entropy_loss`` if there is an entropy, and what the perplexity is made of.
        """
        losses = sft_loss(log_probs, mask=mask)
        loss = weighted_sum(losses, weights)
        sums = {"loss": loss.detach().double()}
        if entropy is not None:
            sums["entropy_loss"] = mean_part(entropy, weights)
        sums[_NLL] = losses.detach().double().sum()
        sums[_TOKENS] = mask.bool().sum().double()
        return LossParts(loss, sums, {})

    def finish(self, sums: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
        """The step's metrics from the totals; ``ppl`` = e^(mean over all learned tokens), absent without tokens."""
        metrics = {name: value for name, value in sums.items() if not name.startswith("_")}
        if sums[_TOKENS]:
            nll = sums[_NLL] / sums[_TOKENS]
            metrics["ppl"] = math.exp(nll) if nll < 700 else math.inf
        return {**metrics, **largest}


def _built_in_correction(
    options: LossOptions, loss: Tensor, train: Tensor, rollout: Tensor, mask: Tensor, *_: Any
) -> Correction:
    return truncate(loss, train, rollout, mask, low=options.tis_clip_low, high=options.tis_clip)


def _differences(trainer: Tensor, engine: Tensor) -> dict[str, Tensor]:
    """[T] each."""
    trainer, engine = widen(trainer), widen(engine)
    return {DIFFERENCE: (trainer - engine).abs(), PROBABILITY_DIFFERENCE: (trainer.exp() - engine.exp()).abs()}
