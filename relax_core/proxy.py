"""The proxy of HTTP requests to the outside, as environment variables.

Guarantee: without a proxy nothing changes; addresses of this machine are never reached through one, since engines and
services of the run live there.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping

LOCAL = ("localhost", "127.0.0.1", "::1")


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
    variables = proxy_environment(proxy, os.environ)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
