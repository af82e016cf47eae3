"""The record of the standing services, ``$RELAX_HOME/services.json``.

Guarantee: a service counts only while its very process lives; a damaged record counts as none; what a later version
wrote beside is left out.
"""

import fcntl
import json
import os
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from data.errors import UserError
from relax_core.cluster import processes
from relax_core.cluster.ports import LOOPBACK


def home() -> Path:
    """Folder of the services' record and logs.

    Raises:
        UserError: it cannot be made.
    """
    folder = Path(os.environ.get("RELAX_HOME", "~/.relax")).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"RELAX_HOME {folder}: cannot be made ({error.strerror}).", "Name a folder that you may write to."
        ) from error
    return folder


def log_of(name: str) -> Path:
    """The log of a service."""
    return home() / "logs" / "standing" / f"{name}.log"


@dataclass(frozen=True)
class Service:
    """A standing process. ``address`` is what clients use; ``created`` guards against a reused process id.

    Attributes:
        host: address that it listens at.
        protected: whether clients need a token or password.
        folder: working folder of flow runs, of the worker.
    """

    name: str
    address: str
    pid: int
    created: float
    log: str
    host: str = LOOPBACK
    protected: bool = False
    folder: str = ""

    def alive(self) -> bool:
        """Whether the process lives."""
        return processes.alive(self.pid, self.created)

    def plausible(self) -> bool:
        """Whether ``start`` may have recorded this."""
        texts = (self.name, self.address, self.log, self.host, self.folder)
        numbers = isinstance(self.pid, int) and self.pid >= 0 and isinstance(self.created, int | float)
        return numbers and all(isinstance(text, str) for text in texts) and self._port_is_one()

    def _port_is_one(self) -> bool:
        try:
            _ = self.port
        except ValueError:
            return False
        return True

    @property
    def port(self) -> int | None:
        """Of ``address``."""
        text = self.address if "//" in self.address else f"//{self.address}"
        return urllib.parse.urlsplit(text).port


def remembered() -> dict[str, Service]:
    """Services that were started and not stopped; some may have died since."""
    try:
        rows: Any = json.loads((home() / "services.json").read_text())
        known = {field.name for field in fields(Service)}
        found = {
            name: Service(**{key: value for key, value in row.items() if key in known}) for name, row in rows.items()
        }
        return found if all(service.plausible() for service in found.values()) else {}
    except (OSError, ValueError, TypeError, AttributeError):  # no JSON and no UTF-8 are a ValueError
        return {}


def recorded() -> dict[str, Service]:
    """Services that an earlier ``start`` recorded and that are alive."""
    return {name: service for name, service in remembered().items() if service.alive()}


def record(services: dict[str, Service]) -> None:
    """Write the record anew."""
    path = home() / "services.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({name: asdict(service) for name, service in services.items()}, indent=2))
    temporary.replace(path)
    ports = former_ports() | {name: service.port for name, service in services.items() if service.port is not None}
    if ports:
        (home() / "ports.json").write_text(json.dumps(ports))


def former_ports() -> dict[str, int]:
    """The ports at which services stood the last time, by their names."""
    try:
        found: Any = json.loads((home() / "ports.json").read_text())
        return {str(name): port for name, port in found.items() if isinstance(port, int) and 0 < port < 65536}
    except (OSError, ValueError, AttributeError):
        return {}


@contextmanager
def alone() -> Iterator[None]:
    """One `relax up` or `relax down` of this home at a time; others wait."""
    with (home() / "services.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
