"""Reconciliation: bring a trainer and its engines to the version that the run directory says.

Guarantee: after ``bring_trainer_to(v)`` the trainer's weights and optimiser are those that the recorded updates ``0
... v-1`` produce, without generating anything: a live trainer that is there needs nothing; any other loads the newest
complete checkpoint of this history that is not past ``v`` and trains again on the stored batches. No recorded update
is applied twice: the trainer compares and swaps.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from data.errors import UserError
from data.store import RunStore, TableRef
from relax_core.run.ports import TrainerPort
from relax_core.run.records import StageRecords
from relax_core.training.checkpoint_index import complete_iterations

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """What the run directory knows about the weights.

    Attributes:
        store: the run directory.
        records: its stage records.
        checkpoints: URL of the checkpoints.
        start_id: identity of the weights of version 0.
    """

    store: RunStore
    records: StageRecords
    checkpoints: str
    start_id: str

    def weights_id(self, version: int) -> str:
        """Identity of the weights of a version: the key of the update that made them, which covers all before it.

        Raises:
            UserError: the update is not recorded.
        """
        if version == 0:
            return self.start_id
        record = self.records.last(version - 1, "train")
        if record is not None:
            return record.key
        manifest = self.store.read_manifest(version - 1)  # of a finished step it says the same
        if manifest is None:
            raise UserError(
                f"The record of the update of step {version - 1} is missing from {self.store.url}.",
                "Restore steps/, or start a new run directory.",
            )
        return str(manifest["weights"]["id"])

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
        update = self.records.last(step, "train")
        if update is not None and update.values.get("batch_sha256") != reference.sha256:
            raise UserError(
                f"The batch of step {step} in {self.store.url} is not the one that its recorded update was made from.",
                "Restore batch.parquet and its record in steps/, or start a new run directory.",
            )
        return reference


def bring_trainer_to(
    version: int, trainer: TrainerPort, history: History, say: Callable[[str], None] = log.warning
) -> list[int]:
    """Make the trainer's version ``version``.

    Args:
        say: receives one line for what is done and why.

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
    usable = not status["dirty"] and at < version and status["weights_id"] == history.weights_id(at)
    newest = _newest_checkpoint(version, history)
    if usable and (newest is None or newest + 1 <= at):
        say(f"trainer is at version {at}, the run at {version}")
    elif newest is not None:
        say(f"trainer is at version {at}, the run at {version}: loading the checkpoint of step {newest}")
        trainer.load(history.checkpoints, newest)
        at = newest + 1
    else:
        if at != 0 or status["dirty"]:
            trainer.initialise()
        if version:
            say(f"trainer is new, the run is at version {version}, and there is no checkpoint: from the first weights")
        at = 0
    redone = list(range(at, version))
    for step in redone:
        say(f"training again on the stored batch of step {step} (nothing is generated)")
        train_recorded(step, trainer, history)
    return redone


def train_recorded(step: int, trainer: TrainerPort, history: History) -> None:
    """Repeat a recorded update on its stored batch."""
    trainer.train(step, step + 1, history.batch(step), history.store.url, history.weights_id(step + 1))


def _newest_checkpoint(version: int, history: History) -> int | None:
    """Newest complete checkpoint of this history that is not past ``version``."""
    for iteration, weights_id in complete_iterations(history.checkpoints):
        if iteration + 1 <= version and weights_id == history.weights_id(iteration + 1):
            return iteration
    return None
