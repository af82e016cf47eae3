"""Reward: a score for every sample, matched by its id, into ``reward.parquet``; beside it how long each call took.

Guarantee: another reward function, or another source of it, is another identity: rewards are computed anew on the
stored rollout, and nothing is generated. Samples that were scored while others were generated, or by a driver that was
killed in the middle, are not called again; the table is the same without that.
"""

from functools import partial
from typing import Any

from relax_core.rewards.choice import training_choice
from relax_core.rewards.score import score_timed
from relax_core.rewards.scored import calls_of_step
from relax_core.rewards.sources import reward_source_hash, scoring_hash
from relax_core.run import turns
from relax_core.run.asking import asking
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    return {"source": reward_source_hash(run.config)}


@stage("reward", _identity)
def reward(run: RunSession, step: int, key: str, rollout: StageRecord) -> StageRecord:
    """Scores of the rollout."""
    rows, stream = run.store.read_table(rollout.table), run.reward_stream(step)
    with calls_of_step(run.store, step, scoring_hash(training_choice(run.config), run.config)) as kept:
        table, seconds = asking(
            run,
            lambda services: score_timed(rows, run.config, run.reward_pools, services, stream, kept),
            partial(turns.score, run),
        )
        run.end_stream(step)
        run.store.write_table(run.store.step_path(step, "reward_seconds.parquet"), seconds)  # no part of any identity
        reference = run.store.write_table(run.store.step_path(step, "reward.parquet"), table)
    if reused := len(kept.reused):
        run.progress.note(f"{reused} calls of rewards had their outcomes before: they were not made again")
        run.events.add("rewards_reused", step, "reward", "an earlier driver ended while it scored", calls=reused)
    values = {} if stream is None else {"streamed": sum(seconds["streamed"].to_pylist())}
    return StageRecord("reward", key, {"reward": reference}, values)
