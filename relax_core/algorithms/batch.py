"""From scored rollouts to the rows that are trained on.

Guarantee: one row per rollout sample, matched by ``sample_id``; a sample without a score keeps its row with an
all-zero loss mask, so that it weighs nothing, and takes no part in its group's statistics; a ``remove_sample`` row
takes part in the statistics but is not trained on.
"""

import logging

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data.errors import UserError
from data.ragged import Ragged
from data.schema import BATCH, FORWARD_COLUMNS
from data.schema import table as make_table
from relax_core.algorithms.advantages import AdvantageInputs, AdvantageOptions, Advantages, compute_advantages
from relax_core.algorithms.metrics import leave_one_out_metrics
from relax_core.algorithms.registry import get_estimator
from relax_core.algorithms.rewards import Normalizer, normalize_rewards
from relax_core.config import RelaxConfig
from relax_core.config.derived import takes_engine_log_probs

log = logging.getLogger(__name__)


def training_batch(
    rollout: pa.Table,
    rewards: pa.Table,
    config: RelaxConfig,
    processed: tuple[np.ndarray, np.ndarray] | None = None,
    forward: pa.Table | None = None,
) -> tuple[pa.Table, dict[str, float]]:
    """Normalise rewards and make advantages of them; with --disable-compute-advantages-and-returns all are 0.

    This stage has the whole batch, so that --normalize-advantages is over all ranks without asking one.

    Args:
        rollout: schema ``ROLLOUT``, N rows.
        rewards: schema ``REWARD``, the same sample ids in any order.
        processed: scores as they are and scores to train on, each [N] float64 in the order of ``rollout``, NaN = none;
            they stand for the rewards and their normalisation.
        forward: schema ``FORWARD``, the same sample ids in any order; None where nothing of it is needed.

    Returns:
        Schema ``BATCH``, N rows in the order of ``rollout``; and metrics: of leave-one-out baselines, ``reward_kl``
        (mean KL to the reference over trained tokens, where it is part of the rewards) and ``opd_reverse_kl`` (mean of
        the student's less the teacher's log-probability).

    Raises:
        UserError: ids that do not match, or a table that lacks what the options need.
    """
    options = config.algorithm
    scores, normalized = processed or _normalized(rollout, rewards, config)
    masks = Ragged.from_arrow(rollout["loss_mask"])
    removed = rollout["remove_sample"].to_numpy(zero_copy_only=False).astype(bool)
    trained = ~(np.isnan(normalized) | removed)
    mask = Ragged(masks.values * np.repeat(trained, masks.lengths).astype(np.uint8), masks.offsets)
    columns = _forward_columns(rollout, forward, masks.offsets)
    spec = get_estimator(options.advantage_estimator)
    old = columns.get("old_log_probs")
    if takes_engine_log_probs(config):
        old = Ragged.from_arrow(rollout["rollout_log_probs"]).values
    if options.disable_compute_advantages_and_returns:
        nothing = np.zeros(len(mask.values), dtype=np.float32)
        result = Advantages(nothing, nothing)
    else:
        inputs = AdvantageInputs(
            normalized,
            masks.offsets,
            mask.values,
            AdvantageOptions.of(options),
            values=columns.get("values"),
            old_log_probs=old,
            ref_log_probs=columns.get("ref_log_probs"),
        )
        result = compute_advantages(
            spec,
            inputs,
            teacher_log_probs=columns.get("teacher_log_probs"),
            opd_kl_coef=config.opd.opd_kl_coef,
            normalize=options.normalize_advantages,
        )
    table = make_table(
        BATCH,
        {
            **{name: rollout[name] for name in ("sample_id", "group_id", "tokens", "response_length")},
            "loss_mask": mask.to_arrow(),
            "rollout_log_probs": rollout["rollout_log_probs"],
            "advantages": Ragged(result.advantages, masks.offsets).to_arrow(),
            "returns": Ragged(result.returns, masks.offsets).to_arrow(),
            "reward": pa.array(scores, pa.float32(), from_pandas=True),
            **{name: Ragged(values, masks.offsets).to_arrow() for name, values in columns.items()},
        },
    )
    metrics = _metrics(scores, normalized, rollout["group_id"].to_pylist(), mask, _normalizer(config))
    kept = mask.values != 0
    for name, values in (("reward_kl", result.kl), ("opd_reverse_kl", result.opd_reverse_kl)):
        if values is not None and kept.any():
            metrics[name] = float(values[kept].mean(dtype=np.float64))
    return table, metrics


