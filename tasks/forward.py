"""Forward: passes of models without gradient that the advantages need, into ``forward.parquet``.

Guarantee: made with the weights that the step began with, and stored, so that advantages can be made anew, repeated and
explained without a model; a run whose advantages need no pass has no such stage. A trainer that is elsewhere is first
brought to those weights.
"""

from typing import Any

from relax_core.config.forward import forward_needs
from relax_core.run.forward import forward_table, served_teacher
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from relax_core.run.start import compared_weights
from tasks.stage import stage


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    needs = forward_needs(run.config)
    identity: dict[str, Any] = {"weights": run.history.weights_id(step), "columns": list(needs.columns)}
    identity |= compared_weights(run.config, needs.policy)
    if needs.service and (serves := served_teacher(run)):
        identity["teacher"] = serves
    return identity | ({"critic": run.critic_history.weights_id(step)} if needs.critic else {})


@stage("forward", _identity)
def forward(run: RunSession, step: int, key: str, rollout: StageRecord) -> StageRecord:
    """Log-probs and values of the rollout's tokens."""
    table = forward_table(run, step, rollout.table)
    reference = run.store.write_table(run.store.step_path(step, "forward.parquet"), table)
    return StageRecord("forward", key, {"forward": reference})


def reachable(run: RunSession) -> bool:
    """Whether the run has the models whose passes its advantages need: --debug-rollout-only starts none."""
    needs = forward_needs(run.config)
    return run.mode != "rollout" or not (needs.policy or needs.critic)


def passes(run: RunSession, step: int, rollout: StageRecord) -> dict[str, StageRecord]:
    """The stage's record by its name; nothing for a run that does not need it."""
    return {"forward": forward(run, step, rollout)} if forward_needs(run.config) else {}
