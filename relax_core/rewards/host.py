"""Processes of reward functions on one machine, for callers on any.

Guarantee: a call is answered once; its answers wait here until they are taken; what a caller that is gone has left
behind is ended. No epoch is needed: a call changes nothing here, so that those of an earlier driver may run beside
others, and each caller has only a few calls here at a time.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relax_core.rewards.callers import Run
from relax_core.rewards.messages import Question, Result
from relax_core.rewards.pool import LINGER_SECONDS, RewardPool
from relax_core.rewards.process import Surroundings

LAST_SECONDS = 0.1
"""How long an answer waits for others, where its caller has nothing more to ask."""

LEASE_SECONDS = 180.0
"""How long a caller may be silent before its calls are ended."""


def machine() -> str:
    """What tells this machine from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


@dataclass(frozen=True)
class Setting:
    """What a caller wants of the processes.

    Attributes:
        client: its name.
        warm: processes that another client has left may be used, and are left for others: what they have imported is
            not the user's, so that it cannot have been edited since.
        workers: most at once on this host.
        seconds: time limit of a call.
        variables: further environment variables.
        surroundings: those of the caller.
        machine: of the caller; on another one its environment only adds to that of the host.
    """

    client: str
    warm: bool
    workers: int
    seconds: float
    variables: Mapping[str, str]
    surroundings: Surroundings
    machine: str

    def pool(self) -> RewardPool:
        """Processes as they are wanted."""
        given, folder = self.surroundings
        environment = given if self.machine == machine() else {**given, **os.environ}
        return RewardPool(self.workers, self.seconds, self.variables, Surroundings(environment, folder))

    def key(self) -> tuple[Any, ...]:
        """What callers of the same processes have in common."""
        variables, (environment, folder) = self.variables, self.surroundings
        texts = (tuple(sorted(variables.items())), tuple(sorted(environment.items())), folder)
        return (None if self.warm else self.client, self.workers, self.seconds, texts, self.machine)


class Opening(NamedTuple):
    """A call as it begins: what it wants, and whether after a ``Failed`` no further call is made."""

    setting: Setting
    until_failed: bool


@dataclass
class _Call:
    """One that is open."""

    client: str
    key: tuple[Any, ...]
    pool: RewardPool
    run: Run
    heard: float
    asking: int = 0


class RewardHost:
    """What an actor holds; usable without one. Its methods may be called from several threads at once.

    Args:
        code: of what source it is made, see ``fits``.
        lease: how long a caller may be silent, in seconds.
    """

    def __init__(self, code: str = "", lease: float = LEASE_SECONDS) -> None:
        self._code, self._lease = code, lease
        self._lock = threading.Lock()
        self._calls: dict[str, _Call] = {}
        self._pools: dict[tuple[Any, ...], RewardPool] = {}
        self._watched = False

    def fits(self, code: str) -> bool:
        """Whether it is made of this source."""
        return self._code == code

    def status(self) -> dict[str, Any]:
        """Its process, and what it does."""
        with self._lock:
            calls = len(self._calls)
        return {"pid": os.getpid(), "busy_with": f"{calls} callers" if calls else None}

    def exchange(
        self,
        call: str,
        questions: Sequence[Question],
        seconds: float,
        last: bool = False,
        opening: Opening | None = None,
    ) -> list[tuple[int, Result]] | None:
        """Ask more, and take answers with their places: when half of them are there, after the first one and a moment,
        or after ``seconds``.

        Args:
            call: its name, which nobody else has.
            last: nothing more waits to be asked, so that all answers may come at once, and the moment is longer.
            opening: where it is not open yet.

        Returns:
            None when the call is not open: nothing was asked.
        """
        with self._lock:
            found = self._calls.get(call)
            if found is None:
                if opening is None:
                    return None
                found = self._calls[call] = self._open(opening)
            found.asking += 1
        try:
            if questions:
                found.pool.ask(found.run, questions)
            left = found.run.left
            enough, linger = (left, LAST_SECONDS) if last else (left // 2, LINGER_SECONDS)
            return found.pool.take(found.run, seconds, max(1, enough), linger)
        finally:
            with self._lock:
                found.asking -= 1
                found.heard = time.monotonic()

    def halt(self, call: str) -> None:
        """Begin nothing more of a call."""
        with self._lock:
            found = self._calls.get(call)
        if found is not None:
            found.pool.halt(found.run)

    def end(self, call: str) -> None:
        """A call wants nothing more; what has begun is ended, unless all was answered."""
        with self._lock:
            found = self._calls.pop(call, None)
        if found is not None:
            found.pool.end(found.run)

    def leave(self, client: str) -> None:
        """A client wants nothing more: its calls are ended, and processes that nobody else may use."""
        with self._lock:
            left = [name for name, call in self._calls.items() if call.client == client]
        for name in left:
            self.end(name)
        with self._lock:
            for key in [key for key in self._pools if key[0] == client]:
                self._pools.pop(key).close()

    def _open(self, opening: Opening) -> _Call:
        setting = opening.setting
        key = setting.key()
        pool = self._pools.get(key)
        if pool is None:
            in_use = {other.key for other in self._calls.values()}
            for idle in self._pools.keys() - in_use:  # of an earlier driver, or with addresses that are no more
                self._pools.pop(idle).close()
            pool = self._pools[key] = setting.pool()
        if not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, name="reward-leases", daemon=True).start()
        return _Call(setting.client, key, pool, pool.begin(opening.until_failed), time.monotonic())

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self._lease / 4))
            now = time.monotonic()
            with self._lock:
                if not self._calls:
                    self._watched = False
                    return
                silent = [
                    name for name, call in self._calls.items() if not call.asking and now - call.heard > self._lease
                ]
            for name in silent:
                self.end(name)
