"""Which checkpoints are complete, without loading one.

Guarantee: a checkpoint counts only when its marker ``relax_state.json``, which is written last, is there and whole and
every file that it lists exists with the listed size; needs neither torch nor Megatron.
"""

import logging
import re

from data.store import RunStore

log = logging.getLogger(__name__)

MARKER = "relax_state.json"
TRACKER = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"iter_(\d{7,})")


def folder_name(iteration: int) -> str:
    """Folder of an iteration, as Megatron names it."""
    return f"iter_{iteration:07d}"


def complete_iterations(url: str) -> list[tuple[int, str | None]]:
    """Complete checkpoints below ``url``, newest first: iteration and identity of its weights.

    An iteration is the step whose update was the last one in it. Incomplete ones are named in a warning and left out.
    """
    store = RunStore(url)
    sizes = store.sizes()
    found = []
    for name in {path.split("/", 1)[0] for path in sizes}:
        match = _FOLDER.fullmatch(name)
        if match is None:
            continue
        marker = store.read_json(f"{name}/{MARKER}")
        reason = _incomplete(name, marker, sizes)
        if reason:
            log.warning("checkpoint %s/%s is incomplete (%s) and is not used", url, name, reason)
            continue
        found.append((int(match.group(1)), marker.get("weights_id")))
    return sorted(found, key=lambda entry: -entry[0])


def _incomplete(name: str, marker: object, sizes: dict[str, int]) -> str:
    if not isinstance(marker, dict) or not isinstance(marker.get("files"), dict):
        return f"no whole {MARKER}"
    for path, size in marker["files"].items():
        actual = sizes.get(f"{name}/{path}")
        if actual != size:
            return f"{path} has {'no' if actual is None else actual} bytes instead of {size}"
    return ""
