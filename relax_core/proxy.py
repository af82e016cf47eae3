"""The proxy of HTTP requests to the outside, as environment variables.

Guarantee: without a proxy nothing changes; addresses of this machine are never reached through one, since engines and
services of the run live there. Threads may enter and leave ``proxied`` in any order: the proxy is there until the last
has left.
"""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping

LOCAL = ("localhost", "127.0.0.1", "::1")

_lock = threading.Lock()
_inside: Counter[str] = Counter()  # proxy -> how many are inside ``proxied``
_before: dict[str, dict[str, str | None]] = {}  # the variables before the first of them


def proxy_environment(proxy: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that HTTP libraries look at.

    Args:
        proxy: ``--http-proxy``.
        environment: the variables so far; exceptions named in it stay.
    """
    if proxy is None:
        return {}
    named = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    exceptions = ",".join(dict.fromkeys([*filter(None, named.split(",")), *LOCAL]))
    variables = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": exceptions}
    return {**variables, **{name.upper(): value for name, value in variables.items()}}


@contextlib.contextmanager
def proxied(proxy: str | None) -> Iterator[None]:
    """This process's requests go through the proxy while the body runs; for functions of the user."""
    if proxy is None:
        yield
        return
    with _lock:
        _inside[proxy] += 1
        if _inside[proxy] == 1:
            variables = proxy_environment(proxy, os.environ)
            _before[proxy] = {name: os.environ.get(name) for name in variables}
            os.environ.update(variables)
    try:
        yield
    finally:
        with _lock:
            _inside[proxy] -= 1
            for name, value in _before.pop(proxy).items() if not _inside[proxy] else ():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
