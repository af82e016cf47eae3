"""Advantage: from scores to what the loss needs, one row a sample, into ``batch.parquet``.

Guarantee: the batch holds every loss input as a column, so that any update can be repeated or explained from the
file. Another function of the user, or another source of it, is another identity: the batch is made anew on the stored
rollout and scores.
"""

from typing import Any

from relax_core.rollout.hooks import advantage_sources
from relax_core.run.advantage import batch_table
from relax_core.run.feeding import feeds, with_slices
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    sources = advantage_sources(run.config)
    return {"sources": sources} if sources else {}


@stage("advantage", _identity)
def advantage(
    run: RunSession, step: int, key: str, rollout: StageRecord, rewards: StageRecord, *passes: StageRecord
) -> StageRecord:
    """Normalised rewards, advantages and masks; ``passes`` is the record of forward, where that stage is."""
    forward = run.store.read_table(passes[0].table) if passes else None
    samples, scores = (run.store.read_table(record.table) for record in (rollout, rewards))
    table, metrics = batch_table(samples, scores, forward, run.config)
    if run.overlaps and feeds(run.config):
        table = with_slices(table, run.config, run.end_feeder(step))
    reference = run.store.write_table(run.store.step_path(step, "batch.parquet"), table)
    return StageRecord("advantage", key, {"batch": reference}, {"metrics": metrics} if metrics else {})
