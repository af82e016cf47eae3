"""Which checkpoints are in a place, and which of them are complete.

Guarantee: a checkpoint counts only when its marker is whole and every file that the marker lists is there with its
size; what a killed process left unfinished is passed over with a warning. Needs neither torch nor Megatron.

Layout below the checkpoint URL: ``iter_0000012/`` (the iteration is the id of the rollout step whose training it
holds), in it Megatron's files and, written last, ``relax_state.json``; ``latest_checkpointed_iteration.txt`` for
Megatron's own tools.
"""

import logging
from typing import Any

from data.files import FileStore
from relax_core.training.checkpoint_names import folder_name, iteration_of

MARKER = "relax_state.json"
TRACKER = "latest_checkpointed_iteration.txt"
FORMAT = 1

log = logging.getLogger(__name__)


def iterations(store: FileStore) -> list[int]:
    """Iterations that have a folder, complete or not, newest first."""
    named = (iteration_of(name) for name in store.ls())
    return sorted((iteration for iteration in named if iteration is not None), reverse=True)


def read_marker(store: FileStore, iteration: int) -> tuple[dict[str, Any] | None, str]:
    """The marker of a complete checkpoint, or None and what is wrong with it."""
    folder = folder_name(iteration)
    marker = store.read_json(f"{folder}/{MARKER}")
    if not isinstance(marker, dict) or "files" not in marker:
        return None, f"{MARKER} is missing or not whole"
    sizes = store.sizes(folder)
    for path, size in marker["files"].items():
        found = sizes.get(f"{folder}/{path}")
        if found is None:
            return None, f"{path} is missing"
        if found != size:
            return None, f"{path} has {found} bytes instead of {size}"
    return marker, ""


def complete_iterations(url: str, warn: bool = True) -> list[tuple[int, str | None]]:
    """Complete checkpoints that a run can resume from (with the optimiser's state), newest first.

    Each with the caller's name for its weights (``weights_id``).

    Args:
        warn: of incomplete ones; not where one may be in the course of being written.
    """
    markers = complete_markers(FileStore(url), warn)
    return [(iteration, marker.get("weights_id")) for iteration, marker in markers if marker.get("optimizer", True)]


def newest_complete(url: str, at_most: int | None = None) -> int | None:
    """Newest complete iteration that is not past ``at_most``; None when there is none."""
    for iteration in iterations(store := FileStore(url)):
        if (at_most is None or iteration <= at_most) and _marker_or_warning(store, iteration) is not None:
            return iteration
    return None


def complete_markers(store: FileStore, warn: bool = True) -> list[tuple[int, dict[str, Any]]]:
    """Complete checkpoints with their markers, newest first."""
    read = _marker_or_warning if warn else lambda store, iteration: read_marker(store, iteration)[0]
    found = ((iteration, read(store, iteration)) for iteration in iterations(store))
    return [(iteration, marker) for iteration, marker in found if marker is not None]


def _marker_or_warning(store: FileStore, iteration: int) -> dict[str, Any] | None:
    marker, problem = read_marker(store, iteration)
    if marker is None:
        log.warning("Checkpoint %s is incomplete (%s) and is passed over.", store.uri(folder_name(iteration)), problem)
    return marker
