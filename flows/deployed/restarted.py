"""A flow run of training that crashed, or whose process was asked to end, and goes on as the same flow run.

Guarantee: after ``--max-global-restart`` crashes since somebody last decided (`Retry` after Failed or Cancelled) the
flow run ends as Failed, with all causes. A process that gets SIGTERM leaves its flow run as `AwaitingRetry`: the next
worker goes on with it, unless the flow run was cancelled.
"""

import logging
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import Pause, TerminationSignal
from prefect.states import AwaitingRetry

from flows.restarts import start_again, used_up
from relax_core.config import RelaxConfig

log = logging.getLogger(__name__)

_DECIDED = (StateType.FAILED, StateType.CANCELLED, StateType.COMPLETED)


@dataclass
class Crashes:
    """Why a flow run crashed, each time since somebody last decided that it goes on.

    Attributes:
        causes: a line each.
        newest: whether the last of them is why the flow run has begun again now.
    """

    causes: list[str] = field(default_factory=list)
    newest: bool = False


def crashes(states: Iterable[State]) -> Crashes:
    """What a flow run's states tell, whatever their order."""
    found, ran = Crashes(), False
    for state in sorted(states, key=lambda one: one.timestamp):
        if state.type == StateType.RUNNING:
            found.newest = bool(found.causes) and not ran
            ran = True
        elif state.type == StateType.CRASHED and ran:  # Prefect may tell of one death twice
            found.causes.append((state.message or "it crashed").splitlines()[0])
            ran = False
        elif state.type in _DECIDED:
            found, ran = Crashes(), False
    return found


def count_crashes(config: RelaxConfig) -> None:
    """Tell of a new start after a crash, if this is one.

    Raises:
        RestartsUsedUp: there were too many.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return
    with get_client(sync_client=True) as client:
        found = crashes(client.read_flow_run_states(context.flow_run.id))
    if not found.newest:
        return
    if len(found.causes) > config.fault_tolerance.max_global_restart:
        raise used_up(config, found.causes)
    start_again(config, found.causes[-1], len(found.causes), who="prefect")


@contextmanager
def going_on_later() -> Iterator[None]:
    """Round a driver: SIGTERM puts its flow run off instead of ending it.

    Where Ray hears SIGTERM, it exits with its number, which Prefect would call a crash.
    """
    try:
        yield
    except (TerminationSignal, SystemExit) as asked:
        if isinstance(asked, SystemExit) and asked.code not in (signal.SIGTERM, 128 + signal.SIGTERM):
            raise
        state = _put_off()
        if state is None:  # it was cancelled
            raise TerminationSignal(signal.SIGTERM) from asked
        raise Pause("It was asked to end, and goes on later.", state=state) from asked


def _put_off() -> State | None:
    """The state of this flow run from now on; None: it is not to go on."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return None
    message = "its process was asked to end (SIGTERM); it goes on with the next worker"
    wanted: State[None] = AwaitingRetry(message=message)
    try:
        with get_client(sync_client=True) as client:
            now = client.read_flow_run(context.flow_run.id).state
            if now is None or now.type != StateType.RUNNING:
                return None
            client.set_flow_run_state(context.flow_run.id, wanted, force=True)
    except Exception as error:  # without a server: heartbeats are missing from now on, which has the same outcome
        log.warning("Prefect was not told that this flow run goes on later (%s)", type(error).__name__)
        return None
    return wanted
