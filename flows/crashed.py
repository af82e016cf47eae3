"""Flow runs that a kill has left behind.

Guarantee: a killed driver cannot report its own end, so the next driver of the same run marks what still says RUNNING
as Crashed; it touches only flow runs with the run's own tag, never itself. An unreachable server changes nothing.
"""

import logging

from prefect import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.states import Crashed

log = logging.getLogger(__name__)


def mark_crashed(tag: str) -> int:
    """Mark former flow runs of a run as Crashed.

    Args:
        tag: the run's tag.

    Returns:
        How many were marked.
    """
    context = FlowRunContext.get()
    own = context.flow_run.id if context and context.flow_run else None
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[tag]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])),
    )
    try:
        with get_client(sync_client=True) as client:
            former = [run for run in client.read_flow_runs(flow_run_filter=wanted) if run.id != own]
            for run in former:
                client.set_flow_run_state(run.id, Crashed(message="its process ended without a word"), force=True)
    except Exception as error:  # only a picture is at stake
        log.warning("former runs were not marked: %s", error)
        return 0
    return len(former)
