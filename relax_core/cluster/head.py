"""Connecting to Ray: a standing head where there is one, else a head for this process.

Guarantee: ``connected`` leaves a connected Ray behind, and ends on exit what it started and only that. A head of this
process dies with it, also under SIGKILL, and nobody else reaches it: it listens on loopback and asks for a token.
Actors under a standing head are detached and live on.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader, Config

from data.errors import NotStarted
from relax_core.cluster import access, drivers, services
from relax_core.cluster.actors import NAMESPACE
from relax_core.cluster.ports import answers_at, is_loopback, own_address
from relax_core.waiting import told


@contextlib.contextmanager
def _sigterm_of_a_flow_run() -> Iterator[None]:
    """Ray takes SIGTERM over. Prefect must hear it in a worker's flow run, or it cannot tell a cancel from a crash."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if "PREFECT__FLOW_RUN_ID" in os.environ and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def standing_address(wanted: str | None) -> str | None:
    """The head to join: ``wanted`` (--ray-address), ``RAY_ADDRESS``, or the one that `relax up` started."""
    address = wanted or os.environ.get("RAY_ADDRESS")
    if address:
        return address
    service = services.recorded().get("ray")
    return service.address if service else None


def _host_and_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    return (host, int(port)) if host and port.isdigit() and "//" not in address else None


def _probe(address: str) -> None:
    """Raises ``ConnectionError`` when nothing listens there; Ray itself would try for minutes."""
    place = _host_and_port(address)
    if place and not answers_at(*place, timeout=5):
        raise ConnectionError("nothing listens there")


def only_here(address: str) -> bool:
    """Whether a head is reached at 127.0.0.1 and not at this machine's address, which Ray would put in its place."""
    place = _host_and_port(address)
    return place is not None and is_loopback(place[0]) and not answers_at(own_address(), place[1], timeout=1)


@contextlib.contextmanager
def _prepared(address: str | None) -> Iterator[None]:
    """What Ray reads of the environment, for this process and those that it starts; undone at the end, since the next
    head may want something else."""
    before = {name: os.environ.get(name) for name in (services.LOCAL_ONLY, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")}
    local = address is None or only_here(address)
    own = {services.LOCAL_ONLY: "0" if local else "1"}
    os.environ.update({**services.QUIET, **os.environ, **own, **_access(address)})
    ray_constants.ENABLE_RAY_CLUSTER = not local  # what the variable says, which was read at Ray's import
    Config.initialize("")  # Ray has read the mode at its import too, and keeps a token that it has read
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _access(address: str | None) -> dict[str, str]:
    """How to be let in."""
    if "RAY_AUTH_MODE" in os.environ:
        return {}
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return {"RAY_AUTH_MODE": "token"}
    ours = services.recorded().get("ray")
    if address is None:
        access.ray_token(services.home(), {})
        return access.ray_environment(services.home(), True)
    known = ours is not None and address == ours.address
    own_driver = any(driver.ray == address for driver in drivers.living())
    return access.ray_environment(services.home(), own_driver or bool(known and ours and ours.protected))


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[bool]:
    """Connect to Ray.

    Yields:
        True when the head stands on its own, so that actors outlive this process.

    Raises:
        NotStarted: no head answers at the address, or it does not let this process in.
    """
    standing = standing_address(address)
    if ray.is_initialized():
        yield bool(standing)
        return
    with _prepared(standing):
        _init(standing)
        if not standing:
            drivers.note(ray=ray.get_runtime_context().gcs_address)
        try:
            yield standing is not None
        finally:
            ray.shutdown()


def _init(standing: str | None) -> None:
    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if standing:
            _probe(standing)
        else:
            options |= {
                "num_cpus": max(8, os.cpu_count() or 1),
                "include_dashboard": False,
                "object_store_memory": 256 * 1024 * 1024,
            }
        what = f"the Ray head at {standing}" if standing else "a Ray head of its own (`relax up` keeps one)"
        with told(what, "the driver", first=3.0), _sigterm_of_a_flow_run():
            ray.init(address=standing or "local", **options)
    except ConnectionError as error:
        raise NotStarted(
            f"No Ray head answers at {standing} ({error}).",
            "Start one with `relax up`, name another with --ray-address, or leave it out for a head of this run only."
            " One that asks for a token needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH.",
        ) from None
