"""Coroutines from plain code.

Guarantee: ``run`` works in any thread, also one whose event loop is running (a notebook, an async flow), and raises the
first error of the coroutine itself, not a group of errors.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a fresh event loop and return its result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    # This thread's loop is busy running us: use another thread's.
    outcome: dict[str, Any] = {}
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome["result"] = context.run(asyncio.run, coroutine)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, name="relax-aio", daemon=True)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


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
