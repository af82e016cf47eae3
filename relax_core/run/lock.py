"""One driver a run, on one machine.

Guarantee: a second `relax train` on a run directory whose driver lives on this machine is refused with its process
id; the lock of a driver that was killed holds nobody up. Drivers on other machines are kept apart by the trainer's
epochs only.
"""

import os
import socket
from typing import Any

import psutil

from data.errors import UserError
from data.store import RunStore

_FILE = "driver.json"


class DriverLock:
    """The lock, taken on construction.

    Args:
        store: the run directory.

    Raises:
        UserError: another living process of this machine drives the run.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._own = {"host": socket.gethostname(), "pid": os.getpid(), "created": psutil.Process().create_time()}
        holder = store.read_json(_FILE)
        if isinstance(holder, dict) and holder != self._own and _lives(holder, self._own["host"]):
            raise UserError(
                f"Process {holder['pid']} drives the run {store.url} already.",
                f"Wait for it, or end it (`kill {holder['pid']}`) and start again: the run goes on.",
            )
        store.write_json(_FILE, self._own)

    def release(self) -> None:
        """Give it up, unless somebody else has it by now."""
        if self._store.read_json(_FILE) == self._own:
            self._store.delete(_FILE)


def _lives(holder: dict[str, Any], host: object) -> bool:
    if holder.get("host") != host:
        return False
    try:
        process = psutil.Process(int(holder["pid"]))
        alive = process.status() != psutil.STATUS_ZOMBIE
        return alive and abs(process.create_time() - float(holder["created"])) < 1
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False
