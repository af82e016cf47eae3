"""The policy's loss and the metrics of an optimiser step, as sums over micro-batches.

Guarantee: every term is a sum over tokens of values x weights whose weights know the whole optimiser step, so that
packing, micro-batches and ranks change neither loss nor metric beyond rounding; a fully masked sample adds exactly 0.
All ranks have the same metrics under the same names, also those that compute no loss.

Formulas and metrics are those of ``relax_core.algorithms.assemble.PolicyObjective``; all means use the weights of the
loss: over samples of their token means, or over tokens. ``train_rollout_logprob_abs_diff`` is the mean of
|trainer's - engine's log-probability| of the same token under the weights before the rollout step's first update.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from data.errors import UserError
from relax_core.algorithms.assemble import PolicyObjective
from relax_core.algorithms.corrections import CorrectionProbe, probe_correction
from relax_core.algorithms.loss_parts import LossOptions, Tokens
from relax_core.algorithms.reduce import StepSize, step_weights
from relax_core.algorithms.registry import get_estimator
from relax_core.algorithms.sequences import Sequences
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import Columns, MicroBatch, TrainingBatch
from relax_core.training.hooks import LossFunctions


@dataclass(frozen=True)
class Scores:
    """Log-probabilities that the loss compares with, float32 [R] on the CPU; None where they are not needed.

    Args:
        old: of the policy in the denominator of the ratio. None: the current policy's own, detached. With one optimiser
            step a rollout these are what a pass before it would give, since the weights are the same: the ratio is 1.
        reference: of the reference policy.
        trainer: of the weights before the rollout step's first update, where a pass computed them.
    """

    old: Tensor | None = None
    reference: Tensor | None = None
    trainer: Tensor | None = None


def loss_options(config: RelaxConfig) -> LossOptions:
    """What the policy's loss takes of the options."""
    options = config.algorithm
    return LossOptions(
        eps_clip=options.eps_clip,
        eps_clip_high=options.eps_clip_high,
        eps_clip_c=options.eps_clip_c,
        sapo_tau_pos=options.sapo_tau_pos,
        sapo_tau_neg=options.sapo_tau_neg,
        entropy_coef=options.entropy_coef,
        kl_loss_coef=options.kl_loss_coef,
        kl_loss_type=options.kl_loss_type,
        use_unbiased_kl=options.use_unbiased_kl,
        use_opsm=options.use_opsm,
        opsm_delta=options.opsm_delta,
        use_tis=options.use_tis,
        tis_clip=options.tis_clip,
        tis_clip_low=options.tis_clip_low,
        get_mismatch_metrics=options.get_mismatch_metrics,
        calculate_per_token_loss=config.optimizer.calculate_per_token_loss,
    )


def weigh(
    batch: TrainingBatch, samples: tuple[int, int], per_token: bool, size: StepSize | None = None
) -> tuple[StepSize, Tensor]:
    """The size of an optimiser step, and what each token of the batch weighs in it.

    Args:
        samples: first and last + 1 sample of the step: consecutive samples of the batch.
        per_token: ``--calculate-per-token-loss``.
        size: of the step, where these samples are a part of it. Default: they are all.

    Returns:
        The size, and float32 [R], 0 outside the step.
    """
    offsets = batch.response_offsets[samples[0] : samples[1] + 1]
    own = slice(int(offsets[0]), int(offsets[-1]))
    mask = batch.mask[own]
    size = size or StepSize(samples[1] - samples[0], int(mask.sum()))
    weights = torch.zeros(batch.num_response_tokens)
    weights[own] = step_weights(mask, torch.from_numpy(offsets - offsets[0]), size, per_token=per_token)
    return size, weights


