"""Requests that meet a busy SQLite."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from flows.patience import APP, Patience, patient


class Prefect:
    """Answers requests with these statuses, one after the other, and notes them."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = iter(statuses)
        self.bodies: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append(json.loads((await receive())["body"] or b"null"))
        status = next(self._statuses)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b'"made"'})
        if status == 503:  # as Starlette does with what its handler of exceptions has answered
            raise RuntimeError("database is locked")


def ask(app: Any, method: str = "POST") -> httpx.Response:
    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as client:
            return await client.request(method, "/api/flow_runs/", json={"name": "x"})

    return asyncio.run(call())


def test_a_busy_database_is_asked_again_with_the_same_request() -> None:
    prefect = Prefect(503, 503, 201)
    answer = ask(Patience(prefect, pauses=(0.0, 0.0, 0.0)))
    assert (answer.status_code, answer.json()) == (201, "made")
    assert prefect.bodies == [{"name": "x"}] * 3


def test_a_database_that_stays_busy_is_told() -> None:
    prefect = Prefect(*[503] * 9)
    with pytest.raises(RuntimeError, match="locked"):  # it was answered with 503 before: a server's log has it
        ask(Patience(prefect, pauses=(0.0, 0.0)))
    assert len(prefect.bodies) == 3  # once, and after each pause


def test_a_client_that_has_waited_long_is_answered() -> None:
    prefect = Prefect(*[503] * 9)
    with pytest.raises(RuntimeError, match="locked"):
        ask(Patience(prefect, pauses=(0.0, 0.0), longest=0.0))
    assert len(prefect.bodies) == 1


@pytest.mark.parametrize("status", [201, 409, 500])
def test_any_other_answer_is_given_at_once(status: int) -> None:
    prefect = Prefect(status)
    assert ask(Patience(prefect)).status_code == status
    assert len(prefect.bodies) == 1


def test_what_only_reads_is_handed_on() -> None:
    with pytest.raises(RuntimeError, match="locked"):
        ask(Patience(prefect := Prefect(503)), "GET")
    assert len(prefect.bodies) == 1


def test_a_temporary_server_is_patient_and_one_with_postgresql_is_prefects_own(prefect_server: None) -> None:
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    process = SubprocessASGIServer().server_process
    assert process is not None
    assert APP in process.args
    assert isinstance(patient("prefect"), Patience)
    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: "postgresql+asyncpg://prefect@host/prefect"}):
        assert patient("prefect") == "prefect"
