"""What the driver waits for, told to whoever wonders.

Guarantee: a wait inside ``told`` is told after a minute, or as soon as it says, and each minute from then on: what is
waited for, for whom and since when. ``Wait.check`` ends one that has a limit. A watched process counts as alive
meanwhile, if it may wait so.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from data.errors import Lost
from relax_core import signs

TELL_SECONDS = 60.0
"""After so long, and again after so long each time."""

_TICK_SECONDS = 5.0


@dataclass(eq=False)
class Wait:
    """An open wait.

    Attributes:
        what: is waited for, as after "waiting for".
        whom: who needs it.
        limit: seconds; None: whoever is waited for has one of its own.
        allowed: whether a process that does nothing else meanwhile lives.
        first: seconds after which it is told for the first time.
        since: seconds since 1970.
    """

    what: str
    whom: str
    limit: float | None = None
    allowed: bool = True
    first: float = TELL_SECONDS
    since: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    told: int = 0

    @property
    def seconds(self) -> float:
        """So far."""
        return time.monotonic() - self.began

    @property
    def text(self) -> str:
        """One line."""
        at = time.strftime("%H:%M:%S", time.localtime(self.since))
        limit = "" if self.limit is None else f", at most {self.limit:.0f} s"
        return f"waiting for {self.what} since {at} ({self.seconds:.0f} s{limit}), for {self.whom}"

    def went_on(self) -> None:
        """What is waited for has made progress: the wait counts from now on."""
        self.since, self.began, self.told = time.time(), time.monotonic(), 0

    def check(self) -> None:
        """Call it now and then where the wait is a loop.

        Raises:
            Lost: the limit is reached.
        """
        if self.limit is not None and self.seconds > self.limit:
            raise Lost(
                f"Waited {self.seconds:.0f} s for {self.what}, for {self.whom}.", "Start again: the run goes on."
            )


Listener: TypeAlias = Callable[[Wait], None]

_open: list[Wait] = []
_listeners: list[Listener] = []
_lock = threading.Lock()
_ticker: threading.Thread | None = None


@contextmanager
def told(
    what: str, whom: str, limit: float | None = None, allowed: bool = True, first: float | None = None
) -> Iterator[Wait]:
    """Round a wait. From any thread; waits may lie in each other.

    Args:
        what: is waited for.
        whom: who needs it.
        limit: seconds, for ``Wait.check``.
        allowed, first: see ``Wait``.
    """
    global _ticker
    wait = Wait(what, whom, limit, allowed, TELL_SECONDS if first is None else first)
    with _lock:
        _open.append(wait)
        if _ticker is None:
            _ticker = threading.Thread(target=_tick, name="waiting", daemon=True)
            _ticker.start()
    try:
        yield wait
    finally:
        with _lock:
            _open.remove(wait)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While the body runs, each wait is told to ``listener`` when it is time."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _tick() -> None:
    while True:
        time.sleep(min(_TICK_SECONDS, TELL_SECONDS))
        with _lock:
            waits = list(_open)
        if any(wait.allowed for wait in waits):
            signs.alive()
        for wait in waits:
            if wait.seconds >= wait.first + TELL_SECONDS * wait.told:
                wait.told += 1
                for listener in list(_listeners):
                    listener(wait)
