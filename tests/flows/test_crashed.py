"""Which flow runs of a run the next driver marks as crashed, on a real server."""

from typing import Any


def test_only_training_that_does_not_wait_is_marked(prefect_server: None) -> None:
    from prefect import flow, get_client
    from prefect.states import Running

    from flows.crashed import mark_crashed

    @flow(name="train")
    def train() -> None: ...

    @flow(name="step")
    def step() -> None: ...

    @flow(name="evaluate")
    def evaluate() -> None: ...

    tag = "of-this-run-12345678"
    with get_client(sync_client=True) as client:

        def made(of: Any, name: str = "Running", tags: tuple[str, ...] = (tag,)) -> Any:
            return client.create_flow_run(of, state=Running(name=name), tags=list(tags)).id

        left = [made(train), made(train, "Retrying"), made(step)]
        others = [made(train, "Waiting"), made(evaluate), made(train, tags=("of-another-run",))]
        assert mark_crashed(tag) == 3
        states: dict[Any, Any] = {flow_run: client.read_flow_run(flow_run).state for flow_run in left + others}
    # by another name than Crashed: what starts crashed flow runs again leaves these alone
    assert {(states[one].type.value, states[one].name) for one in left} == {("CRASHED", "Superseded")}
    assert {states[one].type.value for one in others} == {"RUNNING"}
