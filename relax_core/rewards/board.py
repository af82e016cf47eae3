"""Which of the calls in a worker's event loop is at work, for the process that started the worker.

Guarantee: it can be read while that loop is blocked and after that process has died; a number is never seen with the
time of an earlier one.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Awaitable, Generator
from typing import Any, NamedTuple

_BYTES = 16
_NOBODY = -1


class At(NamedTuple):
    """A call and the time (``time.monotonic()``) since when it has not let the loop go on."""

    place: int
    since: float


class Board:
    """A piece of memory that two processes share.

    Args:
        descriptor: of its file, as the other process passed it on; None: a new one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
            os.ftruncate(self.descriptor, _BYTES)
        else:
            self.descriptor = descriptor
        self._memory = mmap.mmap(self.descriptor, _BYTES)
        words = memoryview(self._memory)  # each is written at once, as a struct's bytes would not be
        self._place, self._since = words[:8].cast("q"), words[8:].cast("d")
        if descriptor is None:
            self.leave()

    def enter(self, place: int) -> None:
        """The call ``place`` goes on."""
        self._since[0] = time.monotonic()  # before the number, which makes it count
        self._place[0] = place

    def leave(self) -> None:
        """It waits, or has ended."""
        self._place[0] = _NOBODY

    def read(self) -> At | None:
        """The call that is at work; None when the loop is between calls."""
        place = self._place[0]
        since = self._since[0]  # after the number: at worst that of a later one, which is younger
        return None if place == _NOBODY else At(place, since)

    def close(self) -> None:
        """Give the memory back."""
        self._place.release()
        self._since.release()
        self._memory.close()
        os.close(self.descriptor)


def end_fork(process: int) -> None:
    """End this process unless it is ``process``: one that a function has forked must not go on in that one's place."""
    if os.getpid() != process:
        os._exit(1)


class Shown:
    """Something to await whose steps are shown on a board; one that ends the process, ``sys.exit()``, stays on it.

    Args:
        board: shows them.
        place: under which number.
        awaitable: what is awaited.
    """

    def __init__(self, board: Board, place: int, awaitable: Awaitable[Any]) -> None:
        self._board, self._place, self._awaitable = board, place, awaitable
        self._process = os.getpid()

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._awaitable.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            self._board.enter(self._place)
            try:
                waits_for = self._step(steps, value, error)
            except StopIteration as end:
                self._board.leave()
                return end.value
            except (SystemExit, KeyboardInterrupt):  # the loop ends with these, and with these alone
                raise
            except BaseException:
                self._board.leave()
                raise
            self._board.leave()
            value, error = None, None
            try:
                value = yield waits_for
            except BaseException as thrown:
                error = thrown

    def _step(self, steps: Any, value: Any, error: BaseException | None) -> Any:
        try:
            return steps.send(value) if error is None else steps.throw(error)
        finally:
            end_fork(self._process)  # before the board, which it shares, tells of it
