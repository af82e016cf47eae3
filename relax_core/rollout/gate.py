"""The door between generation and the engines, closed while weights change.

Guarantee: inside ``closed`` no request is in flight at any engine, whichever threads and event loops send them; what
waits at the door goes through when it opens, and no request is lost. A request that was ended for it can tell.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from data.errors import Lost
from relax_core.waiting import told

INTERRUPT_SECONDS = 0.5
"""Requests that had just been sent are not known to the engine yet: it is told again after so long."""


class Gate:
    """One for all that is generated in a run.

    Args:
        patience: seconds until requests that do not end are an error.
    """

    def __init__(self, patience: float = 600.0) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._closing = threading.Lock()
        self._closed = False
        self._inside = 0
        self._count = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def count(self) -> int:
        """How often the door has been closed: a request that was inside meanwhile sees another number after it."""
        return self._count

    @property
    def is_closed(self) -> bool:
        """Whether requests wait at it."""
        return self._closed

    @property
    def inside(self) -> int:
        """Requests in flight."""
        return self._inside

    @asynccontextmanager
    async def passage(self) -> AsyncIterator[int]:
        """Round one request to an engine; waits while the door is closed. Gives ``count`` as it is on entering."""
        while True:
            with self._changed:
                if not self._closed:
                    self._inside += 1
                    count = self._count
                    break
                opened = asyncio.Event()
                self._waiting.append((asyncio.get_running_loop(), opened))
            await opened.wait()
        try:
            yield count
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Round a change of the weights.

        Args:
            interrupt: ends what the engines are at (each request returns what it has); called until nothing is left.

        Raises:
            Lost: requests do not end.
        """
        with self._closing:
            with self._changed:
                self._closed, self._count = True, self._count + 1
            try:
                self._wait_empty(interrupt)
                yield
            finally:
                with self._changed:
                    self._closed, waiting = False, self._waiting
                    self._waiting = []
                for loop, opened in waiting:
                    if not loop.is_closed():
                        loop.call_soon_threadsafe(opened.set)

    def _wait_empty(self, interrupt: Callable[[], None]) -> None:
        with told("requests in flight to end", "the new weights", self._patience):
            self._until_empty(interrupt)

    def _until_empty(self, interrupt: Callable[[], None]) -> None:
        began = time.monotonic()
        while True:
            with self._changed:
                if not self._inside:
                    return
            interrupt()
            with self._changed:
                if self._changed.wait_for(lambda: not self._inside, INTERRUPT_SECONDS):
                    return
                left = self._inside
            if time.monotonic() - began > self._patience:
                raise Lost(
                    f"{left} requests have not ended {self._patience:g} s after the engines were told to end them.",
                    "Look at the engines' logs; start the command again: it goes on.",
                )
