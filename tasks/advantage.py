"""Advantage: from scores to what the loss needs, one row a sample, into ``batch.parquet``.

Guarantee: the batch holds every loss input as a column, so that any update can be repeated or explained from the
file.
"""

from relax_core.algorithms.batch import training_batch
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


@stage("advantage")
def advantage(run: RunSession, step: int, key: str, rollout: StageRecord, rewards: StageRecord) -> StageRecord:
    """Normalised rewards, advantages and masks."""
    table = training_batch(run.store.read_table(rollout.table), run.store.read_table(rewards.table), run.config)
    reference = run.store.write_table(run.store.step_path(step, "batch.parquet"), table)
    return StageRecord("advantage", key, {"batch": reference})
