"""Prefect's server where its database is SQLite.

Guarantee: a request that met a busy database is answered when the database is free, within a second or so; Prefect's
clients would wait two seconds, in the middle of a step. Every other answer is Prefect's own, at once.
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

APP = "flows.patience:create_app"


def create_app() -> Any:
    """The ASGI app of a temporary server."""
    from prefect.server.api.server import create_app as create_prefect_app

    return patient(create_prefect_app())


def patient(app: Any) -> Any:
    """Prefect's app, with patience where that is sound."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    # PostgreSQL's 503 may come after the work.
    return Patience(app) if "sqlite" in str(PREFECT_API_DATABASE_CONNECTION_URL.value()) else app


def use_for_temporary_servers() -> None:
    """Let the temporary servers that this process starts be such ones. Safe to call again."""
    from prefect.server.api.server import SubprocessASGIServer  # here: it takes a second

    setattr(SubprocessASGIServer, "_run_uvicorn_command", _run)  # noqa: B010  # mypy allows no assignment


def _run(server: Any) -> subprocess.Popen[Any]:
    """In place of Prefect's own way to start one."""
    from prefect.settings import get_current_settings

    command = [sys.executable, "-P", "-m", "uvicorn", "--app-dir", str(Path(__file__).parents[1]), "--factory", APP]
    command += ["--host", "127.0.0.1", "--port", str(server.port), "--log-level", "error", "--lifespan", "on"]
    told = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    return subprocess.Popen(command, env={**os.environ, **told, **settings})


class Patience:
    """An ASGI app that asks again where ``app`` answers 503: SQLite was busy, and nothing was done.

    Args:
        app: Prefect's.
        pauses: seconds before each further try.
        longest: seconds since the first after which there is no further one: a client may have gone and asked again.
    """

    def __init__(
        self, app: Any, pauses: tuple[float, ...] = (0.02, 0.05, 0.1, 0.1, 0.2, 0.2, 0.3), longest: float = 3.0
    ) -> None:
        self._app, self._pauses, self._longest = app, pauses, longest

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] == "GET":
            await self._app(scope, receive, send)
            return
        body = await whole_body(receive)
        if body is None:
            return
        began = time.monotonic()
        for pause in (*self._pauses, None):
            refusal, failure = await self._attempt(scope, with_body(body, receive), send)
            if not refusal:
                return
            if pause is None or time.monotonic() - began > self._longest:
                break
            await asyncio.sleep(pause)
        for message in refusal:
            await send(message)
        if failure is not None:
            raise failure

    async def _attempt(self, scope: Any, receive: Any, send: Any) -> tuple[list[dict[str, Any]], Exception | None]:
        """What the app would answer with 503, and what it raised then; any other answer is given."""
        refusal: list[dict[str, Any]] = []

        async def sending(message: dict[str, Any]) -> None:
            if refusal or message.get("status") == 503:
                refusal.append(message)
            else:
                await send(message)

        try:
            await self._app(dict(scope), receive, sending)
        except Exception as error:  # Starlette raises what it has answered with 503, for the log
            if not refusal:
                raise
            return refusal, error
        return refusal, None


async def whole_body(receive: Any) -> bytes | None:
    """The whole body of a request; None when the client has gone."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def with_body(body: bytes, receive: Any) -> Any:
    """A ``receive`` that gives the body that was read already, and then what comes."""
    given = False

    async def replayed() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
