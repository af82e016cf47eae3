"""Timeline of a run: what started, ended, died, was tried again or rewound, when and why: ``<run>/events.jsonl``.

Guarantee: an event is durable when ``add`` returns, and is in order of time for each writer; a kill loses none before
it and spoils none; a timeline that cannot be written stops nothing. Nothing reads it to decide anything. At the end of
a run the same events are ``events.parquet``.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from data.errors import UserError
from data.jsontext import dumps
from data.store import RunStore
from relax_core import signs

log = logging.getLogger(__name__)

FILE, TABLE, FOLDER = "events.jsonl", "events.parquet", "events"

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "driver_started": "a process began to drive the run; first step, driver before it",
        "driver_ended": "it gave the run up; cause: finished, or the error",
        "driver_restarted": "--use-health-check started the driver again; why, attempt, of how many",
        "waiting": "something has been waited for longer than a minute: what, for whom, since when",
        "flow_crashed": "Prefect said that a former driver's flow was running, though that driver had died",
        "stage_started": "a stage of a step began to compute",
        "stage_finished": "it is recorded; seconds",
        "stage_reused": "a stage was finished before, and was taken from the run directory",
        "retry": "a trainer or engine died under a stage, was started anew, and the stage is done again",
        "stage_failed": "a stage ended with an error; it runs again with the next start",
        "samples_reused": "finished samples of a generation that was cut off were not generated again",
        "groups_carried": "a step began more groups than it needs; it left the others for the next one",
        "groups_dropped": "a filter left groups out; they are trained on in no step",
        "rewards_reused": "calls of rewards that had their outcomes when a scoring was cut off were not made again",
        "actor_started": "a trainer, engine, judge or reward host was started; cause: missing, dead, or another shape",
        "actor_found": "a living one was found and is used",
        "engine_lost": "an engine died or could not be reached; its unfinished requests went to the others",
        "rewind": "a model was set back to a checkpoint, or to its first weights",
        "retrained": "a recorded update was made again on its stored batch; nothing was generated",
        "slice_accumulated": "gradients of a slice of a step's batch were computed while the step still generated",
        "staleness_wait": "a step was not begun before an older one had trained (--max-staleness); seconds",
        "weight_sync": "the engines were brought to a version of the weights",
        "checkpoint_saved": "a checkpoint was written, or its writing began (cause: in the background)",
        "checkpoint_deleted": "the options keep it no longer",
        "set_aside": "something in the run directory was not whole, and is not used",
        "step_committed": "the manifest of a step is written: it is never run again",
    }
)
"""Kind of an event -> what it tells."""

CHUNK = 200
"""Events of a file where the storage cannot append: such a file is written anew with each event."""

_SCHEMA = pa.schema(
    [
        ("time", pa.float64()),
        ("kind", pa.string()),
        ("step", pa.int64()),
        ("who", pa.string()),
        ("cause", pa.string()),
        ("details", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int64()),
    ]
)


class EventLog:
    """Writes the events of one process.

    Args:
        store: the run directory; None: nothing is written (a look at a run).
    """

    def __init__(self, store: RunStore | None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._origin = {"host": socket.gethostname(), "pid": os.getpid()}
        self._began, self._count = time.time(), 0
        self._chunk: list[str] = []
        self._failed = False

    def add(self, kind: str, step: int | None = None, who: str = "driver", cause: str = "", **details: Any) -> None:
        """Write an event; from any thread.

        Args:
            kind: one of ``KINDS``.
            step: rollout step that it belongs to.
            who: whom it happened to, e.g. ``engine-0``.
            cause: why, in words.
            details: whatever else is known, as JSON has it.
        """
        if kind not in KINDS:
            raise ValueError(f"there is no event {kind!r}")
        if kind == "step_committed":
            signs.step_committed()
        elif kind != "waiting":  # which says that nothing has gone on
            signs.alive()
        if self._store is None or self._failed:
            return
        with self._lock:
            event = {"time": round(time.time(), 3), "kind": kind, "step": step, "who": who, "cause": cause, **details}
            try:
                self._write(self._store, {**event, **self._origin})
            except UserError as error:  # the run itself will say so if its folder is gone
                self._failed = True
                log.warning("no more events are written: %s", error)

    def _write(self, store: RunStore, event: dict[str, Any]) -> None:
        if store.is_local:
            store.append_jsonl(FILE, event)
            return
        if self._count % CHUNK == 0:
            self._chunk = []
        name = f"{FOLDER}/{self._began:.3f}-{self._origin['host']}-{os.getpid()}-{self._count // CHUNK:06d}.jsonl"
        self._chunk.append(dumps(event) + "\n")
        self._count += 1
        store.write_bytes(name, "".join(self._chunk).encode())

    def close(self) -> None:
        """Write all events of the run as one table."""
        if self._store is None or self._failed:
            return
        try:
            self._store.write_table(TABLE, events_table(read_events(self._store)))
        except UserError as error:
            log.warning("%s was not written: %s", TABLE, error)


NO_EVENTS = EventLog(None)
"""Writes nothing."""


def read_events(store: RunStore, step: int | None = None, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a run, by time; those of one process that have the same time keep their order.

    Args:
        step: only this step's.
        kind: only these.

    Returns:
        Objects with ``time`` (seconds since 1970), ``kind``, ``step``, ``who``, ``cause``, ``host``, ``pid`` and what
        else was told.
    """
    lines = store.read_jsonl(FILE)
    for name in store.ls(FOLDER):
        lines += store.read_jsonl(f"{FOLDER}/{name}")
    events = [line for line in lines if isinstance(line, dict) and line.get("kind") and "time" in line]
    wanted = [
        event
        for event in events
        if (step is None or event.get("step") == step) and (kind is None or event["kind"] == kind)
    ]
    return sorted(wanted, key=lambda event: float(event["time"]))


def events_table(events: Iterable[Mapping[str, Any]]) -> pa.Table:
    """N events as a table of N rows; what not all events have is JSON text in the column ``details``."""
    rows = []
    for event in events:
        row = {name: event.get(name) for name in _SCHEMA.names}
        others = {name: value for name, value in event.items() if name not in _SCHEMA.names}
        rows.append({**row, "details": dumps(others) if others else None})
    return pa.Table.from_pylist(rows, _SCHEMA)


def event_text(event: Mapping[str, Any]) -> str:
    """One line for people."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(event["time"])))
    step = "" if event.get("step") is None else f"step {event['step']}"
    known = {"time", "kind", "step", "who", "cause", "host", "pid"}
    others = " ".join(f"{name}={_short(value)}" for name, value in event.items() if name not in known)
    told = "; ".join(filter(None, [str(event.get("cause") or ""), others]))
    return f"{at}  {step:9}  {event['kind']:18}  {event.get('who') or '':10}  {told}".rstrip()


def _short(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)
