"""Cancel in Prefect's interface, for a run that no worker of Prefect watches over.

Guarantee: such a run ends in order within ``SECONDS`` and what Ctrl-C takes, as after Ctrl-C: nothing finished is lost,
the same command goes on, and its flow run says Cancelled. A server that does not answer cancels nothing. A run of a
deployment is left to its worker.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.states import Cancelled

log = logging.getLogger(__name__)

SECONDS = 5.0
"""Between two looks."""

_asked: set[UUID] = set()

TEXT = "cancelled in Prefect's interface: the run ends now, and the same command goes on from the last finished task"


@contextlib.contextmanager
def heeding_cancel(say: Callable[[str], None]) -> Iterator[None]:
    """Round the body of a flow.

    Args:
        say: gets a line about it.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or run.deployment_id is not None:
        yield
        return
    ended = threading.Event()
    threading.Thread(target=_watch, args=(run.id, ended, say), daemon=True, name="cancel-watch").start()
    try:
        yield
    finally:
        ended.set()


def _watch(run: UUID, ended: threading.Event, say: Callable[[str], None]) -> None:
    while not ended.wait(SECONDS):
        try:
            if not _cancelled(run):
                continue
        except Exception as error:  # whatever it is, nobody has cancelled
            log.debug("not known whether the run is cancelled: %s", error)
            continue
        if not ended.is_set():
            say(TEXT)
            os.kill(os.getpid(), signal.SIGINT)
        return


def _cancelled(run: UUID) -> bool:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
        if state is None or not (state.is_cancelling() or state.is_cancelled()):
            return False
        _asked.add(run)
        return True


def say_cancelled(flow: Any, flow_run: FlowRun, state: State) -> None:
    """A hook of a flow that has crashed, as by Ctrl-C: if somebody has cancelled it, that is what its state says."""
    if flow_run.id in _asked:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run.id, Cancelled(message=TEXT), force=True)
