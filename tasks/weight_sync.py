"""Weight sync: the engines get the trainer's weights.

Guarantee: afterwards the trainer is at the version that this step made, and every engine reports it; one that has it
already is left alone. A critic, which no engine needs, is at that version too. A run without engines
(--debug-train-only) has nobody to tell.
"""

from typing import Any

from relax_core.run.reconcile import bring_actor, bring_critic, push_weights
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import action


@action("weight_sync")
def weight_sync(run: RunSession, step: int, update: StageRecord) -> dict[str, Any]:
    """Bring every engine to the version that this step made; an engine that died meanwhile is started anew."""
    version = int(update.values["version"])
    run.ensure()
    bring_actor(run, version)
    bring_critic(run, version)
    if run.mode == "train":
        return {}
    pushed = push_weights(run, version)
    run.events.add("weight_sync", step, version=version, engines=len(run.engines.urls))
    return pushed
