"""Weight sync: the engines get the trainer's weights.

Guarantee: afterwards every engine reports the version that this step made; one that has it already is left alone.
"""

from typing import Any

from relax_core.run.records import StageRecord
from relax_core.run.recovery import bring_trainer_to
from relax_core.run.session import RunSession
from tasks.stage import action


@action("weight_sync")
def weight_sync(run: RunSession, step: int, update: StageRecord) -> dict[str, Any]:
    """Bring every engine to the version that this step made; an engine that died meanwhile is started anew."""
    version = int(update.values["version"])
    run.ensure()
    run.redone += bring_trainer_to(version, run.trainer, run.history, run.progress.note)
    return dict(run.trainer.push_weights(version, run.engines.urls, run.history.weights_id(version)))
