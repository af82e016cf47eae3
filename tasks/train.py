"""Train: one update of the policy, version ``step`` to ``step + 1``, by compare-and-swap inside the trainer.

Guarantee: however often this runs, the update is applied once. A trainer that is elsewhere (it was restarted, or a
killed driver's call went on with another batch) is first brought to the base version. Another source of a function of
the user in the loss is another identity.
"""

from collections.abc import Callable
from typing import Any

from relax_core.run import turns
from relax_core.run.ports import TrainerPort
from relax_core.run.reconcile import bring_actor
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from relax_core.training.errors import DirtyTrainer, VersionMismatch
from relax_core.training.hooks import loss_sources
from tasks.stage import stage


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    sources = loss_sources(run.config)
    return {"weights": run.history.weights_id(step), **({"sources": sources} if sources else {})}


@stage("train", _identity)
def train(run: RunSession, step: int, key: str, batch: StageRecord) -> StageRecord:
    """The update of this step."""
    turns.train(run, "actor")
    return update(run, step, key, batch, "train", run.trainer, bring_actor)


def update(
    run: RunSession,
    step: int,
    key: str,
    batch: StageRecord,
    name: str,
    trainer: TrainerPort,
    bring: Callable[[RunSession, int], None],
) -> StageRecord:
    """The record ``name`` of a model's update, which its trainer makes on the batch; also ``<name>.json``.

    Args:
        bring: makes the trainer's version that of the step.
    """
    arguments = (step, step + 1, batch.table, run.store.url, key)
    try:
        result = trainer.train(*arguments)
    except (VersionMismatch, DirtyTrainer):
        bring(run, step)
        result = trainer.train(*arguments)
    run.store.write_json(run.store.step_path(step, f"{name}.json"), dict(result))
    values = {
        "version": step + 1,
        "optimizer_step": result["optimizer_step"],
        "batch_sha256": batch.table.sha256,
        "metrics": result["metrics"],
    }
    return StageRecord(name, key, {}, values)
