"""Slices of a step's first global batch, whose gradients are computed while later groups are still generated.

Guarantee: pure functions of the options and of the groups in the order in which they finished; a group's slice does not
depend on the groups behind it, no group is in two slices, and the slices fill the first global batch exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data.errors import UserError
from relax_core.algorithms.registry import get_estimator
from relax_core.config.sections import RelaxConfig

_WHOLE_STEP = (
    "rollout_data_postprocess_path",
    "custom_reward_post_process_path",
    "custom_convert_samples_to_train_data_path",
)
"""Functions of the user that get all samples of a step at once."""


def takes_slices(config: RelaxConfig) -> str | None:
    """Why the trainer's loss cannot be computed slice by slice; None where it can.

    Args:
        config: resolved options; of them only those that a trainer is made with.
    """
    algorithm = config.algorithm
    estimator = get_estimator(algorithm.advantage_estimator)
    if config.batch.global_batch_size is None:
        return "without --global-batch-size nobody knows how many samples the loss is a mean of"
    if estimator.needs_critic or estimator.sync_only:
        return f"--advantage-estimator {estimator.name} needs a whole step of samples"
    if algorithm.loss_type == "custom_loss":
        return "a function of --custom-loss-function-path may keep what it has seen of a batch"
    if algorithm.custom_tis_function_path and (algorithm.use_tis or algorithm.get_mismatch_metrics):
        return "--custom-tis-function-path is asked about the whole batch first"
    return None


def streams(config: RelaxConfig) -> str | None:
    """Why no gradient can be computed before a step's batch is whole; None where it can.

    Args:
        config: resolved options.
    """
    cluster = config.cluster
    if (reason := takes_slices(config)) is not None:
        return reason
    if config.algorithm.normalize_advantages:
        return "--normalize-advantages makes the advantages of a whole step together"
    if cluster.colocate or cluster.offload or cluster.offload_train:
        return "the trainer gives up its gradients when it leaves the device (--colocate, --offload-train)"
    for section in (config.reward, config.rollout):
        for name in _WHOLE_STEP:
            if getattr(section, name, None):
                return f"the function of --{name.replace('_', '-')} gets the samples of a whole step"
    return None


def slice_size(config: RelaxConfig) -> int:
    """Samples of a slice: --global-batch-size / --num-iters-per-train-update.

    Raises:
        UserError: there is no global batch size, or it is not divided into slices.
    """
    size, slices = config.batch.global_batch_size, config.cluster.num_iters_per_train_update
    if size is None or size % slices:
        raise UserError(
            f"--global-batch-size {size} is not divided into --num-iters-per-train-update {slices} slices.",
            "Make it a multiple.",
        )
    return size // slices


def slice_numbers(config: RelaxConfig, groups: Sequence[int]) -> list[int | None]:
    """The slice of each group; None for those behind the first global batch, which wait for the whole batch.

    Args:
        groups: [G] samples of each group, in the order in which they finished; as many as there are so far.

    Raises:
        UserError: a group does not fit into what is left of its slice, or as ``slice_size``.
    """
    size = slice_size(config)
    whole = size * config.cluster.num_iters_per_train_update
    numbers: list[int | None] = []
    before = 0
    for place, samples in enumerate(groups):
        number, used = divmod(before, size)
        before += samples
        if before - samples >= whole:
            numbers.append(None)
        elif used + samples > size:
            raise UserError(
                f"Group {place} has {samples} samples, and its slice of {size} has room for {size - used}.",
                "Give every group the same number of samples, or --num-iters-per-train-update 1.",
            )
        else:
            numbers.append(number)
    return numbers


def filled_slices(config: RelaxConfig, groups: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """The slice of each group of the first global batch: those that are known, and the next groups in what is left.

    Args:
        groups: ids of all groups of the step, in the order in which the rest takes its places.
        known: slices that are whole, 0 to some number; as ``slice_numbers`` gave them.
    """
    samples = config.rollout.n_samples_per_prompt
    order = [*sorted(known, key=known.__getitem__), *(group_id for group_id in groups if group_id not in known)]
    numbers = slice_numbers(config, [samples] * len(order))
    return {group_id: number for group_id, number in zip(order, numbers, strict=True) if number is not None}
