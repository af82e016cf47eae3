"""Automations on a Prefect server: what is registered, when again, and what is left alone."""

from datetime import timedelta
from typing import Any

import pytest
import yaml

from data.errors import UserError
from deployments import automations
from deployments.automations import URLS, missing, register_automations
from deployments.register import FILE


@pytest.fixture
def server(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Prefect server without automations."""
    from prefect import get_client

    monkeypatch.delenv(URLS, raising=False)
    with get_client(sync_client=True) as client:
        for one in client.read_automations():
            client.delete_automation(one.id)


def on_server() -> dict[str, Any]:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        return {one.name: one for one in client.read_automations()}


def test_they_are_made_once_and_anew_when_their_definition_changes(
    server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = register_automations()
    assert made == [
        "automation relax: a silent flow run is Crashed",
        "automation relax: a crashed training is to go on",
        "automation relax: a crashed training goes on",
    ]
    assert register_automations() == []
    monkeypatch.setattr(automations, "SILENT_SECONDS", 120)
    assert register_automations() == [made[0]]
    assert on_server()[made[0].removeprefix("automation ")].trigger.within == timedelta(seconds=120)


def test_what_a_person_switched_off_stays_off(server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect import get_client

    register_automations()
    name = automations.silent_runs_crash().name
    with get_client(sync_client=True) as client:
        client.pause_automation(on_server()[name].id)
    monkeypatch.setattr(automations, "SILENT_SECONDS", 130)
    assert register_automations() == [f"automation {name}"]
    assert not on_server()[name].enabled


def test_a_failed_evaluation_is_told_once_there_is_an_address(server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.blocks.notifications import SlackWebhook

    register_automations()
    assert automations.NOTIFY not in on_server()
    assert URLS in missing()[0]
    monkeypatch.setenv(URLS, "json://127.0.0.1:1/one, json://127.0.0.1:1/two")
    assert register_automations() == [f"automation {automations.NOTIFY}"]
    assert register_automations() == missing() == []
    assert len(on_server()[automations.NOTIFY].actions) == 2
    monkeypatch.setenv(URLS, "json://127.0.0.1:1/three")
    assert register_automations() == [f"automation {automations.NOTIFY}"]
    block = SlackWebhook.load("relax-notify-1")
    assert isinstance(block, SlackWebhook)
    assert block.url.get_secret_value() == "json://127.0.0.1:1/three"
    monkeypatch.delenv(URLS)
    assert register_automations() == []  # what a former registration was told stays
    assert automations.NOTIFY in on_server()


def test_an_address_that_leads_nowhere_is_an_error_that_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URLS, "carrier-pigeon://token")
    with pytest.raises(UserError, match=rf"{URLS}: address 1 of 1 \(carrier-pigeon://\.\.\.\)") as error:
        register_automations()
    assert "token" not in str(error.value)


def test_two_heartbeats_may_be_lost_before_a_flow_run_counts_as_dead() -> None:
    (pool,) = {str(one["work_pool"]) for one in yaml.safe_load(FILE.read_text())["deployments"]}
    beat = int(yaml.safe_load(pool)["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
    assert 3 * beat <= automations.SILENT_SECONDS


def test_only_what_had_begun_is_started_again() -> None:
    # without an event that tells of a beginning there is no crash that counts, and each is used up by one new start
    from prefect.events.schemas.automations import EventTrigger

    trigger = automations.crashed_runs_restart().trigger
    assert isinstance(trigger, EventTrigger)
    assert {name.rpartition(".")[2] for name in trigger.after} == {"Running", "Retrying", "Rerunning", "heartbeat"}
    assert {name.rpartition(".")[2] for name in trigger.expect} == {"Crashed"}
    assert "prefect.flow-run.Superseded" not in trigger.expect
