"""Addresses and ports that the standing services listen at.

Guarantee: a port that is taken, a range that is too small and an address that is not this machine's are each a
``UserError`` before anything is started. A free port is, while there are any, none of those that Linux gives to
connections unless it is told to: it is still free for a program that needs half a minute until it listens.
"""

import contextlib
import random
import socket
from dataclasses import dataclass

from data.errors import UserError

LOOPBACK = "127.0.0.1"

ANY = "0.0.0.0"

_CHOICE = range(21000, 30000)
"""Above the ports of Ray's workers (10002 to 19999), below node ports of Kubernetes and what Linux gives to connections
(from 30000 and 32768)."""

_TRIES = 200

_OWN_PORTS = 9
"""Listeners of a Ray node besides its head's port and its workers."""

_LEAST_WORKERS = 16


def free_port(host: str = LOOPBACK) -> int:
    """A TCP port of this machine that nobody has at this moment.

    Raises:
        OSError: ``host`` is no address of this machine.
    """
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = LOOPBACK, besides: int = 0) -> list[int]:
    """Different ones, and none of them ``besides``."""
    # The system's own generator: runs seed the usual one, and two of them would then choose alike.
    tried = random.SystemRandom().sample(_CHOICE, _TRIES)
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            port = tried.pop() if tried else 0
            with contextlib.suppress(OSError) if port else contextlib.nullcontext():
                probe.bind((host, port))
                if (chosen := int(probe.getsockname()[1])) != besides:
                    found.append(chosen)
    return found


def require_free(port: int, option: str, host: str = LOOPBACK) -> None:
    """Raise ``UserError`` when something listens on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"{option} {port}: the port is in use ({error.strerror}).",
                f"Choose another with {option}, or end the program that holds it (`ss -ltnp` shows it).",
            ) from None


def answers_at(host: str, port: int, timeout: float = 2.0) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except OSError:
        return False
    return True


def own_address() -> str:
    """The address by which other machines reach this one: that of the way out; loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # of no machine; nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def listening_address(host: str | None) -> str:
    """What ``--host`` means, as an IPv4 address of this machine, or ``ANY``.

    Raises:
        UserError: it is no address of this machine.
    """
    if host is None or is_loopback(host):
        return LOOPBACK
    try:
        address = socket.gethostbyname(host)
        if not is_loopback(address):
            require_free(0, "--host", address)
            return address
        why = f"it is {address}, which other machines do not reach"
    except (OSError, UserError) as error:
        why = error.problem if isinstance(error, UserError) else str(error.strerror or error)
    raise UserError(
        f"--host {host}: not an address of this machine ({why}).",
        f"Give one that others reach it by, e.g. {own_address()}, or {ANY} for all of them; without --host only this "
        "machine reaches the services.",
    )


def reachable(host: str) -> str:
    """The address that clients are told: an address to listen at is one, except ``ANY``."""
    return own_address() if host == ANY else host


@dataclass(frozen=True)
class PortRange:
    """Ports of a Ray node, so that a firewall can let them through: both ends count."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """``20000-20099``. Raises ``ValueError``."""
        first, _, last = text.partition("-")
        if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
            raise ValueError(f"{text} is no range of ports: expects FIRST-LAST")
        low, high = int(first[:9]), int(last[:9])
        if not 1024 <= low <= high <= 65535:
            raise ValueError(f"{text} is no range of ports: expects 1024 to 65535, the smaller first")
        if high - low + 1 < _OWN_PORTS + _LEAST_WORKERS:
            raise ValueError(f"{text} is too small a range: Ray needs {_OWN_PORTS + _LEAST_WORKERS} ports or more")
        return cls(low, high)

    @property
    def arguments(self) -> list[str]:
        """Of ``ray start``."""
        node, objects, http, grpc, environment, metrics, client = range(self.first, self.first + 7)
        return [
            f"--node-manager-port={node}",
            f"--object-manager-port={objects}",
            f"--dashboard-agent-listen-port={http}",
            f"--dashboard-agent-grpc-port={grpc}",
            f"--runtime-env-agent-port={environment}",
            f"--metrics-export-port={metrics}",
            f"--ray-client-server-port={client}",
            f"--min-worker-port={self.first + _OWN_PORTS}",
            f"--max-worker-port={self.last}",
        ]

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment of ``ray start``: what has no argument."""
        return metric_ports(self.first + 7, self.first + 8)


def metric_ports(scaler: int, dashboard: int) -> dict[str, str]:
    """Variables for the ports of two helpers of a Ray head, which would be the same for all heads of a machine."""
    return {"AUTOSCALER_METRIC_PORT": str(scaler), "DASHBOARD_METRIC_PORT": str(dashboard)}
