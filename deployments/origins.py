"""Who may ask a Prefect server from a browser: its own interface.

Guarantee: a page of another site can neither read from the server nor make it do anything, also where there is no
password: Prefect itself answers pages of every site, and whoever reaches it may have programs started. Programs, which
send no ``Origin``, are not concerned. More sites: ``PREFECT_SERVER_CORS_ALLOWED_ORIGINS``.
"""

import ipaddress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, PREFECT_SERVER_CORS_ALLOWED_ORIGINS, PREFECT_UI_API_URL

_REFUSAL = b'{"detail": "this server answers its own interface, and no page of another site"}'


class OwnPages:
    """An ASGI app that refuses what a page of another site asks, and leaves all else to ``app``."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] not in ("http", "websocket") or _own(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_REFUSAL)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})


def _own(scope: Any) -> bool:
    headers = dict(scope["headers"])
    origin = headers.get(b"origin")
    if origin is None:
        return True
    asks = origin.decode("latin-1")
    if asks in (PREFECT_SERVER_CORS_ALLOWED_ORIGINS.value() or "").split(",") and asks != "*":
        return True
    page, told = _parts(asks), _parts(PREFECT_UI_API_URL.value() or "")
    host = _parts("//" + headers.get(b"host", b"").decode("latin-1"))
    if page is None or not page.hostname:  # `null`: a page that is shut in, or a file
        return False
    if told is not None and told.netloc == page.netloc:
        return True
    if host is None:
        return False
    if _is_loopback(host.hostname) and _is_loopback(page.hostname):  # `localhost` asks 127.0.0.1
        return _port(host) == _port(page)
    # without a password: not by a name that somebody else gave to 127.0.0.1
    named = PREFECT_SERVER_API_AUTH_STRING.value() is not None or _is_address(page.hostname)
    return named and host.netloc == page.netloc


def _parts(text: str) -> SplitResult | None:
    try:
        found = urlsplit(text)
        _ = found.port
    except ValueError:
        return None
    return found


def _port(one: SplitResult) -> int:
    return one.port or (443 if one.scheme == "https" else 80)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def _is_loopback(name: str | None) -> bool:
    return name is not None and (name in ("localhost", "::1") or (name.startswith("127.") and _is_address(name)))
