"""The batch of a step from its stored tables: the work of the stage advantage, also where it is repeated.

Guarantee: a pure function of the tables, the options and the user's functions; no model and no engine is asked.
"""

import numpy as np
import pyarrow as pa

from relax_core.algorithms.batch import training_batch
from relax_core.config import RelaxConfig
from relax_core.rollout.hooks import post_processed, processed_scores


def batch_table(
    rollout: pa.Table, scores: pa.Table, forward: pa.Table | None, config: RelaxConfig
) -> tuple[pa.Table, dict[str, float]]:
    """Normalised rewards, advantages and masks, after the user's functions on samples and scores.

    Args:
        rollout: schema ``ROLLOUT``, N rows.
        scores: schema ``REWARD``, the same samples in any order.
        forward: schema ``FORWARD``, the same samples in any order; None where the options need no pass.

    Returns:
        Schema ``BATCH``, N rows in the order of ``rollout``; and metrics, see ``training_batch``, with ``raw_reward``
        where a function of the user says what it is.

    Raises:
        UserError: as ``training_batch``, or a function of the user that failed.
    """
    samples = post_processed(rollout, scores, config)
    processed = processed_scores(samples, scores, config)
    table, metrics = training_batch(samples, scores, config, processed, forward)
    if processed is not None and np.isfinite(processed[0]).any():
        metrics["raw_reward"] = float(np.nanmean(processed[0]))
    return table, metrics
