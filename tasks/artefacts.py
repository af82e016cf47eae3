"""What a run shows in Prefect's interface: a progress bar, a table of metrics and the files of each step, and a summary
that is there while the run goes on too.

Guarantee: nothing here decides anything; a run whose artefacts cannot be written goes on and says so in the log. No
step waits for the server: what is written in the middle of a run is written beside it, in order, and is there when
``shown`` ends. A run that is taken up again goes on under the same keys: what was written before are older versions.
"""

import contextlib
import contextvars
import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial, wraps
from typing import Any, ParamSpec
from uuid import UUID

from prefect import get_client
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from data.errors import UserError
from relax_core.run.session import RunSession
from relax_core.show.page import write_page
from relax_core.show.samples import best_and_worst
from relax_core.tracking.curves import data_uri
from relax_core.tracking.events import read_events
from relax_core.tracking.jsonl import read_metrics
from relax_core.tracking.report import added, picture_of, run_report
from relax_core.tracking.step_table import metric_rows, step_text
from relax_core.tracking.summary import resume_command
from tasks import stage_log
from tasks.cancelled import heeding_cancel
from tasks.keys import artefact_key
from tasks.served import file_server

log = logging.getLogger(__name__)
P = ParamSpec("P")
SILENT_SECONDS = 300.0
"""After a failure nothing is tried for so long: a server that is gone costs half a minute a call."""
MOST_WAITING = 30
"""Writes that may wait; further ones are left out."""

FLUSH_SECONDS = 60.0
"""How long the end of a run waits for what is still to be written."""

SUMMARY_SECONDS = 30.0
"""At least so long between two summaries of a run that goes on: each reads tables."""

SUMMARY_SHARE = 0.02
"""Of the driver's time, at most, for summaries of a run that goes on."""

BAR_SECONDS = 3.0
"""At least so long between two moves of the bar: each is a write, for which others wait."""

CURVES = "curves.svg"
"""The picture in the run directory."""

SHOWN = 3
"""Best, and worst, rollouts of a summary."""

_silent_until = [0.0]
_beside = ThreadPoolExecutor(1, thread_name_prefix="artefacts")
_waiting: list[Future[Any]] = []


def _optional(write: Callable[P, Any]) -> Callable[P, Any]:
    @wraps(write)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        if time.monotonic() < _silent_until[0]:
            return None
        try:
            return write(*args, **kwargs)
        except Exception as error:  # a picture is never worth a run
            _silent_until[0] = time.monotonic() + SILENT_SECONDS
            reason = f"{error}\n".splitlines()[0] or type(error).__name__
            log.warning("Prefect takes no artefacts (%s); the run goes on without", reason)
            return None

    return guarded


def _later(write: Callable[P, Any]) -> Callable[P, None]:
    """Write beside the run, as the flow and task that this is called in."""
    optional = _optional(write)

    @wraps(write)
    def handed_over(*args: P.args, **kwargs: P.kwargs) -> None:
        _waiting[:] = [one for one in _waiting if not one.done()]
        if time.monotonic() >= _silent_until[0] and len(_waiting) < MOST_WAITING:
            _waiting.append(_beside.submit(partial(contextvars.copy_context().run, optional, *args, **kwargs)))

    return handed_over


def _address(run: RunSession) -> str:
    """Of the run directory, whole: whoever reads it may stand in another folder."""
    return run.store.uri().rstrip("/")


