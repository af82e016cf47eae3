"""Checkpoint: the trainer's whole state, as iteration ``step``.

Guarantee: a complete checkpoint of just these weights is kept; one of another history is written anew. A manifest only
names a checkpoint that is complete, and when the run ends the last one is.
"""

from typing import Any

from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from relax_core.training.checkpoint_index import complete_iterations
from tasks.stage import action


@action("checkpoint")
def checkpoint(run: RunSession, step: int, update: StageRecord) -> dict[str, Any] | None:
    """Save, unless a complete checkpoint of just these weights is there.

    Returns:
        What the step's manifest says of it. With --async-save it is still being written, unless the step is the last:
        then the newest complete one, or nothing.
    """
    result: dict[str, Any] = {}
    if (step, run.history.weights_id(step + 1)) not in complete_iterations(run.checkpoint_url, warn=False):
        result = dict(run.trainer.save(run.checkpoint_url, step))
        if run.config.checkpoint.async_save and step + 1 == run.total_steps:
            result |= run.trainer.finish_save()
    if run.config.checkpoint.save_hf and run.export_due(step):
        run.trainer.export_hf(run.config.checkpoint.save_hf.format(rollout_id=step))
    if not run.config.checkpoint.async_save:
        return {"iteration": step, "url": run.checkpoint_url, **result}
    newest = _newest(run, step)
    return None if newest is None else {"iteration": newest, "url": run.checkpoint_url, **result}


def _newest(run: RunSession, step: int) -> int | None:
    """The newest complete checkpoint of this history that is not past ``step``."""
    for iteration, weights_id in complete_iterations(run.checkpoint_url, warn=False):
        if iteration <= step and weights_id == run.history.weights_id(iteration + 1):
            return iteration
    return None
