"""From scored rollouts to the rows that are trained on.

Guarantee: one row per rollout sample, matched by ``sample_id``; a sample without a score keeps its row with an
all-zero loss mask, so that it weighs nothing, and takes no part in its group's statistics; a ``remove_sample`` row
takes part in the statistics but is not trained on.
"""

import numpy as np
import pyarrow as pa

from data.errors import UserError
from data.ragged import Ragged
from data.schema import BATCH
from data.schema import table as make_table
from relax_core.algorithms.advantages import AdvantageInputs, AdvantageOptions, compute_advantages
from relax_core.algorithms.metrics import leave_one_out_metrics
from relax_core.algorithms.registry import get_estimator
from relax_core.algorithms.rewards import normalize_rewards
from relax_core.config import RelaxConfig


def training_batch(
    rollout: pa.Table,
    rewards: pa.Table,
    config: RelaxConfig,
    processed: tuple[np.ndarray, np.ndarray] | None = None,
) -> pa.Table:
    """Normalise rewards and make advantages of them.

    This stage has the whole batch, so that --normalize-advantages is over all ranks without asking one.

    Args:
        rollout: schema ``ROLLOUT``, N rows.
        rewards: schema ``REWARD``, the same sample ids in any order.
        processed: scores as they are and scores to train on, each [N] float64 in the order of ``rollout``, NaN = none;
            they stand for the rewards and their normalisation.

    Returns:
        Schema ``BATCH``, N rows in the order of ``rollout``.

    Raises:
        UserError: ids that do not match.
    """
    options = config.algorithm
    scores, normalized = processed or _normalized(rollout, rewards, config)
    masks = Ragged.from_arrow(rollout["loss_mask"])
    removed = rollout["remove_sample"].to_numpy(zero_copy_only=False).astype(bool)
    trained = ~(np.isnan(normalized) | removed)
    mask = Ragged(masks.values * np.repeat(trained, masks.lengths).astype(np.uint8), masks.offsets)
    result = compute_advantages(
        get_estimator(options.advantage_estimator),
        AdvantageInputs(normalized, masks.offsets, mask.values, AdvantageOptions.of(options)),
        normalize=options.normalize_advantages,
    )
    return make_table(
        BATCH,
        {
            **{name: rollout[name] for name in ("sample_id", "group_id", "tokens", "response_length")},
            "loss_mask": mask.to_arrow(),
            "rollout_log_probs": rollout["rollout_log_probs"],
            "advantages": Ragged(result.advantages, masks.offsets).to_arrow(),
            "returns": Ragged(result.returns, masks.offsets).to_arrow(),
            "reward": pa.array(scores, pa.float32(), from_pandas=True),
        },
    )


def batch_metrics(
    rollout: pa.Table,
    rewards: pa.Table,
    config: RelaxConfig,
    batch: pa.Table,
    processed: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, float]:
    """Metrics of the batch that ``training_batch`` made of these arguments: of leave-one-out baselines; else none."""
    if get_estimator(config.algorithm.advantage_estimator).normalizer != "group_leave_one_out":
        return {}
    scores, normalized = processed or _normalized(rollout, rewards, config)
    masks = Ragged.from_arrow(batch["loss_mask"])
    counts = np.append(0, np.cumsum(masks.values, dtype=np.int64))[masks.offsets]
    return leave_one_out_metrics(scores, normalized, batch["group_id"].to_pylist(), np.diff(counts))


def _normalized(rollout: pa.Table, rewards: pa.Table, config: RelaxConfig) -> tuple[np.ndarray, np.ndarray]:
    """[N] float64 scores in the order of ``rollout``, and what the estimator sees of them; NaN = none."""
    order = _match(rollout["sample_id"].to_pylist(), rewards["sample_id"].to_pylist())
    scores = rewards["reward"].to_numpy(zero_copy_only=False).astype(np.float64)[order]  # null becomes NaN
    options = config.algorithm
    normalizer = get_estimator(options.advantage_estimator).normalizer
    return scores, normalize_rewards(
        scores,
        np.asarray(rollout["group_id"].to_pylist()),
        kind="none" if options.disable_rewards_normalization else normalizer,
        std=not options.disable_grpo_std_normalization,
        expected_group_size=config.rollout.n_samples_per_prompt,
    )


def _match(wanted: list[str], given: list[str]) -> np.ndarray:
    """[N] positions in ``given`` of the ids in ``wanted``."""
    places = {sample_id: place for place, sample_id in enumerate(given)}
    missing = [sample_id for sample_id in wanted if sample_id not in places]
    if missing or len(places) != len(wanted):
        example = missing[0] if missing else "(more rewards than samples)"
        raise UserError(
            f"Rollout and rewards do not have the same samples: {len(wanted)} and {len(places)} ids, e.g. {example}.",
            "Delete the step's reward.parquet and run again.",
        )
    return np.array([places[sample_id] for sample_id in wanted], dtype=np.int64)
