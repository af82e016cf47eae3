"""Replay: recorded samples in the place of generated ones (--load-debug-rollout-data), and the scores that they carry.

Guarantee: another file, another share of it or another key of the score is another identity; scores are computed only
where the file has none. Nothing is generated.
"""

from typing import Any

from relax_core.rewards.score import score_table
from relax_core.rewards.sources import reward_source_hash
from relax_core.run import turns
from relax_core.run.debug_data import read_recorded, recorded_hash
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _file(run: RunSession, step: int) -> dict[str, Any]:
    return {"recorded": recorded_hash(run.config, step)}


def _file_and_source(run: RunSession, step: int) -> dict[str, Any]:
    return {**_file(run, step), "source": reward_source_hash(run.config)}


@stage("replay", _file, options="generate")
def replay(run: RunSession, step: int, key: str) -> StageRecord:
    """The recorded samples of this step."""
    recorded = read_recorded(run.config, step)
    reference = run.store.write_table(run.store.step_path(step, "rollout.parquet"), recorded.rollout)
    return StageRecord("replay", key, {"rollout": reference}, {"cursor": run.cursor(step).to_json()})


@stage("reward", _file_and_source)
def replay_reward(run: RunSession, step: int, key: str, rollout: StageRecord) -> StageRecord:
    """The recorded scores of this step; computed where none are recorded."""
    table = read_recorded(run.config, step).reward
    if table is None:
        turns.score(run)
        table = score_table(run.store.read_table(rollout.table), run.config, run.reward_pools, run.services())
    reference = run.store.write_table(run.store.step_path(step, "reward.parquet"), table)
    return StageRecord("reward", key, {"reward": reference})