class StepLoss:
    """The loss of one optimiser step.

    Args:
        samples: first and last + 1 sample of the step: consecutive samples of the batch.
        first: the step is the rollout's first, so that its weights are those that generated.
        functions: of the user.
        size: of the step, where these samples are a part of it.

    Attributes:
        weights: float32 [R] of each token of the batch in this step; 0 outside.
        sums: names of the metrics that add up over micro-batches and ranks.
        largest: names of those of which the step's is the largest.
    """

    def __init__(
        self,
        config: RelaxConfig,
        batch: TrainingBatch,
        scores: Scores,
        samples: tuple[int, int],
        first: bool,
        functions: LossFunctions = LossFunctions(),  # noqa: B008  (never changed)
        size: StepSize | None = None,
    ) -> None:
        self._first = first
        options = loss_options(config)
        size, self.weights = weigh(batch, samples, options.calculate_per_token_loss, size)
        self._columns = Columns(
            advantages=batch.advantages,
            mask=batch.mask,
            weights=self.weights,
            old=scores.old,
            reference=scores.reference,
            rollout=batch.rollout_log_probs,
            trainer=scores.trainer,
        )
        offsets = batch.response_offsets[samples[0] : samples[1] + 1]
        flat, relative = torch.arange(int(offsets[0]), int(offsets[-1])), torch.from_numpy(offsets - offsets[0])
        zeros = torch.zeros(len(flat))
        step = self._tokens(zeros, zeros, flat, relative, batch.tokens.lengths[samples[0] : samples[1]].tolist())
        probe: CorrectionProbe | None = None
        asked = options.use_tis or options.get_mismatch_metrics
        if asked and functions.correction is not None and scores.trainer is not None:
            probe = probe_correction(functions.correction, step)
        self._objective = PolicyObjective(
            get_estimator(config.algorithm.advantage_estimator),
            options,
            size,
            correction=functions.correction,
            reducer=functions.reducer,
            probe=probe,
        )
        self.sums, self.largest = self._objective.names(step)

    @property
    def entropy_grad(self) -> bool:
        """The entropy is part of the loss, and not only a metric."""
        return self._objective.entropy_grad

    def __call__(self, log_probs: Tensor, entropy: Tensor, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """A micro-batch's part of the loss.

        Args:
            log_probs, entropy: [r] of the current policy.
            micro: where these tokens come from.

        Returns:
            The loss to differentiate; float64 [len(sums)] parts of the metrics, and [len(largest)].

        Raises:
            UserError: a user's function gave something else than it should.
        """
        parts = self._objective(
            self._tokens(log_probs, entropy, micro.places, micro.response_offsets, micro.total_lengths)
        )
        if parts.sums.keys() != set(self.sums):
            found = ", ".join(sorted(parts.sums.keys() ^ set(self.sums)))
            raise UserError(
                f"The function of --custom-tis-function-path gave a metric for some micro-batches only: {found}.",
                "Return the same metrics in every call.",
            )
        return parts.loss, _stacked(parts.sums, self.sums, log_probs), _stacked(parts.largest, self.largest, log_probs)

    def metrics(self, sums: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
        """The step's metrics from the totals over micro-batches and ranks, without those that are not defined."""
        metrics = self._objective.finish(sums, largest)
        undefined = math.isnan(metrics.get("importance_ess", 0.0))  # nothing to train on
        return {name: value for name, value in metrics.items() if not (undefined and name == "importance_ess")}

    def _tokens(
        self, log_probs: Tensor, entropy: Tensor, places: Tensor, offsets: Tensor, total_lengths: list[int]
    ) -> Tokens:
        take, find = self._columns.take, self._columns.find
        return Tokens(
            log_probs=log_probs,
            advantages=take("advantages", places),
            mask=take("mask", places),
            weights=take("weights", places),
            sequences=Sequences(offsets),
            entropy=entropy,
            old_log_probs=find("old", places),
            ref_log_probs=find("reference", places),
            rollout_log_probs=take("rollout", places),
            train_log_probs=find("trainer", places),
            first_update=self._first,
            total_lengths=total_lengths,
        )


def _stacked(values: Mapping[str, Tensor], names: tuple[str, ...], like: Tensor) -> Tensor:
    """float64 [len(names)] on the device of ``like``."""
    if not names:
        return torch.zeros(0, dtype=torch.float64, device=like.device)
    return torch.stack([values[name].double() for name in names])
