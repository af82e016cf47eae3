"""Manifests: the last file of a step, which says that the step is complete.

Guarantee: a step counts as complete only when its manifest is whole and every table that the manifest names, at any
depth, is there with its size. A run that was killed while it wrote a step therefore goes on from the step before.
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
        problem = _problem(store, step, sizes)
        if problem:
            later = sum(folder > step for folder in folders)
            also = f"; {later} later step{'s' if later > 1 else ''} will be made again too" if later else ""
            say(step, f"Step {step} is incomplete ({problem}) and will be made again{also}.")
            break
        last, step = step, step + 1
    return last


def _problem(store: RunStore, step: int, sizes: Mapping[str, int]) -> str:
    """Why the step is not complete; empty when it is."""
    if store.step_path(step, NAME) not in sizes:
        return "it has no manifest"
    content = read(store, step)
    if content is None:
        return "its manifest is not whole"
    for ref in table_refs(content):
        if ref.path not in sizes:
            return f"{ref.path} is missing"
        if sizes[ref.path] != ref.bytes:
            return f"{ref.path} has {sizes[ref.path]} bytes instead of {ref.bytes}"
    return ""
