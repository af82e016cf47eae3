"""Pages of other sites at Prefect's server, with an ASGI app in Prefect's place."""

import asyncio
from typing import Any

import httpx
import pytest
from prefect.settings import (
    PREFECT_SERVER_API_AUTH_STRING,
    PREFECT_SERVER_CORS_ALLOWED_ORIGINS,
    PREFECT_UI_API_URL,
    temporary_settings,
)

from deployments.origins import OwnPages
from tests.deployments.test_files import nobody

HERE = "127.0.0.1:4200"


def asked(origin: str | None, host: str = HERE) -> int:
    async def call() -> int:
        transport = httpx.ASGITransport(app=OwnPages(nobody))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return (await client.post("/api/x", headers={} if origin is None else {"Origin": origin})).status_code

    return asyncio.run(call())


@pytest.mark.parametrize("origin", [None, "http://127.0.0.1:4200", "http://localhost:4200"])
def test_programs_and_its_own_interface_are_answered(origin: str | None) -> None:
    assert asked(origin) == 299


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://evil.example:4200", "http://127.0.0.1:8888", "null", "", "http://[", "http://a:b"],
)
def test_pages_of_other_sites_are_refused(origin: str) -> None:
    assert asked(origin) == 403


def test_a_name_that_was_given_to_this_machine_does_not_do_without_a_password() -> None:
    assert asked("http://evil.example:4200", "evil.example:4200") == 403
    with temporary_settings({PREFECT_SERVER_API_AUTH_STRING: "me:word"}):
        assert asked("http://server.example:4200", "server.example:4200") == 299
        assert asked("http://evil.example", "server.example:4200") == 403


def test_names_that_the_server_was_told_are_its_own() -> None:
    with temporary_settings({PREFECT_UI_API_URL: "https://relax.example/api"}):
        assert asked("https://relax.example", HERE) == 299
    with temporary_settings({PREFECT_SERVER_CORS_ALLOWED_ORIGINS: "https://a.example,https://b.example"}):
        assert asked("https://b.example") == 299
        assert asked("https://c.example") == 403


def test_a_websocket_of_another_site_is_closed() -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "websocket", "headers": [(b"origin", b"http://evil.example"), (b"host", HERE.encode())]}
    asyncio.run(OwnPages(nobody)(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