class Shown:
    """What a run shows while it goes on. Made by ``shown``."""

    def __init__(self, run: RunSession, done: int) -> None:
        self._run, self._made = run, 0
        self._seconds: dict[str, float] = {}
        self._summary: list[UUID] = []
        self._next_summary = self._earliest_summary = self._next_bar = 0.0
        self._bar: UUID | None = _start(run, done)
        self.closing = ""

    def step(self, step: int, manifest: Mapping[str, Any]) -> None:
        """A step is finished."""
        self._made += 1
        added(self._seconds, [manifest])
        if time.monotonic() >= self._next_bar or step + 1 == self._run.total_steps:
            self._next_bar = time.monotonic() + BAR_SECONDS
            _progress(self._run, self._bar, step + 1, manifest["metrics"])
        due = time.monotonic() >= self._next_summary or self._run.evaluation_due(step)
        if due and time.monotonic() >= self._earliest_summary:
            self._next_summary = time.monotonic() + SUMMARY_SECONDS
            _later(self._summarise)(dict(self._seconds), self._made)

    def end(self, ended: str) -> None:
        """The last summary; waits for all others."""
        wait(_waiting, FLUSH_SECONDS)
        _optional(self._summarise)(self._seconds, self._made, ended, self.closing)

    def _summarise(self, seconds: Mapping[str, float], made: int, ended: str = "", closing: str = "") -> None:
        store, began = self._run.store, time.monotonic()
        metrics = read_metrics(store)
        picture = picture_of(metrics)
        if picture is not None:
            store.write_bytes(CURVES, picture.encode())
        best: list[dict[str, Any]] = []
        worst: list[dict[str, Any]] = []
        page = None
        newest = int(metrics[-1]["step"]) if metrics else -1
        try:
            best, worst = best_and_worst(store, newest, SHOWN)
            page = write_page(store, newest)
        except Exception as error:  # the rest can be shown without; a run may keep no tables
            log.debug("no rollouts of step %d are shown: %s", newest, error)
        text = run_report(
            _address(self._run),
            total_steps=self._run.total_steps,
            metrics=metrics,
            seconds=seconds,
            made=made,
            events=read_events(store),
            best=best,
            worst=worst,
            picture=None if picture is None else data_uri(picture),
            picture_at=None if picture is None else store.uri(CURVES),
            page=page,
            server=file_server(_address(self._run)),
            ended=ended,
            closing=closing or f"relax show {shlex.quote(store.url)}\n{resume_command(store.url)}   (goes on)",
        )
        self._earliest_summary = time.monotonic() + (time.monotonic() - began) / SUMMARY_SHARE
        if self._summary:
            _rewrite(self._summary[0], text)
            return
        made_now = create_markdown_artifact(text, key=artefact_key(self._run.id, "summary"), description=store.url)
        self._summary += [made_now] if isinstance(made_now, UUID) else []


@contextlib.contextmanager
def shown(run: RunSession, done: int) -> Iterator[Shown]:
    """Show a run while the body makes its steps: also what the terminal is told, in the log of its flow run.

    Args:
        done: steps that are finished before.
    """
    stage_log.begin(run)
    run.progress.listener = stage_log.tell
    shows = Shown(run, done)
    ended = "stopped"
    try:
        with heeding_cancel(run.progress.note):
            yield shows
        ended = ""
    except Exception as error:
        problem = error.problem if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        ended = f"ended by an error: {problem}"
        raise
    finally:
        run.progress.listener = None
        if ended != "stopped":  # a Ctrl-C has seconds to end
            shows.end(ended)
        stage_log.end()


@_optional
def _start(run: RunSession, done: int) -> UUID | None:
    """The run's progress bar."""
    identifier = create_progress_artifact(
        100.0 * done / run.total_steps, key=artefact_key(run.id, "progress"), description=_bar_text(run, done, {})
    )
    return identifier if isinstance(identifier, UUID) else None


@_later
def _progress(run: RunSession, identifier: UUID | None, done: int, metrics: Mapping[str, Any]) -> None:
    """Move the bar."""
    if identifier is not None:
        update_progress_artifact(identifier, 100.0 * done / run.total_steps, _bar_text(run, done, metrics))


def _bar_text(run: RunSession, done: int, metrics: Mapping[str, Any]) -> str:
    reward = f", mean reward {metrics['reward/mean']:.3f}" if "reward/mean" in metrics else ""
    return f"step {done} of {run.total_steps}{reward}: `{run.store.url}`"


@_later
def step(run: RunSession, number: int, manifest: Mapping[str, Any]) -> None:
    """A step's metrics and seconds, and its files."""
    before = run.store.read_manifest(number - 1) if number else None
    description = step_text(_address(run), number, manifest, file_server(_address(run)))
    create_table_artifact(metric_rows(manifest, before), key=artefact_key(run.id, "step"), description=description)


def _rewrite(identifier: UUID, text: str) -> None:
    """New content of an artefact. The client's own call would send the whole text a second time, as an event."""
    with get_client(sync_client=True) as client:
        client.request("PATCH", "/artifacts/{id}", path_params={"id": identifier}, json={"data": text})