def _forward_columns(
    rollout: pa.Table, forward: pa.Table | None, offsets: NDArray[np.int64]
) -> dict[str, NDArray[np.float32]]:
    """[T] of each column that ``forward`` has, in the order of ``rollout``."""
    if forward is None:
        return {}
    order = _match(rollout["sample_id"].to_pylist(), forward["sample_id"].to_pylist(), "forward")
    columns = {}
    for name in FORWARD_COLUMNS:
        if forward[name].null_count == forward.num_rows:
            continue
        column = Ragged.from_arrow(forward[name]).take(order)
        if not np.array_equal(column.offsets, offsets):
            raise UserError(
                f"forward.parquet has {name} of other lengths than the rollout's responses.",
                "Delete the step's forward.parquet and run again.",
            )
        columns[name] = column.values
    return columns


def _metrics(
    scores: NDArray[np.float64], normalized: NDArray[np.float64], group_ids: list[str], mask: Ragged, normalizer: str
) -> dict[str, float]:
    """Metrics of leave-one-out baselines; else none."""
    if normalizer != "group_leave_one_out":
        return {}
    counts = np.append(0, np.cumsum(mask.values, dtype=np.int64))[mask.offsets]
    return leave_one_out_metrics(scores, normalized, group_ids, np.diff(counts))


def _normalized(rollout: pa.Table, rewards: pa.Table, config: RelaxConfig) -> tuple[np.ndarray, np.ndarray]:
    """[N] float64 scores in the order of ``rollout``, and what the estimator sees of them; NaN = none."""
    order = _match(rollout["sample_id"].to_pylist(), rewards["sample_id"].to_pylist(), "reward")
    scores = rewards["reward"].to_numpy(zero_copy_only=False).astype(np.float64)[order]  # null becomes NaN
    without = rewards["reward"].is_null().to_numpy(zero_copy_only=False)[order]
    if broken := int((np.isnan(scores) & ~without).sum()):
        log.warning("%d of %d samples have the reward NaN and are not trained on", broken, len(scores))
    return scores, normalize_rewards(
        _trained_scores(scores, without, rollout["status"].to_pylist(), config),
        np.asarray(rollout["group_id"].to_pylist()),
        kind=_normalizer(config),
        std=not config.algorithm.disable_grpo_std_normalization,
        expected_group_size=config.rollout.n_samples_per_prompt,
    )


def _normalizer(config: RelaxConfig) -> Normalizer:
    """What happens to rewards before the estimator sees them."""
    options = config.algorithm
    if options.disable_rewards_normalization or options.disable_compute_advantages_and_returns:
        return "none"
    return get_estimator(options.advantage_estimator).normalizer


def _trained_scores(
    scores: NDArray[np.float64], without: NDArray[np.bool_], statuses: list[str], config: RelaxConfig
) -> NDArray[np.float64]:
    """[N] scores that are trained on, NaN = none, by the policies for missing scores and cut responses.

    Args:
        without: [N] samples without a score, null in the table: a score that is NaN is none of them.
    """
    truncated, policy = np.array(statuses) == "truncated", config.reward.truncated_reward_policy
    if policy != "score":
        scores = np.where(truncated, 0.0 if policy == "zero" else np.nan, scores)
    if config.reward.no_score_policy == "exclude":
        return scores
    missing = without & np.isnan(scores) & ~(truncated if policy == "exclude" else np.zeros_like(truncated))
    return np.where(missing, 0.0, scores)


def _match(wanted: list[str], given: list[str], file: str) -> np.ndarray:
    """[N] positions in ``given``, the ids of ``<file>.parquet``, of the ids in ``wanted``."""
    places = {sample_id: place for place, sample_id in enumerate(given)}
    missing = [sample_id for sample_id in wanted if sample_id not in places]
    if missing or len(places) != len(wanted):
        example = missing[0] if missing else "(more rows than samples)"
        raise UserError(
            f"rollout.parquet and {file}.parquet do not have the same samples: {len(wanted)} and {len(places)} ids, "
            f"e.g. {example}.",
            f"Delete the step's {file}.parquet and run again.",
        )
    return np.array([places[sample_id] for sample_id in wanted], dtype=np.int64)
