"""Whose turn it is where steps overlap (--fully-async): one step generates at a time, one trains, each in order.

Guarantee: step ``j`` begins to generate when the step before it has ended its generation and the engines have had the
weights of version ``j - max_staleness``, so that no sample is made by older ones and at most ``max_staleness + 1``
steps are unfinished; step ``j`` trains when the one before it has left the trainer. When one step fails, every other
that waits ends as well.

The rule, with ``i`` the oldest step whose update the engines do not have: ``j - i <= max_staleness``.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(Exception):  # it tells of no error of the step that it ends
    """Another step has failed, or the run was stopped; this one goes on with the next start."""


class StepOrder:
    """Turns of one run in one process.

    Args:
        first: the first step that this process runs.
        staleness: by how many steps generation may be ahead.
        version: of the weights that the engines have at first.
        waited: told of a wait for the staleness rule that is over: step, oldest unfinished step, seconds.
    """

    def __init__(
        self,
        first: int,
        staleness: int,
        version: int | None = None,
        waited: Callable[[int, int, float], None] = lambda step, oldest, seconds: None,
    ) -> None:
        self.first, self._staleness, self._waited = first, staleness, waited
        self._changed = threading.Condition()
        self._generates = self._trains = first
        self._begun = first - 1
        self._version = first if version is None else version
        self._stopped = False

    @property
    def version(self) -> int:
        """The newest version that the engines were brought to: all steps before it have trained."""
        return self._version

    def wait_for_begin(self, step: int) -> None:
        """Wait until ``step`` has begun to generate.

        Raises:
            Stopped: it never will.
        """
        with self._changed:
            self._wait(lambda: self._begun >= step)

    @contextmanager
    def generating(self, step: int) -> Iterator[None]:
        """Round the generation of a step; waits until it may begin.

        Raises:
            Stopped: it never may.
        """
        with self._changed:
            self._wait(lambda: self._generates == step)
            began, oldest = time.monotonic(), self._version
            needed = step - self._staleness
            self._wait(lambda: needed <= self._version)
            if oldest != self._version:
                self._waited(step, oldest, time.monotonic() - began)
            self._begun = step
            self._changed.notify_all()
        yield
        with self._changed:
            self._generates = step + 1
            self._changed.notify_all()

    def wait_to_train(self, step: int) -> None:
        """Wait until ``step`` may use the trainer.

        Raises:
            Stopped: it never will.
        """
        with self._changed:
            self._wait(lambda: self._trains == step)

    @contextmanager
    def training(self, step: int) -> Iterator[None]:
        """Round what a step does with the trainer; waits until it may.

        Raises:
            Stopped: it never may.
        """
        self.wait_to_train(step)
        yield
        with self._changed:
            self._trains = step + 1
            self._changed.notify_all()

    def synced(self, version: int) -> None:
        """The update that makes ``version`` is done, and the engines have it, or the version that they are to have."""
        with self._changed:
            self._version = max(self._version, version)
            self._changed.notify_all()

    def stop(self) -> None:
        """End all waits, now and later."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._stopped or ready())  # the step that is waited for tells what it waits for
        if self._stopped:
            raise Stopped("another step has failed, or the run was stopped: the next start goes on with this one")
