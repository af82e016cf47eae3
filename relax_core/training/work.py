"""Which samples a rank works on in each optimiser step, and whether they need a gradient.

Guarantee: a pure function of the options, the layout and the batch, so that all ranks agree without talking; over all
ranks every sample of a step is in exactly one micro-batch. Needs no Megatron.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from relax_core.batching.plan import UpdatePlan, plan_updates
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import TrainingBatch
from relax_core.training.roles import Role

MicroBatches = Sequence[Sequence[int]]
"""Sample numbers of each of a rank's micro-batches."""


class DataParallel(Protocol):
    """A rank's place in data parallelism."""

    @property
    def dp_rank(self) -> int: ...

    @property
    def dp_size(self) -> int: ...


@dataclass(frozen=True)
class Work:
    """One rank's part of an optimiser step.

    Args:
        samples: first and last + 1 sample of the step, over all ranks.
        learn: micro-batches with a gradient.
        watch: micro-batches whose gradient is known to be zero: only their metrics are wanted.
    """

    samples: tuple[int, int]
    learn: MicroBatches
    watch: MicroBatches


def steps_per_rollout(config: RelaxConfig) -> int:
    """Optimiser steps of a rollout step."""
    batch, rollout = config.batch, config.rollout
    if batch.num_steps_per_rollout is not None:
        return batch.num_steps_per_rollout
    samples = (rollout.rollout_batch_size or 0) * rollout.n_samples_per_prompt
    return max(samples // batch.global_batch_size, 1) if batch.global_batch_size else 1


def divide(config: RelaxConfig, place: DataParallel, batch: TrainingBatch, role: Role = "actor") -> list[Work]:
    """The optimiser steps of a batch, in file order.

    A sample whose advantages are all 0 (a group of equal rewards) or that is masked has no gradient unless entropy or
    KL are in the loss, a function of the user makes it, or the loss reads no advantages: it then goes through the model
    forward only, which is a third of the work. A critic learns from every sample.

    Raises:
        UserError: a number of samples that ``--global-batch-size`` does not divide, or too few of them.
    """
    updates, size = steps_per_rollout(config), config.batch.global_batch_size
    if size and len(batch) != updates * size:
        raise UserError(
            f"The batch has {len(batch)} samples, not {updates} x --global-batch-size {size}.",
            "Make --rollout-batch-size x --n-samples-per-prompt a multiple of --global-batch-size.",
        )
    learns = _learns(config, batch, role)
    work = []
    for plan in _plans(config, place, batch, range(len(batch)), updates):
        learn, watch = ([i for i in plan.samples if learns[i] == kind] for kind in (True, False))
        work.append(
            Work(
                samples=(plan.samples[0], plan.samples[-1] + 1),
                learn=own_micro_batches(config, place, batch, learn),
                watch=own_micro_batches(config, place, batch, watch, scoring=True),
            )
        )
    return work


def divide_slice(config: RelaxConfig, place: DataParallel, batch: TrainingBatch) -> tuple[MicroBatches, MicroBatches]:
    """``Work.learn`` and ``Work.watch`` of the actor for a slice of an optimiser step."""
    learns = _learns(config, batch, "actor")
    learn, watch = ([i for i in range(len(batch)) if learns[i] == kind] for kind in (True, False))
    return own_micro_batches(config, place, batch, learn), own_micro_batches(config, place, batch, watch, scoring=True)


def _learns(config: RelaxConfig, batch: TrainingBatch, role: Role) -> NDArray[np.bool_]:
    """[N] whether a sample has a gradient."""
    options = config.algorithm
    own_loss = options.custom_tis_function_path or options.custom_pg_loss_reducer_function_path  # it may do anything
    plain = role == "actor" and options.loss_type == "policy_loss" and not own_loss
    only_signal = plain and options.entropy_coef == 0 and not options.use_kl_loss
    return batch.has_signal() if only_signal else np.ones(len(batch), dtype=bool)


def own_micro_batches(
    config: RelaxConfig, place: DataParallel, batch: TrainingBatch, samples: Sequence[int], scoring: bool = False
) -> MicroBatches:
    """This rank's micro-batches of these samples; none, on all ranks, when there are no samples.

    Args:
        scoring: for a pass without gradient, which may take larger ones.
    """
    return _plans(config, place, batch, samples, 1, scoring)[0].micro_batches[place.dp_rank] if samples else []


def _plans(
    config: RelaxConfig,
    place: DataParallel,
    batch: TrainingBatch,
    samples: Sequence[int],
    updates: int,
    scoring: bool = False,
) -> list[UpdatePlan]:
    options = config.batch
    tokens = options.max_tokens_per_gpu if options.use_dynamic_batch_size else None
    if scoring and options.use_dynamic_batch_size:
        tokens = options.log_probs_max_tokens_per_gpu or tokens
    if options.use_dynamic_batch_size and tokens is None:
        raise UserError("--use-dynamic-batch-size needs --max-tokens-per-gpu.", "Give it.")
    plans = plan_updates(
        batch.tokens.lengths[list(samples)],
        dp_size=place.dp_size,
        num_updates=updates,
        micro_batch_size=None if options.use_dynamic_batch_size else options.micro_batch_size,
        max_tokens=tokens,
        balance=options.balance_data,
    )
    return [
        UpdatePlan([[[samples[i] for i in micro] for micro in rank] for rank in plan.micro_batches]) for plan in plans
    ]
