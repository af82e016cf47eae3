"""What a run shows in Prefect's interface: a progress bar, a table and links per step, a summary at the end.

Guarantee: nothing here decides anything; a run whose artefacts cannot be written goes on and says so in the log. No
step waits for the server: what is written in the middle of a run is written beside it, in order, and is there when
``summary`` returns.
"""

import contextvars
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial, wraps
from typing import Any, ParamSpec
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from relax_core.run.session import RunSession

log = logging.getLogger(__name__)
P = ParamSpec("P")
SILENT_SECONDS = 300.0
"""After a failure nothing is tried for so long: a server that is gone costs half a minute a call."""
MOST_WAITING = 30
"""Writes that may wait; further ones are left out."""

FLUSH_SECONDS = 60.0
"""How long the end of a run waits for what is still to be written."""

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
            log.warning("Prefect takes no artefacts (%s); the run goes on without", str(error).splitlines()[0])
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


def _key(run: RunSession, what: str) -> str:
    """Prefect allows lower-case letters, digits and dashes."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{run.id}-{what}".lower())


@_optional
def start(run: RunSession, done: int) -> UUID | None:
    """The run's progress bar."""
    identifier = create_progress_artifact(
        100.0 * done / run.total_steps, key=_key(run, "progress"), description=run.store.url
    )
    return identifier if isinstance(identifier, UUID) else None


@_later
def progress(run: RunSession, identifier: UUID | None, done: int) -> None:
    """Move the bar."""
    if identifier is not None:
        update_progress_artifact(identifier, 100.0 * done / run.total_steps)


@_later
def step(run: RunSession, number: int, manifest: Mapping[str, Any]) -> None:
    """A step's metrics, seconds and files."""
    rows = [{"what": name, "value": _short(value)} for name, value in sorted(manifest["metrics"].items())]
    rows += [{"what": f"seconds/{name}", "value": _short(value)} for name, value in manifest["seconds"].items()]
    create_table_artifact(rows, key=_key(run, "step"), description=f"Step {number} of {run.store.url}")
    uri = run.store.uri(run.store.step_path(number, ""))
    link = uri if "://" in uri else f"file://{uri}"
    create_link_artifact(link, f"step {number}: Parquet files", key=_key(run, "files"))


@_optional
def summary(run: RunSession, text: str) -> None:
    """The closing summary; waits for all others."""
    wait(_waiting, FLUSH_SECONDS)
    create_markdown_artifact(text, key=_key(run, "summary"), description=run.store.url)


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
