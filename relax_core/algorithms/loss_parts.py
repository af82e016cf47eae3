"""What a loss is put together from, and what comes out.

Guarantee: plain data; options keep the names and defaults that they have on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relax_core.algorithms.reduce import weighted_sum
from relax_core.algorithms.sequences import Sequences


@dataclass(frozen=True)
class LossOptions:
    """Options that losses read, under their names on the command line."""

    eps_clip: float = 0.2
    eps_clip_high: float | None = None
    eps_clip_c: float | None = None
    sapo_tau_pos: float = 1.0
    sapo_tau_neg: float = 1.05
    entropy_coef: float = 0.0
    kl_loss_coef: float = 0.0
    kl_loss_type: str = "k1"
    use_unbiased_kl: bool = False
    use_opsm: bool = False
    opsm_delta: float = 1e-4
    use_tis: bool = False
    tis_clip: float = 2.0
    tis_clip_low: float = 0.0
    get_mismatch_metrics: bool = False
    calculate_per_token_loss: bool = False
    value_clip: float = 0.2

    @classmethod
    def of(cls, options: Any) -> LossOptions:
        """From attributes of these names (a namespace of all options)."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Tokens:
    """A micro-batch's response tokens, packed; [T] each and on one device.

    Args:
        log_probs: of the current policy; carry the gradient.
        advantages: of the advantage stage.
        mask: 0 and 1 (any type), 1 where the token is trained.
        weights: float32 from ``step_weights`` of the whole step.
        sequences: which tokens belong to which sample, and who has the others.
        entropy: of the current policy; may be None where it is neither in the loss nor wanted as a metric.
        old_log_probs: of the policy in the ratio's denominator. None: the current one's own, detached.
        ref_log_probs: of the reference. None: no KL.
        rollout_log_probs: of the engine.
        train_log_probs: of the trainer under the weights that generated, from a pass before the first update.
        first_update: the current weights are those that generated: then, without that pass, the current log-probs
            stand for the trainer's.
        total_lengths: [N] tokens of each sample with its prompt; read by functions of the user only.
    """

    log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    weights: Tensor
    sequences: Sequences
    entropy: Tensor | None = None
    old_log_probs: Tensor | None = None
    ref_log_probs: Tensor | None = None
    rollout_log_probs: Tensor | None = None
    train_log_probs: Tensor | None = None
    first_update: bool = False
    total_lengths: Sequence[int] = ()

    @property
    def response_lengths(self) -> list[int]:
        """[N] this rank's response tokens of each sample; waits for an accelerator."""
        return torch.diff(self.sequences.offsets).tolist()


class LossParts(NamedTuple):
    """A micro-batch's part of an optimiser step."""

    loss: Tensor
    """Scalar to differentiate."""
    sums: dict[str, Tensor]
    """Detached float64 scalars that add up over micro-batches and ranks."""
    largest: dict[str, Tensor]
    """Detached float64 scalars of which the step's is the largest."""


def mean_part(values: Tensor, weights: Tensor) -> Tensor:
    """A micro-batch's part of a metric's mean: a detached float64 scalar."""
    return weighted_sum(values.detach(), weights).double()


def largest_part(values: Tensor, weights: Tensor) -> Tensor:
    """The largest of the values >= 0 that have a weight, 0 without any: a float64 scalar."""
    kept = torch.where(weights != 0, values, 0.0).double()
    return kept.max() if len(kept) else kept.sum()
