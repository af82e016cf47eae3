"""Where a run is, by its timeline.

Guarantee: reads only the end of a timeline on a local disk, however long the run is; what an earlier driver left
unfinished does not count.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from data.errors import UserError
from data.store import RunStore
from relax_core.tracking.events import FILE, read_events

TAIL_BYTES = 256 * 1024
"""Of a timeline that are read; the events of some hundred steps."""


@dataclass(frozen=True)
class Running:
    """A stage that is computed. ``since``: seconds since 1970."""

    step: int
    stage: str
    since: float


@dataclass(frozen=True)
class Position:
    """Where a run is.

    Attributes:
        running: stages that are computed now, the oldest first; several where steps overlap.
        last: the event that came last, as ``kind`` or ``stage finished``.
        done: steps that are committed.
        version: of the weights that the engines have; None: not known.
        staleness: steps by which the weights that generate now lie behind the newest possible; None: nothing is
            generated.
        step_seconds: of the last committed step.
    """

    running: list[Running] = field(default_factory=list)
    last: str = ""
    done: int = 0
    version: int | None = None
    staleness: int | None = None
    step_seconds: float | None = None


def position(events: Iterable[Mapping[str, Any]]) -> Position:
    """Where a run is after these events, which are in order.

    Args:
        events: of ``relax_core.tracking.events``, from any on.
    """
    running: dict[tuple[int, str], Running] = {}
    last, done, version, seconds = "", 0, None, None
    for event in events:
        kind, step, who = str(event["kind"]), event.get("step"), str(event.get("who") or "")
        last = f"waiting {event.get('cause', '')}" if kind == "waiting" else kind.replace("_", " ")
        if kind == "driver_started":
            running, version = {}, None
            done = max(done, int(event.get("first_step", 0)))
        elif kind == "stage_started" and step is not None:
            running[int(step), who] = Running(int(step), who, float(event["time"]))
        elif kind in ("stage_finished", "stage_failed", "stage_reused") and step is not None:
            running.pop((int(step), who), None)
            last = f"{who} {last.removeprefix('stage ')}"
        elif kind == "weight_sync":
            version = event.get("version")
        elif kind == "step_committed" and step is not None:
            done, seconds = max(done, int(step) + 1), event.get("seconds")
            running = {key: stage for key, stage in running.items() if key[0] != step}
    generating = [stage.step for stage in running.values() if stage.stage == "generate"]
    weights = done if version is None else int(version)
    staleness = max(0, max(generating) - weights) if generating else None
    order = sorted(running.values(), key=lambda stage: (stage.step, stage.since))
    return Position(order, last, done, version, staleness, seconds)


def position_of(run: str) -> Position:
    """Where the run of this address is.

    Raises:
        UserError: its directory cannot be read.
    """
    store = RunStore(run)
    path = store.local_path(FILE)
    if path is None:
        return position(read_events(store))
    return position(_tail(path))


def _tail(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    found = []
    for line in lines[1:] if size > TAIL_BYTES else lines:
        try:
            event = json.loads(line)
        except ValueError:  # cut off, by the tail or by a kill
            continue
        if isinstance(event, dict) and event.get("kind") and "time" in event:
            found.append(event)
    return found
