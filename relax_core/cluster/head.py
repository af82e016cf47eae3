"""Connecting to Ray: a standing head where there is one, else a head for this process.

Guarantee: ``connected`` leaves a connected Ray behind, and ends on exit what it started and only that. A head of this
process dies with it, also under SIGKILL; actors under a standing head are detached and live on.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import ray

from data.errors import NotStarted
from relax_core.cluster import services
from relax_core.cluster.actors import NAMESPACE
from relax_core.waiting import told


def standing_address(wanted: str | None) -> str | None:
    """The head to join: ``wanted`` (--ray-address), ``RAY_ADDRESS``, or the one that `relax up` started."""
    address = wanted or os.environ.get("RAY_ADDRESS")
    if address:
        return address
    service = services.recorded().get("ray")
    return service.address if service else None


def _probe(address: str) -> None:
    """Raises ``ConnectionError`` when nothing listens there; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "//" not in address:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            raise ConnectionError(error.strerror or str(error)) from None


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[bool]:
    """Connect to Ray.

    Yields:
        True when the head stands on its own, so that actors outlive this process.

    Raises:
        NotStarted: no head answers at the address.
    """
    os.environ.update({key: value for key, value in services.QUIET.items() if key not in os.environ})
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    if ray.is_initialized():
        yield bool(standing_address(address))
        return
    standing = standing_address(address)
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
        with told(f"the Ray head at {standing}" if standing else "a Ray head of its own", "the driver"):
            ray.init(address=standing or "local", **options)
    except ConnectionError as error:
        raise NotStarted(
            f"No Ray head answers at {standing} ({error}).",
            "Start one with `relax up`, name another with --ray-address, or leave it out for a head of this run only.",
        ) from None
    try:
        yield standing is not None
    finally:
        ray.shutdown()
