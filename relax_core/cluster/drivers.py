"""The runs that are driven on this machine: ``$RELAX_HOME/drivers/<run id>.json``, one file a driver.

Guarantee: a file is there while its driver is, and one that a kill has left behind counts for nothing; a folder that
cannot be written stops no run. Nothing decides anything by it: it is what ``relax status`` looks at.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import psutil

from relax_core.cluster import processes, services


@dataclass(frozen=True)
class Driver:
    """A process that drives a run.

    Attributes:
        id: of the run.
        run: address of its directory.
        since: seconds since 1970.
        steps: of the whole run.
        max_staleness: of overlapping steps; None: steps do not overlap.
        ray: address of its own Ray head; empty: it uses another one.
        flow_run: id of the flow run in Prefect whose process it is; empty: it was started by hand.
    """

    id: str
    run: str
    pid: int
    created: float
    since: float
    steps: int = 0
    max_staleness: int | None = None
    ray: str = ""
    flow_run: str = ""

    def alive(self) -> bool:
        """Whether the process lives."""
        return processes.alive(self.pid, self.created)


_own: list[Driver] = []


def _path(driver: Driver) -> Path:
    return services.home() / "drivers" / f"{driver.id}.json"


@contextlib.contextmanager
def driving(run_id: str, run: str, steps: int = 0, max_staleness: int | None = None) -> Iterator[None]:
    """Round a run that this process drives."""
    flow_run = os.environ.get("PREFECT__FLOW_RUN_ID", "")
    created = psutil.Process().create_time()
    _own.append(Driver(run_id, run, os.getpid(), created, time.time(), steps, max_staleness, flow_run=flow_run))
    _write()
    try:
        yield
    finally:
        driver = _own.pop()
        with contextlib.suppress(OSError):
            if _read(_path(driver)) == driver:
                _path(driver).unlink()


def note(ray: str) -> None:
    """Add the address of the Ray head that this process has started for its run."""
    if _own:
        _own[-1] = replace(_own[-1], ray=ray)
        _write()


def _write() -> None:
    try:
        path = _path(_own[-1])
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(_own[-1])))
        temporary.replace(path)
    except OSError as error:
        print(f"relax: `relax status` will not show this run: {error}", file=sys.stderr)


def _read(path: Path) -> Driver | None:
    try:
        row = json.loads(path.read_text())
        known = {field.name for field in fields(Driver)}
        return Driver(**{key: value for key, value in row.items() if key in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def living() -> list[Driver]:
    """Drivers that are alive, by start."""
    folder = services.home() / "drivers"
    found = [driver for path in folder.glob("*.json") if (driver := _read(path)) is not None and driver.alive()]
    return sorted(found, key=lambda driver: driver.since)
