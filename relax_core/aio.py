"""Coroutines from plain code.

Guarantee: ``run`` works in any thread, also one whose event loop is running (a notebook, an async flow), and raises the
first error of the coroutine itself, not a group of errors. What a ``Canceller`` reaches can be ended from another
thread.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from relax_core import signs

T = TypeVar("T")

_BEAT_SECONDS = 5.0


class Canceller:
    """Ends the coroutines of every ``run`` that it reaches, now and later, when another thread says so.

    Such a ``run`` raises ``asyncio.CancelledError``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._cancelled = False

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """``cancel`` ends what this thread runs in the body."""
        token = _canceller.set(self)
        try:
            yield
        finally:
            _canceller.reset(token)

    def cancel(self) -> None:
        """End them; from any thread."""
        with self._lock:  # a loop that is in the dictionary is not closed while this is held
            self._cancelled = True
            for task, loop in self._running.items():
                loop.call_soon_threadsafe(task.cancel)

    async def watched(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that ``cancel`` ends."""
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._running[task] = asyncio.get_running_loop()
            if self._cancelled:
                task.cancel()
        try:
            return await coroutine
        finally:
            with self._lock:
                del self._running[task]


_canceller: ContextVar[Canceller | None] = ContextVar("canceller", default=None)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a fresh event loop and return its result."""
    coroutine = _beating(coroutine)
    canceller = _canceller.get()
    if canceller is not None:
        coroutine = canceller.watched(coroutine)
    outcome: dict[str, Any] = {}

    async def work() -> None:
        # Not returned: Python 3.11 and 3.12 print the loop's task, with what it returned, as they take back Ctrl-C.
        outcome["result"] = await coroutine

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work())
        return outcome["result"]
    # This thread's loop is busy running us: use another thread's.
    context = contextvars.copy_context()

    def run_there() -> None:
        try:
            context.run(asyncio.run, work())
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run_there, name="relax-aio", daemon=True)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


async def _beating(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; a loop that runs, whatever it waits for, is a sign of life."""

    async def beat() -> None:
        while True:
            signs.alive()
            await asyncio.sleep(_BEAT_SECONDS)

    beats = asyncio.create_task(beat())
    try:
        return await coroutine
    finally:
        beats.cancel()


async def gather(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Results in the order given; at the first error the rest is cancelled and awaited, then that error is raised."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def cancelled() -> bool:
    """Whether the task that runs this is to end itself; a ``CancelledError`` is somebody else's where it is not."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
