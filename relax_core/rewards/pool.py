"""Processes that run reward functions, with a time limit for each call.

Guarantee: every call gets an answer, in the order given; one that hangs or crashes costs its own time limit and a new
process, and while it lasts the others go on beside it; nothing is left running when the pool is closed or its owner
dies. Works from any thread: it uses no signals.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from relax_core.rewards.messages import Batch, Failed, Lost, Result, Task
from relax_core.rewards.process import NO_VARIABLES, Worker

STALL_SECONDS = 1.0
"""A call that takes longer no longer counts among the processes that may run at once: another takes its place."""

_TICK_SECONDS = 0.1
_CANCELLED = Lost("crash", "it was cancelled")
_SILENT = Lost("crash", "it gave no answer")


class RewardPool:
    """Workers that are kept for the next calls.

    Args:
        workers: most that run at once; calls that stall do not count.
        seconds: time limit of a call.
        variables: further environment variables of the processes.
    """

    def __init__(self, workers: int, seconds: float, variables: Mapping[str, str] = NO_VARIABLES) -> None:
        self._limit, self._seconds, self._variables = workers, seconds, dict(variables)
        self._todo: deque[tuple[_Run, int]] = deque()
        self._changed = threading.Condition()
        self._busy_since: dict[int, float | None] = {}  # thread -> since when it works on a call; None: it waits
        self._workers: dict[int, Worker] = {}
        self._closed = False
        self._next_thread = 0

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(
        self, tasks: Sequence[Task], seconds: Sequence[float] | None = None, until_failed: bool = False
    ) -> list[Result]:
        """The results of all tasks, in their order.

        Args:
            seconds: time limit of each, where it is less than the pool's.
            until_failed: after a ``Failed`` no further call is made; calls behind it may be ``Lost``.
        """
        limits = [min(limit, self._seconds) for limit in seconds or [self._seconds] * len(tasks)]
        return self._finished(_Run(list(tasks), limits, until_failed))

    def run_batch(self, batch: Batch) -> list[Result]:
        """The results of calls of a coroutine function that run together in one process, in their order.

        A process that is held up by one of them is ended, and the others go on in another one.
        """
        [found] = self._finished(_Run([batch], [batch.seconds]))
        return found if isinstance(found, list) else [found] * len(batch.calls)

    def _finished(self, run: "_Run") -> list[Any]:
        """The results of a run, when all are there."""
        count = len(run.tasks)
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._todo.extend((run, place) for place in range(count))
            self._changed.notify_all()
            for _ in range(min(count, self._limit, os.cpu_count() or 1) - self._idle()):
                self._grow()
            while not run.ended():
                self._changed.wait(_TICK_SECONDS)
                if self._todo and not self._idle():
                    self._grow()
            return [_CANCELLED if result is None else result for result in run.results]

    def close(self) -> None:
        """End all processes, also those in the middle of a call."""
        with self._changed:
            self._closed = True
            for run, _ in self._todo:
                run.stop(0)
            self._todo.clear()
            for worker in self._workers.values():
                worker.kill()
            self._changed.notify_all()

    def _idle(self) -> int:
        return sum(since is None for since in self._busy_since.values())

    def _grow(self) -> None:
        """One more worker, unless as many as may are at work that do not stall."""
        now = time.monotonic()
        active = sum(since is None or now - since < STALL_SECONDS for since in self._busy_since.values())
        if active < self._limit and len(self._busy_since) < 2 * self._limit:
            number = self._next_thread
            self._next_thread += 1
            self._busy_since[number] = None
            threading.Thread(target=self._work, args=(number,), name=f"reward-{number}", daemon=True).start()

    def _work(self, number: int) -> None:
        taken = None
        try:
            while (taken := self._take(number)) is not None:
                run, place = taken
                result = self._result(number, run.tasks[place], run.seconds[place])
                with self._changed:
                    run.results[place] = result
                    run.left -= 1
                    if run.until_failed and isinstance(result, Failed):
                        run.stop(place)
                        self._todo = deque(item for item in self._todo if item[0] is not run)
                    self._busy_since[number] = None
                    self._changed.notify_all()
        except Exception as error:  # e.g. no process can be started: every waiting call is told
            with self._changed:
                self._fail_all(f"{type(error).__name__}: {error}", taken)
        finally:
            with self._changed:
                self._busy_since.pop(number, None)
                worker = self._workers.pop(number, None)
                self._changed.notify_all()
            if worker is not None:
                worker.end()

    def _result(self, number: int, task: Task | Batch, seconds: float) -> Any:
        """A ``Result``, of a batch the list of all."""
        if isinstance(task, Batch):
            return self._of_batch(number, task)
        worker = self._worker(number)
        result = worker.load(task.function)
        if result is None:
            self._begins(number)
            result = worker.ask(task, seconds)
        if isinstance(result, Lost):
            self._drop(number)
        return result

    def _of_batch(self, number: int, batch: Batch) -> list[Result]:
        results: list[Result | None] = [None] * len(batch.calls)
        while not self._closed and (left := [place for place, result in enumerate(results) if result is None]):
            worker, kept = self._worker(number), True
            failure = worker.load(batch.function)
            if failure is not None:
                results = [failure if result is None else result for result in results]
            else:
                self._begins(number)
                kept = worker.ask_many(batch, left, results)
                failure = None if kept else _CANCELLED
            if isinstance(failure, Lost):
                self._drop(number)
            if batch.until_failed and any(isinstance(result, Failed) for result in results):
                break
            if kept or all(results[place] is None for place in left):  # to ask again would do no better
                results = [_SILENT if result is None and not self._closed else result for result in results]
        return [_CANCELLED if result is None else result for result in results]

    def _worker(self, number: int) -> Worker:
        """The process of a thread, which starts it if there is none."""
        worker = self._workers.get(number)
        if worker is None:
            worker = Worker(self._variables)
            with self._changed:
                self._workers[number] = worker
                if self._closed:
                    worker.kill()
        return worker

    def _begins(self, number: int) -> None:
        """A call begins; what the process has imported is no part of it."""
        with self._changed:
            self._busy_since[number] = time.monotonic()

    def _drop(self, number: int) -> None:
        """The process of a thread has ended."""
        with self._changed:
            self._workers.pop(number, None)

    def _take(self, number: int) -> "tuple[_Run, int] | None":
        """The next call; None when this worker is of no more use: the pool is closed, or has enough others."""
        with self._changed:
            while not self._todo:
                if self._closed or len(self._busy_since) > self._limit:
                    return None
                self._changed.wait()
            self._busy_since[number] = time.monotonic()
            return self._todo.popleft()

    def _fail_all(self, reason: str, taken: "tuple[_Run, int] | None") -> None:
        waiting = [*([taken] if taken else []), *self._todo]
        self._todo.clear()
        for run, place in waiting:
            run.results[place] = Failed(f"No process for rewards can be started: {reason}.", "", "")
            run.left -= 1
        self._changed.notify_all()


class _Run:
    """The tasks of one call of the pool."""

    def __init__(self, tasks: Sequence[Task | Batch], seconds: list[float], until_failed: bool = False) -> None:
        self.tasks, self.seconds, self.until_failed = tasks, seconds, until_failed
        self.results: list[Any] = [None] * len(tasks)
        self.left = self._end = len(tasks)

    def stop(self, place: int) -> None:
        """Wait for no task behind this one."""
        self._end = min(self._end, place)

    def ended(self) -> bool:
        """Whether all that is waited for is there."""
        return self.left <= 0 or (self._end < len(self.tasks) and None not in self.results[: self._end])
