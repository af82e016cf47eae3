"""Weights that a configuration names beside those of its model: checkpoints to go on from, a reference, a teacher.

Guarantee: what is not there, is no checkpoint, or holds another model, is told with the option that names it, as far as
this machine can see it; what lies behind a URL is left to the stage that reads it. No weight is read.
"""

import json
import os
from pathlib import Path
from typing import Any

from data.errors import UserError
from relax_core.config.model_files import read_model_folder
from relax_core.config.problems import Problem
from relax_core.training.checkpoint_names import folder_name, iteration_of
from relax_core.training.shape import ModelShape

TRACKER, MARKER = "latest_checkpointed_iteration.txt", "relax_state.json"
OWNER = "relax_run.json"
"""File in a folder of --save or --critic-save that names the run whose checkpoints it holds."""
_STEP_OPTIONS = {"--ref-load": "--ref-ckpt-step", "--opd-teacher-load": "--opd-teacher-ckpt-step"}
_FIRST_RUN = (
    "Leave it out for a first run, which starts from --ref-load, else --hf-checkpoint; to go on with a run, give its"
    " --run-dir."
)
_ONE_MODEL = "The trainer computes with one model, and these are other weights of it."
_FIXES = {
    "--load": "Give --hf-checkpoint the model that it was trained from, or leave it out.",
    "--critic-load": "Actor and critic have one shape: leave it out, and the critic starts from the actor's weights.",
    "--opd-teacher-load": "A teacher in the trainer is other weights of the same shape; another one takes --opd-type"
    " sglang.",
}
_GO_ON = ("--load", "--critic-load")
_WITHOUT_TENSORS = ("rope_theta", "rope_scaling", "norm_eps")
"""What changes the arithmetic alone: training may go on under another value."""
_OF_THE_HEAD = ("values", "tie")
"""What a critic has otherwise than the actor that its body may come from."""


def weight_problems(
    option: str, folder: str | None, shape: ModelShape | None, *, step: int | None = None, checked: bool = False
) -> list[Problem]:
    """What is wrong with weights that an option names.

    Args:
        option: its flag.
        folder: a Hugging Face folder, a folder of checkpoints, or one of them; None and URLs are passed over.
        shape: of --hf-checkpoint; None when that is not known.
        step: of a folder of checkpoints, which one; None: the newest.
        checked: a Hugging Face folder must be whole, with its weights.
    """
    if not folder or "://" in folder:
        return []
    first = _FIRST_RUN if option == "--load" else ""
    try:
        path = Path(folder)
        if _is_checkpoints(path):
            return _of_checkpoints(option, path, step, shape)
        if checked:
            return _of_model(option, folder, shape)
        if not path.is_dir():
            reason = "is a file, not a folder." if path.exists() else "is no folder."
            return [Problem(option, folder, reason, first)]
        if not (path / "config.json").is_file():
            reason = f"is no checkpoint: it has neither {TRACKER} (Megatron) nor config.json (Hugging Face)."
            return [Problem(option, folder, reason, first)]
        return _of_model(option, folder, shape)
    except OSError as error:
        return [Problem(option, folder, f"cannot be read: {error.strerror}.")]


def owner_problems(option: str, folder: str | None, run_dir: str | None) -> list[Problem]:
    """What is wrong with a folder that checkpoints will be written to: another run, which is still there, has its own.

    Args:
        option: its flag.
        folder, run_dir: as given; None and URLs are passed over.
    """
    if not folder or "://" in folder or "://" in (run_dir or ""):
        return []
    try:
        found = json.loads((Path(folder) / OWNER).read_text(encoding="utf-8"))
        owner = str(found["run"])
        saved = any(Path(folder).glob(f"iter_*/{MARKER}"))
        if not saved or not (Path(owner) / "config.yaml").is_file():
            return []
    except (OSError, ValueError, TypeError, KeyError):
        return []
    run = None if run_dir is None else os.path.realpath(run_dir)
    if owner == run:
        return []
    reason = f"holds checkpoints of the run {owner}, and this is {'a new run' if run is None else f'the run {run}'}."
    return [
        Problem(option, folder, reason, "Name an empty folder, or give the --run-dir of that run to go on with it.")
    ]


def _is_checkpoints(folder: Path) -> bool:
    """Whether this is a folder of Megatron checkpoints, or one of them."""
    try:
        return any((folder / name).is_file() for name in (TRACKER, MARKER))
    except OSError:  # no name that a file could have
        return False


def _of_model(option: str, folder: str, shape: ModelShape | None) -> list[Problem]:
    try:
        other = read_model_folder(folder, tokenizer=False)
    except UserError as error:
        return [Problem(option, None, error.problem, error.fix)]
    return _differing(option, folder, shape, other)


def _of_checkpoints(option: str, folder: Path, step: int | None, shape: ModelShape | None) -> list[Problem]:
    named = _STEP_OPTIONS.get(option)
    if step is not None and not (folder / folder_name(step) / MARKER).is_file():
        reason = f"has no complete checkpoint of step {step}, which {named} names."
        return [Problem(option, str(folder), reason, f"Leave {named} out for the newest.")]
    marker = _marker(folder, step)
    if marker is None:
        return []
    if marker.get("role") == "critic" and option != "--critic-load":
        return [Problem(option, str(folder), "is a critic's checkpoint: it has no output layer.", "Give an actor's.")]
    return _differing(option, str(folder), shape, _shape(marker))


def _marker(folder: Path, step: int | None) -> dict[str, Any] | None:
    """What the checkpoint of a step, else the newest, says of itself; None where that cannot be read."""
    try:
        if iteration_of(str(folder)) is None:
            newest = int((folder / TRACKER).read_text(encoding="utf-8")) if step is None else step
            folder = folder / folder_name(newest)
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the run finds one that is complete, or says why there is none
        return None
    return marker if isinstance(marker, dict) else None


def _shape(marker: dict[str, Any]) -> ModelShape | None:
    """The shape that a checkpoint has recorded, else that of the model it was trained from, if that is still there."""
    try:
        if isinstance(marker.get("shape"), dict):
            return ModelShape.from_json(marker["shape"])
        return ModelShape.from_hf(str(marker["hf_checkpoint"]))
    except (UserError, KeyError, TypeError, OSError):
        return None


def _differing(option: str, folder: str, shape: ModelShape | None, other: ModelShape | None) -> list[Problem]:
    differing = shape.differences(other) if shape is not None and other is not None else []
    if option in _GO_ON:
        differing = [name for name in differing if name not in _WITHOUT_TENSORS]
    if option == "--critic-load":
        differing = [name for name in differing if name not in _OF_THE_HEAD]
    if not differing:
        return []
    told = ", ".join(f"{name} {getattr(other, name)} instead of {getattr(shape, name)}" for name in differing)
    reason = f"has another shape than --hf-checkpoint: {told}."
    return [Problem(option, folder, reason, _FIXES.get(option, _ONE_MODEL))]
