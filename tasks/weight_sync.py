"""Weight sync: the engines get the trainer's weights.

Guarantee: afterwards the trainer is at the version that this step made, and every engine reports it; one that has it
already is left alone. A critic, which no engine needs, is at that version too. A run without engines
(--debug-train-only) has nobody to tell, and with --update-weights-interval only some steps tell them.
"""

from typing import Any

from relax_core.run.order import StepOrder
from relax_core.run.reconcile import bring_actor, bring_critic, push_weights
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import action


@action("weight_sync")
def weight_sync(run: RunSession, step: int, update: StageRecord, order: StepOrder | None = None) -> dict[str, Any]:
    """Bring every engine to the version that this step made; an engine that died meanwhile is started anew.

    Args:
        order: told that later steps may generate, where steps overlap.
    """
    version = int(update.values["version"])
    run.ensure()
    bring_actor(run, version)
    bring_critic(run, version)
    pushed = dict[str, Any]()
    if run.mode != "train" and run.sync_due(step):
        pushed = push_weights(run, version)
        run.events.add("weight_sync", step, version=version, engines=len(run.engines.urls))
    if order is not None:
        order.synced(version)
    return pushed
