"""Reconciliation: bring a trainer and its engines to the version that the run directory says.

Guarantee: after ``bring_trainer_to(v)`` the trainer's weights and optimiser are those that the recorded updates ``0
... v-1`` produce, without generating anything: a live trainer that is there needs nothing; any other loads the newest
complete checkpoint of this history that is not past ``v`` and trains again on the stored batches. No recorded update
is applied twice: the trainer compares and swaps.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from data.errors import UserError
from data.store import RunStore, TableRef
from relax_core.run.ports import TrainerPort
from relax_core.run.records import StageRecords
from relax_core.tracking.events import NO_EVENTS, EventLog
from relax_core.training.checkpoint_index import complete_iterations

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """What the run directory knows about the weights of one of the models that the run trains.

    Attributes:
        store: the run directory.
        records: its stage records.
        checkpoints: URL of the model's checkpoints.
        start_id: identity of its weights of version 0.
        stage: the stage that makes its updates.
        entry: the key under which manifests have its weights.
        name: what people are told that it is.
    """

    store: RunStore
    records: StageRecords
    checkpoints: str
    start_id: str
    stage: str = "train"
    entry: str = "weights"
    name: str = "trainer"

    def weights_id(self, version: int) -> str:
        """Identity of the weights of a version: the key of the update that made them, which covers all before it.

        Raises:
            UserError: the update is not recorded.
        """
        if version == 0:
            return self.start_id
        record = self.records.last(version - 1, self.stage)
        if record is not None:
            return record.key
        weights_id = self.finished_id(version - 1)  # it says the same
        if weights_id is None:
            raise UserError(
                f"The record of the {self.name}'s update of step {version - 1} is missing from {self.store.url}.",
                "Restore steps/, or start a new run directory.",
            )
        return weights_id

    def finished_id(self, step: int) -> str | None:
        """Identity of the weights that ``step`` made, if it is finished: its manifest says it."""
        manifest = self.store.read_manifest(step)
        weights = None if manifest is None else manifest.get(self.entry)
        return None if weights is None else str(weights["id"])

    def saved(self, step: int) -> dict[str, Any] | None:
        """What the manifest of a finished step says of this model's checkpoint."""
        manifest = self.store.read_manifest(step) or {}
        of_model = manifest if self.entry == "weights" else manifest.get(self.entry) or {}
        found: dict[str, Any] | None = of_model.get("checkpoint")
        return found

    def newest_finished(self) -> int:
        """The newest finished step of which a complete checkpoint of this history is there; -1: there is none."""
        for iteration, weights_id in complete_iterations(self.checkpoints):
            if weights_id is not None and self.finished_id(iteration) == weights_id:
                return iteration
        return -1

    def newest_checkpoint(self, version: int, warn: bool = True) -> int | None:
        """The newest complete checkpoint of this history that is not past ``version``.

        Args:
            warn: as in ``complete_iterations``.
        """
        for iteration, weights_id in complete_iterations(self.checkpoints, warn):
            if iteration + 1 <= version and weights_id == self.weights_id(iteration + 1):
                return iteration
        return None

    def batch(self, step: int) -> TableRef:
        """The stored batch that the recorded update of ``step`` was made from.

        Raises:
            UserError: it is gone, or another batch lies there.
        """
        record, manifest = self.records.last(step, "advantage"), self.store.read_manifest(step)
        reference = record.table if record is not None else None
        if reference is None and manifest is not None:
            reference = TableRef.from_json(manifest["tables"]["advantage/batch"])
        if reference is None or not self.store.valid(reference):
            raise UserError(
                f"The batch of step {step} is missing from {self.store.url} and no checkpoint covers it.",
                "Restore the file, or start a new run directory.",
            )
        update = self.records.last(step, self.stage)
        if update is not None and update.values.get("batch_sha256") != reference.sha256:
            raise UserError(
                f"The batch of step {step} in {self.store.url} is not the one that its recorded update was made from.",
                "Restore batch.parquet and its record in steps/, or start a new run directory.",
            )
        return reference


def bring_trainer_to(
    version: int,
    trainer: TrainerPort,
    history: History,
    say: Callable[[str], None] = log.warning,
    events: EventLog = NO_EVENTS,
    prepare: Callable[[], object] = lambda: None,
) -> list[int]:
    """Make the trainer's version ``version``.

    Args:
        say: receives one line for what is done and why.
        events: the run's timeline.
        prepare: called before the trainer has something to do.

    Returns:
        The steps that were trained again.

    Raises:
        UserError: a batch that is needed is gone.
    """
    status = trainer.status()
    wanted = history.weights_id(version)
    at = int(status["version"])
    if not status["dirty"] and at == version and status["weights_id"] in (wanted, None if version == 0 else wanted):
        return []
    prepare()
    cause = f"it was at version {at}{' after a failed update' if status['dirty'] else ''}, the run is at {version}"
    usable = not status["dirty"] and at < version and status["weights_id"] == history.weights_id(at)
    newest = history.newest_checkpoint(version)
    if usable and (newest is None or newest + 1 <= at):
        say(f"{history.name} is at version {at}, the run at {version}")
    elif newest is not None:
        say(f"{history.name} is at version {at}, the run at {version}: loading the checkpoint of step {newest}")
        trainer.load(history.checkpoints, newest)
        events.add("rewind", who=history.name, cause=cause, version=newest + 1, wanted=version, checkpoint=newest)
        at = newest + 1
    else:
        if at != 0 or status["dirty"]:
            trainer.initialise()
        if version:
            say(
                f"{history.name} is new, the run is at version {version}, and there is no checkpoint: from the first"
                " weights"
            )
            events.add(
                "rewind", who=history.name, cause=f"{cause}, and there is no checkpoint", version=0, wanted=version
            )
        at = 0
    redone = list(range(at, version))
    what = "training" if history.stage == "train" else f"training the {history.name}"
    for step in redone:
        say(f"{what} again on the stored batch of step {step} (nothing is generated)")
        train_recorded(step, trainer, history)
        events.add("retrained", step, history.name, version=step + 1)
    return redone


def train_recorded(step: int, trainer: TrainerPort, history: History) -> None:
    """Repeat a recorded update on its stored batch."""
    trainer.train(step, step + 1, history.batch(step), history.store.url, history.weights_id(step + 1))
