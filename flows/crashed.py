"""Flow runs that a kill has left behind.

Guarantee: a killed driver cannot report its own end, so the next driver of the same run marks what still says RUNNING
as crashed; it touches only training flow runs and their steps with the run's own tag, never itself, and none that waits
its turn. An unreachable server changes nothing.
"""

import logging

from prefect import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.states import Crashed

log = logging.getLogger(__name__)

FLOWS = ["train", "steps", "step"]
"""Flows that a driver runs. An evaluation or a replay of the run, which may be under way beside it, is none of them."""

SUPERSEDED = "Superseded"
"""The state's name. Whoever starts crashed flow runs again leaves these alone: another one goes on with the run."""


def mark_crashed(tag: str) -> int:
    """Mark former flow runs of a run as crashed.

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
    by_driver = FlowFilter(name=FlowFilterName(any_=FLOWS))
    message = "its process ended without a word; another flow run goes on with the run"
    try:
        with get_client(sync_client=True) as client:
            found = client.read_flow_runs(flow_filter=by_driver, flow_run_filter=wanted)
            former = [run for run in found if run.id != own and run.state_name != "Waiting"]
            for run in former:
                client.set_flow_run_state(run.id, Crashed(name=SUPERSEDED, message=message), force=True)
    except Exception as error:  # only a picture is at stake
        log.warning("former runs were not marked: %s", error)
        return 0
    return len(former)
