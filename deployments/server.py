"""Prefect's server, which also refuses a flow run of Relax with bad parameters before it is made.

``uvicorn --factory deployments.server:create_app`` is ``prefect server start`` with this one check more.

Guarantee: a request to make a flow run of a deployment of Relax whose configuration has a mistake is answered with 409
and the messages that ``relax train`` would give; every other request, and every answer, is Prefect's own. Where files
are not on this machine (``RELAX_SUBMITTED_FILES=elsewhere``), they are not looked at. A request that met a busy
database (SQLite) is answered when the database is free, within a second or so: Prefect's clients would wait two
seconds, and its interface would show an error. Prefect's lists of packages are those that come with it: no call leaves
the machine. Pages of other sites are refused (``deployments.origins``).
"""

import json
import logging
import os
from typing import Any

import anyio.to_thread

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect.server.api import collections
from prefect.server.api.server import create_app as create_prefect_app

from deployments.files import RunFiles
from deployments.origins import OwnPages
from flows.patience import patient, whole_body, with_body
from relax_core.config.problems import told
from relax_core.config.submitted import submission_problems

FILES_VARIABLE = "RELAX_SUBMITTED_FILES"
TAG = "relax"
"""Deployments whose parameters are checked have this tag."""

NOWHERE = "http://127.0.0.1:9/"

_LARGEST = 4 * 1024 * 1024

log = logging.getLogger("relax_core.submission")


def create_app() -> Any:
    """Prefect's ASGI app behind the check."""
    for view in collections.KNOWN_VIEWS:  # asked of the internet; what comes with Prefect is taken where none answers
        collections.KNOWN_VIEWS[view] = NOWHERE
    app: Any = create_prefect_app(final=True)
    check = SubmissionCheck(RunFiles(patient(app)), files=os.environ.get(FILES_VARIABLE, "here") != "elsewhere")
    return OwnPages(check)


class SubmissionCheck:
    """An ASGI app that looks at requests to make flow runs, and hands all on that are right.

    Args:
        app: Prefect's.
        files: whether files that are named are on this machine.
    """

    def __init__(self, app: Any, files: bool) -> None:
        self._app, self._files = app, files

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not _makes_flow_run(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        body = await whole_body(receive)
        refusal = await self._refusal(scope, body) if body is not None and len(body) <= _LARGEST else None
        if refusal is not None:
            await _answer(send, 409, {"detail": refusal})
            return
        await self._app(scope, with_body(body or b"", receive), send)

    async def _refusal(self, scope: Any, body: bytes) -> str | None:
        """What is wrong with a submission, or the first of several; None: nothing, or it is not ours to say."""
        try:
            asked = json.loads(body or b"{}")
            path = scope["path"].rpartition("/create_flow_run")[0]
            deployment = await self._ask(scope, path)
            if not deployment or TAG not in deployment.get("tags", []):
                return None
            flow = await self._ask(scope, f"{path.rpartition('/deployments/')[0]}/flows/{deployment['flow_id']}")
            for one in asked if isinstance(asked, list) else [asked]:
                if flow and (wrong := await self._wrong(flow["name"], deployment, one.get("parameters") or {})):
                    return wrong
        except Exception as error:  # a check that fails must not stop a server
            log.warning("a submission was not checked: %s: %s", type(error).__name__, error)
        return None

    async def _wrong(self, flow: str, deployment: dict[str, Any], given: dict[str, Any]) -> str | None:
        """What is wrong with the parameters of one flow run."""
        known = (deployment.get("parameter_openapi_schema") or {}).get("properties")
        if known and (unknown := [name for name in given if name not in known]):  # Prefect would find out later
            return f"{', '.join(map(str, unknown))}: no such parameter. There are: {', '.join(known)}."
        parameters = _plain({**(deployment.get("parameters") or {}), **given})
        if not isinstance(parameters, dict):
            return None  # the flow run itself will see what Prefect makes of a template
        problems = await anyio.to_thread.run_sync(submission_problems, flow, parameters, self._files)
        lines = told(problems)
        return "\n".join([f"{len(problems)} options are wrong.", *lines]) if len(lines) > 1 else "".join(lines) or None

    async def _ask(self, scope: Any, path: str) -> dict[str, Any] | None:
        """What Prefect says to GET ``path``, with the headers of the request that is looked at."""
        status, chunks = 0, []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))

        left_out = (b"content-length", b"content-type", b"accept-encoding")
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in left_out]
        asked = {
            **scope,
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
        }
        asked["state"] = dict(scope.get("state", {}))
        await self._app(asked, receive, send)
        if status != 200:
            return None
        found: dict[str, Any] = json.loads(b"".join(chunks))
        return found


def _makes_flow_run(method: str, path: str) -> bool:
    return (
        method == "POST"
        and "/deployments/" in path
        and path.rstrip("/").endswith(("/create_flow_run", "/create_flow_run/bulk"))
    )


_LEFT_OUT = object()
_TEMPLATE = object()


def _plain(value: Any) -> Any:
    """Parameters with what the interface wraps as JSON unwrapped; ``_TEMPLATE`` where Prefect fills something in later:
    a variable, or a template of its own."""
    if isinstance(value, dict) and "__prefect_kind" in value:
        if value["__prefect_kind"] in ("none", "json"):
            inner = value.get("value")
            unwrapped = json.loads(inner) if value["__prefect_kind"] == "json" and inner else inner
            return _LEFT_OUT if unwrapped is None else unwrapped
        return _TEMPLATE
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        found = {key: plain for key, one in pairs if (plain := _plain(one)) is not _LEFT_OUT}
        if any(plain is _TEMPLATE for plain in found.values()):
            return _TEMPLATE
        return found if isinstance(value, dict) else list(found.values())
    return value


async def _answer(send: Any, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
