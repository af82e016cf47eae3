"""Files of runs by HTTP, so that what Prefect's interface links to opens in the browser.

``GET /relax/files?run=<run directory>&file=steps/000003/rollout.parquet``; without ``file``: whether the run is here.

Guarantee: only files that Relax itself makes for people are given: tables of steps and evaluations, pages of rollouts,
curves; only from a folder that is a run (it has a ``config.yaml`` of Relax); never its configuration or a log. No URL
makes the server ask a host that the URL names. What is shown has no access to Prefect's API, whoever wrote it. Where
the server has a password, it is asked for here too.
"""

import base64
import hmac
import re
from typing import Any
from urllib.parse import parse_qs

import anyio.to_thread
from prefect.settings import PREFECT_SERVER_API_AUTH_STRING

from data.errors import UserError
from data.store import RunStore
from relax_core.config.seal import state

PATH = "/relax/files"

SHOWN = re.compile(
    r"(steps/[0-9]{6}/([\w-]+/)?[\w-]+\.parquet|evaluations/[\w.-]+/[\w.-]+\.parquet"
    r"|pages/[\w-]+\.html|curves\.svg)",
    re.ASCII,
)
KINDS = {"html": "text/html; charset=utf-8", "svg": "image/svg+xml", "parquet": "application/vnd.apache.parquet"}

KINDS_OF_STORE = ("file", "local", "s3", "s3a", "gs", "gcs")
"""Where a run may be: on the disk, or in a store whose host the environment names."""

_POLICIES = {
    "svg": b"default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "html": b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; sandbox allow-scripts",
}
"""Nothing in a picture runs. A page of rollouts runs its own script (it has a stricter policy in itself), as a page of
no site: what somebody else put there cannot act as Prefect's interface."""


class RunFiles:
    """An ASGI app that answers for ``PATH``, and leaves all else to ``app``."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        if not _may(scope):
            await _answer(send, 401, b"a password is needed", [(b"www-authenticate", b'Basic realm="relax"')])
            return
        given = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
        asked = {key: values[-1] for key, values in given.items()}
        run, name = asked.get("run", ""), asked.get("file", "")
        if "file" not in asked:
            there = not run or await anyio.to_thread.run_sync(_read, run, "config.yaml") is not None
            await _answer(send, *((200, b"relax") if there else (404, b"there is no such run here")))
            return
        content = await anyio.to_thread.run_sync(_read, run, name) if run and SHOWN.fullmatch(name) else None
        if content is None:
            await _answer(send, 404, b"there is no such file of a run")
            return
        kind = name.rpartition(".")[2]
        headers = [(b"content-type", KINDS[kind].encode()), (b"x-content-type-options", b"nosniff")]
        if kind in _POLICIES:
            headers.append((b"content-security-policy", _POLICIES[kind]))
        if kind == "parquet":
            shown = name.replace("/", "-")
            headers.append((b"content-disposition", f'attachment; filename="{shown}"'.encode()))
        await _answer(send, 200, content, headers)


def _may(scope: Any) -> bool:
    """Whether the request has the server's password, if there is one."""
    wanted = PREFECT_SERVER_API_AUTH_STRING.value()
    if wanted is None:
        return True
    plain = wanted.get_secret_value() if hasattr(wanted, "get_secret_value") else str(wanted)
    expected = b"Basic " + base64.b64encode(plain.encode())
    given = dict(scope["headers"]).get(b"authorization", b"")
    return hmac.compare_digest(given, expected)


def _read(run: str, name: str) -> bytes | None:
    kind, separator, _ = run.partition("://")
    if "::" in run or (separator and kind not in KINDS_OF_STORE):
        return None
    try:
        store = RunStore(run)
        if state(store.read_bytes("config.yaml").decode(errors="replace")) == "unsealed":
            return None
        return store.read_bytes(name)
    except (UserError, OSError, ValueError):
        return None


async def _answer(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    found = headers or [(b"content-type", b"text/plain; charset=utf-8")]
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*found, *length]})
    await send({"type": "http.response.body", "body": body})
