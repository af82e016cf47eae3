"""Checkpoint: the trainer's whole state, as iteration ``step``.

Guarantee: a complete checkpoint of just these weights is kept; one of another history is written anew.
"""

from typing import Any

from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from relax_core.training.checkpoint_index import complete_iterations
from tasks.stage import action


@action("checkpoint")
def checkpoint(run: RunSession, step: int, update: StageRecord) -> dict[str, Any]:
    """Save, unless a complete checkpoint of just these weights is there."""
    saved = (step, run.history.weights_id(step + 1)) in complete_iterations(run.checkpoint_url)
    result = {} if saved else dict(run.trainer.save(run.checkpoint_url, step))
    if run.config.checkpoint.save_hf:
        run.trainer.export_hf(run.config.checkpoint.save_hf.format(rollout_id=step))
    return {"iteration": step, "url": run.checkpoint_url, **result}
