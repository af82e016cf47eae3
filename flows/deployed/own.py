"""The flow run that this process is, as Prefect keeps it.

Guarantee: what is told about it is told for people alone; a server that does not answer changes nothing of the work.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import get_client
from prefect.context import FlowRunContext
from prefect.states import Running

log = logging.getLogger(__name__)
P = ParamSpec("P")


_said = ["Running"]


def _for_people(tell: Callable[P, Any]) -> Callable[P, None]:
    @wraps(tell)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception as error:
            log.warning("Prefect does not take what is to be shown of this run (%s)", str(error).splitlines()[:1])

    return guarded


@_for_people
def introduce(name: str, tag: str) -> None:
    """Give this flow run a name, and a tag more."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    tags = sorted({*context.flow_run.tags, tag})
    with get_client(sync_client=True) as client:
        client.update_flow_run(context.flow_run.id, name=name, tags=tags)


@_for_people
def say(state: str, message: str = "") -> None:
    """Show ``state`` as what this flow run, which goes on running, is doing."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or state == _said[0]:
        return
    _said[0] = state
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(context.flow_run.id, Running(name=state, message=message), force=True)
