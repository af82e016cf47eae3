"""A run's checkpoint as a Hugging Face folder, made on a CPU without the run's trainer.

Guarantee: the weights are those that the trainer would export, bit by bit; nothing of the run is written or claimed,
so that it may go on meanwhile. How the folder appears is in ``convert_out``.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data.errors import UserError
from data.files import FileStore
from data.store import RunStore
from relax_core.config import run_file
from relax_core.config.derived import ACTOR_FOLDER
from relax_core.run.records import StageRecords
from relax_core.run.recovery import History
from relax_core.training.checkpoint_index import complete_markers, iterations, read_marker
from relax_core.training.checkpoint_names import folder_name, iteration_of
from relax_core.training.shape import ModelShape, hf_folder
from relax_core.weights.convert_out import RECORD, Converted, appearing, check_out, converted, known

TRIES = 5
"""How often the newest checkpoint may vanish under a conversion before that is an error."""


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints that may be converted.

    Attributes:
        store: their folder.
        hf_checkpoint: the Hugging Face folder for shape and tokenizer; None: each names its own.
        step: the only one that is meant; None: any.
        history: of the run that made them, if they are in its directory.
    """

    store: FileStore
    hf_checkpoint: str | None = None
    step: int | None = None
    history: History | None = None

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """The newest complete checkpoint, with its marker; of a run one that is in its present history."""
        for iteration in iterations(self.store) if self.step is None else [self.step]:
            marker, _ = read_marker(self.store, iteration)
            if marker is not None and (self.step is not None or self._is_own(iteration, marker)):
                return iteration, marker
        return None

    def _is_own(self, iteration: int, marker: dict[str, Any]) -> bool:
        """Whether the run stands on these weights: a step that is learned anew leaves older ones behind for a while."""
        if self.history is None:
            return True
        try:
            return bool(marker.get("weights_id") == self.history.weights_id(iteration + 1))
        except UserError:  # it has no such step
            return False

    def model(self, marker: dict[str, Any]) -> str:
        """The Hugging Face folder of a checkpoint's model.

        Raises:
            UserError: there is none, or it is another model's.
        """
        saved_with = marker.get("hf_checkpoint")
        folder = self.hf_checkpoint or saved_with
        if not folder:
            raise UserError(
                f"{self.store.url} does not say where the model's config.json and tokenizer are.",
                "Give --hf-checkpoint.",
            )
        try:
            hf_folder(folder)
        except UserError as error:
            raise UserError(
                f"The model's config.json and tokenizer are not found: {error.problem}",
                "Give the model's folder with --hf-checkpoint.",
            ) from None
        shape = replace(ModelShape.from_json(marker["shape"]), values=False)
        if apart := shape.differences(ModelShape.from_hf(folder)):
            raise UserError(
                f"The checkpoints in {self.store.url} are of another model than {folder}: {', '.join(apart)} differ.",
                "Give the folder that the run was started from with --hf-checkpoint.",
            )
        return str(folder)


def find_checkpoints(place: str, hf_checkpoint: str | None = None, step: int | None = None) -> Checkpoints:
    """The checkpoints of a run, or of a folder of them.

    Args:
        place: a run directory, a folder of checkpoints, or one checkpoint (``.../iter_0000012``): paths or URLs.
        hf_checkpoint: in place of the run's own.
        step: the one that is meant.

    Raises:
        UserError: there is neither a run nor a checkpoint.
    """
    place = place.rstrip("/")
    if (pinned := iteration_of(place)) is not None:
        if step not in (None, pinned):
            raise UserError(f"--step {step} and {place} are two checkpoints.", "Leave --step out.")
        return Checkpoints(FileStore(place.rpartition("/")[0] or "."), hf_checkpoint, pinned)
    store = RunStore(place)
    if not store.exists("config.yaml"):
        if not any(iteration_of(name) is not None for name in store.ls()):
            raise UserError(
                f"{place} holds neither a run (config.yaml) nor checkpoints (iter_*).",
                "Name a run directory, a folder of checkpoints or one of them.",
            )
        return Checkpoints(FileStore(place), hf_checkpoint, step)
    options = run_file.load(store.read_bytes("config.yaml").decode(errors="replace"))[0].checkpoint
    folder = options.save or f"{place}/{ACTOR_FOLDER}"
    history = History(store, StageRecords(store), folder, "") if store.exists("steps") else None
    model = hf_checkpoint or options.hf_checkpoint
    return Checkpoints(FileStore(folder), model, step, history)


def convert(
    checkpoints: Checkpoints, out: str | Path, say: Callable[[str], None] = lambda text: None, again: int = TRIES
) -> Converted:
    """Make the newest checkpoint, or the one that is meant, a Hugging Face folder.

    Args:
        out: the folder: new, empty, or that very conversion.
        say: receives one line for what vanished meanwhile.

    Raises:
        UserError: no complete checkpoint; the model's folder does not fit; ``out`` is something else, or its disk is
            too small; the checkpoint that is meant vanished.
    """
    out = check_out(out)
    from relax_core.weights.saved import Vanished  # here: torch takes seconds that a mistake does not need

    for left in reversed(range(again)):
        found = checkpoints.newest()
        if found is None:
            raise _nothing(checkpoints)
        try:
            return _convert(checkpoints, *found, out)
        except Vanished as vanished:
            if checkpoints.step is not None or not left:
                raise
            say(f"{vanished.problem} The newest one is taken.")
    raise AssertionError("unreachable")


def _convert(checkpoints: Checkpoints, iteration: int, marker: dict[str, Any], out: Path) -> Converted:
    began, model = time.monotonic(), checkpoints.model(marker)
    origin = {
        "checkpoint": checkpoints.store.uri(folder_name(iteration)),
        "step": iteration,
        "version": int(marker.get("version", iteration + 1)),
        "weights_id": marker.get("weights_id"),
        "model": model,
        "marker": hashlib.sha256(json.dumps(marker, sort_keys=True).encode()).hexdigest(),
    }
    if (there := known(out, origin)) is not None:
        return there
    from relax_core.weights.huggingface import fill_folder
    from relax_core.weights.saved import SavedWeights

    saved = SavedWeights(checkpoints.store, iteration)
    with appearing(out) as folder:
        fill_folder(saved.tensors(), saved.shape, model, folder, saved.dtype, name=str(out))
        files = {path.name: path.stat().st_size for path in folder.iterdir()}
        dtype = str(saved.dtype).removeprefix("torch.")
        (folder / RECORD).write_text(json.dumps({**origin, "dtype": dtype, "files": files}, indent=2), encoding="utf-8")
    return converted(out, {**origin, "dtype": dtype, "files": files}, time.monotonic() - began, made=True)


def _nothing(checkpoints: Checkpoints) -> UserError:
    store, step = checkpoints.store, checkpoints.step
    complete = [iteration for iteration, _ in complete_markers(store, warn=False)]
    there = f"Complete are the steps {', '.join(map(str, complete))}." if complete else "There is no complete one yet."
    if step is None:
        return UserError(f"{store.url} holds no complete checkpoint of the run.", there if complete else _WAIT)
    problem = read_marker(store, step)[1]
    return UserError(f"{store.url} has no complete checkpoint of step {step}: {problem}.", there)


_WAIT = "Wait until the run has saved one (--save-interval), or name another place."
