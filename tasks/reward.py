"""Reward: a score for every sample, matched by its id, into ``reward.parquet``; beside it how long each call took.

Guarantee: another reward function, or another source of it, is another identity: rewards are computed anew on the
stored rollout, and nothing is generated.
"""

from typing import Any

from relax_core.rewards.score import reward_source_hash, score_timed
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    return {"source": reward_source_hash(run.config)}


@stage("reward", _identity)
def reward(run: RunSession, step: int, key: str, rollout: StageRecord) -> StageRecord:
    """Scores of the rollout."""
    table, seconds = score_timed(run.store.read_table(rollout.table), run.config, run.reward_pools, run.services())
    run.store.write_table(run.store.step_path(step, "reward_seconds.parquet"), seconds)  # no part of any identity
    reference = run.store.write_table(run.store.step_path(step, "reward.parquet"), table)
    return StageRecord("reward", key, {"reward": reference})
