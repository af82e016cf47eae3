"""Automations of Relax on a Prefect server: what is done about flow runs that die, and whom a failed evaluation tells.

Guarantee: made once, and made anew only where their definition has changed; what a person switched off stays off. They
concern flow runs of deployments with the tag `relax` alone. A flow run that is started again had begun before, so that
it can count its own crashes (``flows.deployed.restarted``): no crash repeats itself for ever.
"""

import os
from datetime import timedelta
from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import get_client
from prefect.blocks.notifications import SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType, FlowRunFilterTags
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.related import tags_as_related_resources
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from relax_core.tracking.notify import check_urls, split_urls

TAG = "relax"
URLS = "RELAX_NOTIFY_URLS"
"""Addresses of Apprise; the variable is that of --notify-urls, so that runs of a worker tell them too."""

SILENT_SECONDS = 90
"""How long a flow run may be silent; its heart beats every 30 s (``prefect.yaml``)."""

SETTLE_SECONDS = 20
"""Between a crash and the next try."""

RESTARTING = "Restarting"
"""Name of the state between the two."""

_RUN = "prefect.flow-run."
_BEGUN = {_RUN + name for name in ("Running", "Retrying", "Rerunning")}

_BODY = """{{ flow_run.name }}: {{ flow_run.state.message }}
{{ flow_run|ui_url }}
The training goes on. `prefect deployment run evaluate/newest` tries again."""


def register_automations() -> list[str]:
    """Make those that are missing, or were defined otherwise; give silent flow runs a last chance to show life.

    Returns:
        What was made, a line each.

    Raises:
        UserError: an address is none that Apprise knows.
    """
    urls = split_urls(os.environ.get(URLS))
    check_urls(urls, URLS)
    done = []
    with get_client(sync_client=True) as client:
        wanted = [silent_runs_crash(), crashed_runs_restart(), restarting_runs_go_on()]
        if urls:
            wanted.append(failed_evaluations_tell(_blocks(urls)))
        for one in wanted:
            if _register(client, one):
                done.append(f"automation {one.name}")
        _ask_for_life(client)
    return done


def missing() -> list[str]:
    """What could be had besides, a line each."""
    with get_client(sync_client=True) as client:
        if client.read_automations_by_name(NOTIFY):
            return []
    return [f"nobody is told of failed evaluations: set {URLS} to addresses of Apprise, and register again"]


NOTIFY = "relax: a failed evaluation is told"


def silent_runs_crash() -> AutomationCore:
    """A flow run that shows no sign of life becomes Crashed: its process, or its machine, is gone.

    Whatever happens to a flow run is a sign; after the last one of a flow run that has ended none is waited for.
    """
    return AutomationCore(
        name="relax: a silent flow run is Crashed",
        description=f"No heartbeat for {SILENT_SECONDS} s: the process or its machine died without a word.",
        tags=[TAG],
        trigger=EventTrigger(
            after={_RUN + "heartbeat", *_BEGUN},
            expect={_RUN + "*"},
            match={"prefect.resource.id": _RUN + "*"},
            match_related=[_tagged()],
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=SILENT_SECONDS),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message="no sign of life")],
    )


def crashed_runs_restart() -> AutomationCore:
    """A training that crashed is to go on. Only one that had begun: what crashes before that cannot count how often (a
    broken installation, for example)."""
    return AutomationCore(
        name="relax: a crashed training is to go on",
        description="What crashed after it had begun. Not after Failed or Cancelled.",
        tags=[TAG],
        trigger=EventTrigger(
            after={_RUN + "heartbeat", *_BEGUN},
            expect={_RUN + "Crashed"},
            match={"prefect.resource.id": _RUN + "*"},
            match_related=[_tagged(), _of_flow("train")],
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(days=365),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name=RESTARTING,
                message=f"it crashed, and is tried again in {SETTLE_SECONDS} s",
                force=True,
            )
        ],
    )


def restarting_runs_go_on() -> AutomationCore:
    """The same flow run is tried again, as `Retry` in the UI does it, and resumes.

    A little later: a worker tells a second time that a process has died, and would crash the new try.
    """
    return AutomationCore(
        name="relax: a crashed training goes on",
        description="The same flow run is tried again and resumes, --max-global-restart times.",
        tags=[TAG],
        trigger=EventTrigger(
            after={_RUN + RESTARTING},
            expect={_RUN + "*"},
            match={"prefect.resource.id": _RUN + "*"},
            match_related=[_tagged(), _of_flow("train")],
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=SETTLE_SECONDS),
        ),
        actions=[ChangeFlowRunState(state=StateType.SCHEDULED, name="AwaitingRetry", message="after a crash")],
    )


def failed_evaluations_tell(blocks: list[Any]) -> AutomationCore:
    """An evaluation that fails is told.

    Args:
        blocks: ids of notification blocks.
    """
    return AutomationCore(
        name=NOTIFY,
        description="Flow runs of evaluate/newest that fail or crash.",
        tags=[TAG],
        trigger=EventTrigger(
            expect={_RUN + name for name in ("Failed", "Crashed", "TimedOut")},
            match={"prefect.resource.id": _RUN + "*"},
            match_related=[_tagged(), _of_flow("evaluate")],
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            SendNotification(block_document_id=block, subject="Relax: an evaluation failed", body=_BODY)
            for block in blocks
        ],
    )


def _tagged() -> dict[str, Any]:
    return {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}


def _of_flow(name: str) -> dict[str, Any]:
    return {"prefect.resource.role": "flow", "prefect.resource.name": name}


def _register(client: SyncPrefectClient, wanted: AutomationCore) -> bool:
    """Whether something was to be done."""
    found = client.read_automations_by_name(wanted.name)
    if not found:
        client.create_automation(wanted)
        return True
    if _definition(found[0]) == _definition(wanted):
        return False
    client.update_automation(found[0].id, wanted.model_copy(update={"enabled": found[0].enabled}))
    return True


def _definition(one: AutomationCore) -> dict[str, Any]:
    parts = AutomationCore.model_validate(one.model_dump()).model_dump(
        mode="json", include={"name", "description", "trigger", "actions"}
    )
    for name in ("after", "expect", "for_each"):
        parts["trigger"][name] = sorted(parts["trigger"][name])
    return parts


def _blocks(urls: list[str]) -> list[Any]:
    """Ids of notification blocks for addresses of any kind: Prefect's block for Slack hands its address to Apprise."""
    ids = []
    for number, url in enumerate(urls, start=1):
        block = SlackWebhook(url=url)  # type: ignore[arg-type]  # pydantic makes a secret of it
        ids.append(block.save(f"relax-notify-{number}", overwrite=True))
    return ids


def _ask_for_life(client: SyncPrefectClient) -> None:
    """Begin to wait for signs of life of all flow runs that say they run, or are about to.

    A server that was down for long has forgotten that it waited for them, and their processes may be gone as well. What
    a worker that is gone was about to start is found by this alone.
    """
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[TAG]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])),
    )
    names: dict[Any, str] = {}
    for run in client.read_flow_runs(flow_run_filter=wanted):
        if run.flow_id not in names:
            names[run.flow_id] = client.read_flow(run.flow_id).name
        flow = {
            "prefect.resource.id": f"prefect.flow.{run.flow_id}",
            "prefect.resource.role": "flow",
            "prefect.resource.name": names[run.flow_id],
        }
        tags = [tag.model_dump() for tag in tags_as_related_resources(run.tags)]
        emit_event(
            _RUN + "heartbeat",
            {"prefect.resource.id": f"{_RUN}{run.id}", "prefect.resource.name": run.name},
            related=[flow, *tags],
        )
