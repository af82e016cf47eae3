"""Which run a folder of checkpoints belongs to, where it is not in that run's own directory.

Guarantee: a run that trains writes its name (``OWNER``) into the folders of --save and --critic-save, and writes into
none that holds complete checkpoints of another run: that is an error before any engine starts. A run whose directory
was moved keeps its checkpoints: it knows their weights.
"""

import os
from typing import Any

from data.errors import UserError
from data.files import FileStore
from data.store import RunStore
from relax_core.config.weight_files import OWNER
from relax_core.run.recovery import History
from relax_core.training.checkpoint_index import complete_markers


def claim(option: str, history: History) -> None:
    """Make a folder of checkpoints this run's own.

    Args:
        option: the flag that names the folder.
        history: of the model that is saved there.

    Raises:
        UserError: it holds complete checkpoints of another run.
    """
    folder, run = FileStore(history.checkpoints), address(history.store.url)
    if is_within(history.checkpoints, history.store.url):
        return
    found = folder.read_json(OWNER)
    owner = found.get("run") if isinstance(found, dict) else None
    if owner == run:
        return
    markers = complete_markers(folder, warn=False)
    if markers and (_is_run(owner) or not _any_of(history, markers)):
        whose = f"of the run {owner}" if owner else "of another run, which wrote no name"
        steps = ", ".join(str(iteration) for iteration, _ in reversed(markers[:4]))
        raise UserError(
            f"{option} {history.checkpoints} holds checkpoints {whose} (step {steps}), and this run is {run}: it would"
            " replace them.",
            "Name an empty folder, or leave the option out: then the run directory has its checkpoints. To go on with"
            " that run, give its --run-dir; to begin with its weights, --load (a critic: --critic-load).",
        )
    folder.write_json(OWNER, {"run": run})


def address(url: str) -> str:
    """One name of a place, however it is written."""
    local = FileStore(url).local_path("")
    return url.rstrip("/") if local is None else os.path.realpath(local)


def is_within(url: str, folder: str) -> bool:
    """Whether a place is in a folder, or is that folder."""
    return f"{address(url)}/".startswith(f"{address(folder)}/")


def _is_run(run: Any) -> bool:
    return isinstance(run, str) and RunStore(run).exists("config.yaml")


def _any_of(history: History, markers: list[tuple[int, dict[str, Any]]]) -> bool:
    """Whether a checkpoint holds weights that this run has made."""
    for iteration, marker in markers:
        try:
            if marker.get("weights_id") == history.weights_id(iteration + 1):
                return True
        except UserError:  # this run has no such step
            continue
    return False
