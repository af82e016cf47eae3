"""The policy's loss and the metrics of an optimiser step, as sums over micro-batches.

Guarantee: every term is a sum over tokens of values x weights whose weights know the whole optimiser step, so that
packing, micro-batches and ranks change neither loss nor metric beyond rounding; a fully masked sample adds exactly 0.

Metrics (all means use the weights of the loss: over samples of their token means, or over tokens):
``loss`` = ``pg_loss`` - entropy_coef ``entropy_loss`` + kl_loss_coef ``kl_loss``; ``entropy_loss`` is the mean entropy;
``pg_clipfrac``, ``ppo_kl``; ``train_rollout_logprob_abs_diff`` = mean of |trainer's - engine's log-probability| of
the same token under the weights before the update, and its largest value ``..._max``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from relax_core.algorithms.kl import approx_kl
from relax_core.algorithms.reduce import sample_mean_weights, token_mean_weights, weighted_sum
from relax_core.algorithms.registry import get_estimator
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import TrainingBatch

DIFFERENCE = "train_rollout_logprob_abs_diff"
SUMS = ("loss", "pg_loss", "entropy_loss", "pg_clipfrac", "ppo_kl", "kl_loss", DIFFERENCE)
"""Metrics that add up over micro-batches and ranks, in the order of ``StepLoss``'s first result vector."""


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


class StepLoss:
    """The loss of one optimiser step.

    Args:
        samples: first and last + 1 sample of the step: consecutive samples of the batch.
        first: the step is the rollout's first, so that its weights are those that generated.
    """

    def __init__(
        self, config: RelaxConfig, batch: TrainingBatch, scores: Scores, samples: tuple[int, int], first: bool
    ) -> None:
        self._options = config.algorithm
        self._policy_loss = get_estimator(config.algorithm.advantage_estimator).load_policy_loss()
        self._batch, self._scores, self._first = batch, scores, first
        self.weights = torch.zeros(batch.num_response_tokens)
        offsets = batch.response_offsets[samples[0] : samples[1] + 1]
        own = slice(int(offsets[0]), int(offsets[-1]))
        mask = batch.mask[own]
        if config.optimizer.calculate_per_token_loss:
            self.weights[own] = token_mean_weights(mask, global_tokens=int(mask.sum()))
        else:
            relative = torch.from_numpy(offsets - offsets[0])
            self.weights[own] = sample_mean_weights(mask, relative, global_samples=samples[1] - samples[0])

    @property
    def entropy_grad(self) -> bool:
        """The entropy is part of the loss, and not only a metric."""
        return self._options.entropy_coef != 0

    def __call__(self, log_probs: Tensor, entropy: Tensor, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A micro-batch's part of the loss.

        Args:
            log_probs, entropy: [r] of the current policy.
            flat: int64 [r] on the CPU, places of these tokens in the batch.

        Returns:
            The loss to differentiate; float64 [len(SUMS)] parts of the metrics; float64 [1] the largest difference
            to the engine's log-probs.
        """
        options, device = self._options, log_probs.device

        def take(values: Tensor) -> Tensor:
            return values[flat].to(device, non_blocking=True)

        weights, mask = take(self.weights), take(self._batch.mask)
        current = log_probs.detach()
        old = current if self._scores.old is None else take(self._scores.old)
        policy = self._policy_loss(
            log_probs,
            old,
            take(self._batch.advantages),
            eps_clip=options.eps_clip,
            eps_clip_high=options.eps_clip_high,
            eps_clip_c=options.eps_clip_c,
            mask=mask,
        )
        pg_loss = weighted_sum(policy.loss, weights)
        mean_entropy = weighted_sum(entropy, weights)
        loss = pg_loss
        if self.entropy_grad:
            loss = loss - options.entropy_coef * mean_entropy
        kl_loss = torch.zeros_like(pg_loss)
        if self._scores.reference is not None:
            unbiased = old if options.use_unbiased_kl else None
            kl = approx_kl(
                log_probs,
                take(self._scores.reference),
                options.kl_loss_type,
                unbiased_old_log_probs=unbiased,
                mask=mask,
            )
            kl_loss = weighted_sum(kl, weights)
            loss = loss + options.kl_loss_coef * kl_loss
        difference, largest = self._difference(current, take(self._batch.rollout_log_probs), flat, weights)
        parts = (
            loss,
            pg_loss,
            mean_entropy,
            weighted_sum(policy.clipped.float(), weights),
            weighted_sum(policy.ppo_kl, weights),
            kl_loss,
            difference,
        )
        return loss, torch.stack([part.detach().double() for part in parts]), largest.double()

    def _difference(self, current: Tensor, engine: Tensor, flat: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Mean part and largest value of |trainer's - engine's log-prob|; zeros where the weights have moved on."""
        zero = current.new_zeros(1)
        if self._scores.trainer is not None:
            current = self._scores.trainer[flat].to(current.device)
        elif not self._first:
            return zero[0], zero
        gap = (current - engine).abs()
        largest = torch.where(weights != 0, gap, 0.0)
        return weighted_sum(gap, weights), largest.max().reshape(1) if len(largest) else zero
