"""Train the critic: one update of its values, version ``step`` to ``step + 1``, on the policy's batch.

Guarantee: as ``tasks.train``, for the critic: it has weights, versions, checkpoints and a record of its own, so that
one of the two updates is found again although the other one is not.
"""

from typing import Any

from relax_core.run import turns
from relax_core.run.reconcile import bring_critic
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage
from tasks.train import update

PREFIX = "critic/"
"""Of the critic's metrics."""
_TWICE = ("loss", "tokens")
"""Metrics that another one says: the value loss, and the actor's."""


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    return {"weights": run.critic_history.weights_id(step)}


@stage("train_critic", _identity)
def train_critic(run: RunSession, step: int, key: str, batch: StageRecord) -> StageRecord:
    """The critic's update of this step."""
    turns.train(run, "critic")
    record = update(run, step, key, batch, "train_critic", run.critic, bring_critic)
    metrics = record.values["metrics"]
    named = {f"{PREFIX}{name}": value for name, value in metrics.items() if name not in _TWICE}
    return StageRecord(record.stage, key, {}, {**record.values, "metrics": named})


def critics(run: RunSession, step: int, batch: StageRecord) -> dict[str, StageRecord]:
    """The stage's record by its name; nothing for a run without a critic."""
    return {"train_critic": train_critic(run, step, batch)} if run.has_critic else {}
