"""The check before Prefect's server, and its patience with a busy database, with an ASGI app in Prefect's place."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from deployments.server import SubmissionCheck

DEPLOYMENT = {"flow_id": "f", "tags": ["relax"], "parameters": {"config": {"optimizer": {"lr": -1.0}}}}
VARIABLE = {"__prefect_kind": "workspace_variable", "variable_name": "x"}
CREATE = "/api/deployments/d/create_flow_run"


class FakePrefect:
    """Answers what the check asks for, and notes bodies of what it lets through."""

    def __init__(self, deployment: dict[str, Any] | None = None, flow: str = "train"):
        self._gets = {"/api/deployments/d": deployment or DEPLOYMENT, "/api/flows/f": {"name": flow}}
        self.bodies: list[bytes] = []
        self.authorized: list[bytes | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status, content = 404, {}
        if scope["method"] == "GET":
            self.authorized.append(dict(scope["headers"]).get(b"authorization"))
            if scope["path"] in self._gets:
                status, content = 200, self._gets[scope["path"]]
        else:
            message = await receive()
            self.bodies.append(message["body"])
            status, content = 201, {"id": "made"}
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})


Post = Callable[..., httpx.Response]


@pytest.fixture
def post() -> Post:
    import asyncio

    def post(app: Any, content: Any, path: str = CREATE, **options: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                return await client.post(path, json=content, **options)

        return asyncio.run(call())

    return post


def test_bad_parameters_are_refused_with_the_rule_s_message_and_make_no_flow_run(post: Post) -> None:
    prefect = FakePrefect()
    answer = post(SubmissionCheck(prefect, files=False), {"parameters": {"config": {"rollout": {"num_rollout": 0}}}})
    assert answer.status_code == 409
    assert "--num-rollout 0 (parameters): must be 1 or more." in answer.json()["detail"]
    assert prefect.bodies == []


def test_of_several_flow_runs_at_once_each_is_checked(post: Post) -> None:
    prefect = FakePrefect({**DEPLOYMENT, "parameters": {"config_file": "/elsewhere.yaml"}})
    right, wrong = {"parameters": {"config": {}}}, {"parameters": {"config": {"rollout": {"num_rollout": 0}}}}
    check = SubmissionCheck(prefect, files=False)
    assert post(check, [right, right], f"{CREATE}/bulk").status_code == 201
    answer = post(check, [right, wrong], f"{CREATE}/bulk")
    assert (answer.status_code, answer.json()["detail"]) == (409, "--num-rollout 0 (parameters): must be 1 or more.")


def test_parameters_of_the_deployment_count_where_none_are_given(post: Post) -> None:
    answer = post(SubmissionCheck(FakePrefect(), files=False), {})
    assert "--lr -1.0 (parameters)" in answer.json()["detail"]


def test_what_the_interface_wraps_is_unwrapped_before_it_is_checked(post: Post) -> None:
    wrapped = {"rollout": {"num_rollout": 0}, "run": {"custom_args": {"__prefect_kind": "json"}}}
    config = {"config": {"__prefect_kind": "json", "value": json.dumps(wrapped)}}
    answer = post(SubmissionCheck(FakePrefect(), files=False), {"parameters": config})
    assert "--num-rollout 0" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("prefect", "content", "path"),
    [
        (FakePrefect({**DEPLOYMENT, "tags": ["others"]}), {}, CREATE),  # somebody else's deployment
        (FakePrefect(flow="replay"), {}, CREATE),
        (
            FakePrefect(),
            {"parameters": {"config": {"__prefect_kind": "workspace_variable", "variable_name": "x"}}},
            CREATE,
        ),
        (FakePrefect(), {}, "/api/flow_runs/"),
        (FakePrefect(), [1], CREATE),  # no object: Prefect says what is wrong with it
    ],
    ids=["another tag", "another flow", "a variable", "another request", "no object"],
)
def test_everything_else_reaches_prefect_as_it_is(post: Post, prefect: FakePrefect, content: Any, path: str) -> None:
    assert post(SubmissionCheck(prefect, files=False), content, path).status_code == 201
    assert [json.loads(body) for body in prefect.bodies] == [content]


def test_the_check_asks_prefect_as_the_one_who_submits(post: Post) -> None:
    # else a server with a password would let nobody's submission be looked at
    prefect = FakePrefect()
    post(SubmissionCheck(prefect, files=False), {}, headers={"authorization": "Basic abc"})
    assert prefect.authorized == [b"Basic abc", b"Basic abc"]


def test_a_parameter_that_the_deployment_does_not_have_is_refused(post: Post) -> None:
    deployment = {**DEPLOYMENT, "parameters": {}, "parameter_openapi_schema": {"properties": {"config": {}}}}
    app = FakePrefect(deployment)
    answer = post(SubmissionCheck(app, files=True), {"parameters": {"confg": {}}})
    assert (answer.status_code, app.bodies) == (409, [])
    assert answer.json()["detail"] == "confg: no such parameter. There are: config."
