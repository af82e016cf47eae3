"""Manifests: the last file of a step, which says that the step is complete.

Guarantee: a step counts as complete only when its manifest is whole and every table that the manifest names, at any
depth, is there with its size. A run that was killed while it wrote a step therefore goes on from the step before. Of
its other files a step needs none to be gone on from: one that is not as the manifest says is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data.store import RunStore, TableRef

logger = logging.getLogger(__name__)

NAME = "manifest.json"


def write(store: RunStore, step: int, content: Mapping[str, Any]) -> None:
    """Writes a step's manifest; ``TableRef`` values are stored as JSON objects."""
    store.write_json(store.step_path(step, NAME), dict(content))


def read(store: RunStore, step: int) -> dict[str, Any] | None:
    """A step's manifest, or None when there is none or it is not whole."""
    found = store.read_json(store.step_path(step, NAME))
    return found if isinstance(found, dict) else None


def table_refs(obj: Any) -> Iterator[TableRef]:
    """Every table reference inside a JSON object, at any depth."""
    from data.store import TableRef

    if isinstance(obj, Mapping):
        if TableRef.__dataclass_fields__.keys() <= obj.keys():
            yield TableRef.from_json(obj)
            return
        obj = list(obj.values())
    if isinstance(obj, list):
        for item in obj:
            yield from table_refs(item)


_STAGES = ("generate", "reward", "forward", "advantage", "train_critic", "train", "evaluate")
"""In the order in which a step has them. Recorded samples take the place of ``generate``."""


def say_incomplete(step: int, text: str) -> None:
    """Warn of a step that is there but incomplete."""
    logger.warning(text)


def last_complete_step(store: RunStore, first: int = 0, say: Callable[[int, str], None] = say_incomplete) -> int | None:
    """The largest i such that all of ``first`` ... i are complete; None when ``first`` is not.

    Sizes come from one listing of ``steps/``. A step that is there but incomplete ends the search with a warning that
    says what is wrong with it.

    Args:
        store: the run directory.
        first: where to begin, e.g. the step after the newest checkpoint, before which nothing is needed any more.
        say: told of a step that is there but incomplete, and why.
    """
    sizes = store.sizes("steps")
    folders = {int(name) for name in (path.split("/")[1] for path in sizes) if name.isdigit()}
    last = None
    step = first
    while step in folders:
        content = read(store, step)
        problem = _problem(store, step, content, sizes)
        if problem or content is None:
            later = sum(folder > step for folder in folders)
            also = f"; {later} later step{'s follow' if later > 1 else ' follows'} in the same way" if later else ""
            after = _last_stage(step, sizes)
            where = f"after its stage {after}, if that is whole" if after else "from its first stage on"
            say(step, f"steps/{step:06d} is not finished ({problem}): the run goes on with it, {where}{also}.")
            break
        for path in _changed_files(content, sizes):
            say(step, f"steps/{step:06d}: {path} is not as it was written; nothing needs it to go on.")
        last, step = step, step + 1
    return last


def _last_stage(step: int, sizes: Mapping[str, int]) -> str:
    """The last stage of a step that is recorded; empty when there is none."""
    recorded = [stage for stage in _STAGES if f"steps/{step:06d}/stages/{stage}.json" in sizes]
    return recorded[-1] if recorded else ""


def _problem(store: RunStore, step: int, content: dict[str, Any] | None, sizes: Mapping[str, int]) -> str:
    """Why the step is not complete; empty when it is."""
    if store.step_path(step, NAME) not in sizes:
        return "it has no manifest"
    if content is None:
        return "its manifest is not whole"
    for ref in table_refs(content):
        if ref.path not in sizes:
            return f"{ref.path} is missing"
        if sizes[ref.path] != ref.bytes:
            return f"{ref.path} has {sizes[ref.path]} bytes instead of {ref.bytes}"
    return ""


def _changed_files(content: Mapping[str, Any], sizes: Mapping[str, int]) -> list[str]:
    """Files of a complete step, no tables, that are gone or have another size than its manifest says."""
    files = content.get("files")
    if not isinstance(files, Mapping):  # of an earlier version
        return []
    return [path for path, entry in files.items() if sizes.get(path) != entry.get("bytes")]
