"""Scheduled flow runs that have piled up: while no worker was there, or the machine slept.

Guarantee: of flow runs of a deployment that are due and were given the same parameters one runs; the others end at once
as `Skipped`. What somebody asked for by hand is left alone, and so is what is not due yet.
"""

import logging
from datetime import UTC, datetime

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.states import Completed

log = logging.getLogger(__name__)


def due(own: FlowRun) -> FlowRunFilter:
    """Flow runs of the deployment of ``own`` that are due, and have not begun."""
    return FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[own.deployment_id] if own.deployment_id else []),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),
    )


def skip_the_same() -> int:
    """End those that this flow run stands for.

    Returns:
        How many.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return 0
    own = context.flow_run
    message = f"The flow run {own.name}, which was due too, does the same."
    skipped: State[None] = Completed(name="Skipped", message=message)
    try:
        with get_client(sync_client=True) as client:
            same = [
                run
                for run in client.read_flow_runs(flow_run_filter=due(own))
                if run.auto_scheduled and run.id != own.id and run.parameters == own.parameters
            ]
            for run in same:
                client.set_flow_run_state(run.id, skipped, force=True)
    except Exception as error:  # then they run, and find that there is nothing to do
        log.warning("late flow runs were not skipped: %s", error)
        return 0
    return len(same)
