"""Flow runs of a schedule that have piled up, with a Prefect client that only remembers."""

from types import SimpleNamespace
from typing import Any

import pytest

from flows.deployed import late


class Client:
    """Has ``runs``, and remembers which got a state."""

    def __init__(self, runs: list[Any]) -> None:
        self.runs = runs
        self.ended: dict[str, tuple[str, str]] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read_flow_runs(self, flow_run_filter: Any) -> list[Any]:
        return self.runs

    def set_flow_run_state(self, flow_run: str, state: Any, force: bool) -> None:
        self.ended[flow_run] = (state.type.value, state.name)


def run(name: str, run_dir: str = "runs/a", auto_scheduled: bool = True, deployment: str | None = "d") -> Any:
    parameters = {"run_dir": run_dir}
    return SimpleNamespace(
        id=name, name=name, parameters=parameters, auto_scheduled=auto_scheduled, deployment_id=deployment
    )


def skipped(monkeypatch: pytest.MonkeyPatch, own: Any, runs: list[Any]) -> dict[str, tuple[str, str]]:
    client = Client(runs)
    monkeypatch.setattr(late, "get_client", lambda sync_client: client)
    monkeypatch.setattr(late.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=own))
    monkeypatch.setattr(late, "due", lambda own: None)
    assert late.skip_the_same() == len(client.ended)
    return client.ended


def test_a_pile_of_the_same_collapses_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    own = run("own")
    pile = [own, *(run(f"late-{n}") for n in range(100))]
    assert skipped(monkeypatch, own, pile) == {f"late-{n}": ("COMPLETED", "Skipped") for n in range(100)}


def test_other_runs_and_what_was_asked_for_by_hand_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = run("own")
    others = [own, run("other", run_dir="runs/b"), run("by-hand", auto_scheduled=False)]
    assert skipped(monkeypatch, own, others) == {}


def test_outside_a_deployment_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert skipped(monkeypatch, run("own", deployment=None), [run("late")]) == {}


def test_a_server_that_does_not_answer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_client(sync_client: bool) -> Any:
        raise ConnectionError

    monkeypatch.setattr(late, "get_client", no_client)
    monkeypatch.setattr(late.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=run("own")))
    monkeypatch.setattr(late, "due", lambda own: None)
    assert late.skip_the_same() == 0
