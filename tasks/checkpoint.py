"""Checkpoint: the whole state of each model that the run trains, as iteration ``step``.

Guarantee: a complete checkpoint of just these weights is kept; one of another history is written anew. A manifest only
names a checkpoint that is complete, and when the run ends the last one is.
"""

from typing import Any

from relax_core.run import turns
from relax_core.run.ports import TrainerPort
from relax_core.run.reconcile import bring_actor, bring_critic
from relax_core.run.records import StageRecord
from relax_core.run.recovery import History
from relax_core.run.session import RunSession
from relax_core.training.checkpoint_index import complete_iterations
from relax_core.training.errors import VersionMismatch
from relax_core.training.roles import Role
from tasks.stage import action

Saved = dict[str, dict[str, Any]]
"""What the step's manifest says of each model's checkpoint, by ``History.entry``; a model without one is not there."""


@action("checkpoint")
def checkpoint(run: RunSession, step: int, update: StageRecord) -> Saved:
    """Save each model, unless a complete checkpoint of just its weights is there.

    Returns:
        With --async-save one is still being written, unless the step is the last: then the newest complete one, or
        nothing.
    """
    saved = {run.history.entry: _save(run, step, run.trainer, run.history, "actor")}
    if run.has_critic:
        saved[run.critic_history.entry] = _save(run, step, run.critic, run.critic_history, "critic")
    if run.config.checkpoint.save_hf and run.export_due(step):
        turns.save(run, "actor")
        run.trainer.export_hf(run.config.checkpoint.save_hf.format(rollout_id=step))
    return {entry: found for entry, found in saved.items() if found is not None}


def _save(run: RunSession, step: int, trainer: TrainerPort, history: History, role: Role) -> dict[str, Any] | None:
    url, result = history.checkpoints, dict[str, Any]()
    if (step, history.weights_id(step + 1)) not in complete_iterations(url, warn=False):
        turns.save(run, role)
        try:
            result = dict(trainer.save(url, step))
        except VersionMismatch:  # it has been started anew
            bring = bring_critic if role == "critic" else bring_actor
            bring(run, step + 1)
            result = dict(trainer.save(url, step))
        if run.config.checkpoint.async_save and step + 1 == run.total_steps:
            result |= trainer.finish_save()
        begun = "written in the background" if run.config.checkpoint.async_save else ""
        run.events.add("checkpoint_saved", step, history.name, begun, iteration=step, url=url)
    if not run.config.checkpoint.async_save:
        return {"iteration": step, "url": url, **result}
    newest = history.newest_checkpoint(step + 1, warn=False)
    return None if newest is None else {"iteration": newest, "url": url, **result}
