"""Processes that run reward functions, with a time limit for each call.

Guarantee: every call gets an answer, in the order given; one that hangs or crashes costs its own time limit and a new
process, and while it lasts the others go on beside it; nothing is left running when the pool is closed or its owner
dies. Works from any thread: it uses no signals.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from relax_core import signs
from relax_core.rewards.callers import OpenQuestion, Run, ToldResults
from relax_core.rewards.messages import (
    CANCELLED,
    Batch,
    Failed,
    Lost,
    Packed,
    Question,
    Result,
    Results,
    Task,
    Tell,
    nobody,
)
from relax_core.rewards.process import NO_VARIABLES, Surroundings, Worker, ending

STALL_SECONDS = 1.0
"""A call that takes longer no longer counts among the processes that may run at once: another takes its place."""

LINGER_SECONDS = 0.02
"""How long one answer waits for others, where several are wanted."""

_TICK_SECONDS = 0.1
_SILENT = Lost("crash", "it gave no answer")

KILLED = Lost("crash", f"the reward's process ended with {ending(-signal.SIGKILL)}")
"""By whoever is short of memory, or by a person: the call is made once more."""


class RewardPool:
    """Workers that are kept for the next calls.

    Args:
        workers: most that run at once; calls that stall do not count.
        seconds: time limit of a call.
        variables: further environment variables of the processes.
        surroundings: in which the processes run; None: those of this one.
    """

    def __init__(
        self,
        workers: int,
        seconds: float,
        variables: Mapping[str, str] = NO_VARIABLES,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._limit, self._seconds = workers, seconds
        self._variables, self._surroundings = dict(variables), surroundings
        self._todo: deque[OpenQuestion] = deque()
        self._lock = threading.RLock()
        self._new = threading.Condition(self._lock)
        self._busy_since: dict[int, float | None] = {}  # thread -> since when it works on a call; None: it waits
        self._works_for: dict[int, Run] = {}
        self._workers: dict[int, Worker] = {}
        self._closed = False
        self._next_thread = 0

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(
        self,
        tasks: Sequence[Task],
        seconds: Sequence[float] | None = None,
        until_failed: bool = False,
        tell: Tell = nobody,
    ) -> list[Result]:
        """The results of all tasks, in their order.

        Args:
            seconds: time limit of each, where it is less than the pool's.
            until_failed: after a ``Failed`` no further call is made; calls behind it may be ``Lost``.
            tell: is told each result when it comes, in this thread.
        """
        limits = seconds or [self._seconds] * len(tasks)
        pairs = enumerate(zip(tasks, limits, strict=True))
        questions = [Question((place,), task, limit) for place, (task, limit) in pairs]
        return self._all(questions, len(tasks), tell, until_failed)

    def run_batch(self, batch: Batch, tell: Tell = nobody) -> list[Result]:
        """The results of calls of a coroutine function that run together in one process, in their order.

        A process that is held up by one of them is ended, and the others go on in another one.
        """
        count = len(batch.calls)
        return self._all([Question(tuple(range(count)), batch, batch.seconds)], count, tell)

    def _all(self, questions: Sequence[Question], count: int, tell: Tell, until_failed: bool = False) -> list[Result]:
        results = Results(count, until_failed, tell)
        run = self.begin(until_failed)
        self.ask(run, questions)
        while not results.complete:
            for place, result in self.take(run, _TICK_SECONDS, 1 if until_failed else results.missing):
                results.put(place, result)
        return results.all()

    # For a caller that asks more while it takes answers

    def begin(self, until_failed: bool = False) -> Run:
        """A new caller. Others do not see its answers."""
        return Run(until_failed, self._lock)

    def ask(self, run: Run, questions: Sequence[Question]) -> None:
        """Let calls be made.

        Raises:
            RuntimeError: the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._todo.extend(OpenQuestion(run, question) for question in questions)
            run.left += sum(len(question.places) for question in questions)
            self._new.notify(len(questions))
            for _ in range(min(len(self._todo), self._limit, os.cpu_count() or 1) - self._idle()):
                self._grow()

    def take(
        self, run: Run, seconds: float, enough: int = 1, linger: float = LINGER_SECONDS
    ) -> list[tuple[int, Result]]:
        """Answers with their places: as soon as ``enough`` are there, or all; fewer ``linger`` seconds after the first
        one, or after ``seconds``.

        As long as calls are made, somebody has to be in here: it starts processes in the place of those that stall.
        """
        signs.alive()  # calls have a limit of their own
        until, more = time.monotonic() + seconds, float("inf")
        with self._lock:
            run.enough = enough
            while len(run.answers) < enough and run.left and (now := time.monotonic()) < until:
                if run.answers:
                    more = min(more, now + linger)
                    if now >= more:
                        break
                run.changed.wait(min(_TICK_SECONDS, until - now, more - now))
                if self._todo and not self._idle():
                    self._grow()
            answers, run.answers = run.answers, []
            return [] if run.over else answers

    def halt(self, run: Run) -> None:
        """Make no further call of a caller: those that have not begun are lost."""
        with self._lock:
            dropped = [asked for asked in self._todo if asked.run is run]
            self._todo = deque(asked for asked in self._todo if asked.run is not run)
            for asked in dropped:
                self._cancelled(asked)

    def end(self, run: Run) -> None:
        """The caller wants nothing more: calls that have begun are ended as well, and it gets no answers."""
        with self._lock:
            run.over = True
            self.halt(run)
            for number, other in self._works_for.items():
                if other is run and (worker := self._workers.get(number)):
                    worker.kill()

    def close(self) -> None:
        """End all processes, also those in the middle of a call."""
        with self._lock:
            self._closed = True
            for run in {asked.run for asked in self._todo}:
                self.halt(run)
            for worker in self._workers.values():
                worker.kill()
            self._new.notify_all()

    # Threads: each has a process

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
                question = taken.question
                if isinstance(question.task, Batch):
                    results = self._of_batch(number, taken, question.task)
                else:
                    results = [self._result(number, taken, question.task)]
                with self._lock:
                    self._works_for.pop(number)
                    self._busy_since[number] = None
                    self._answer(taken, zip(question.places, results, strict=True))
                    killed = self._workers.pop(number, None) if taken.run.over else None
                if killed is not None:  # by ``end``, maybe behind the call
                    killed.end()
        except Exception as error:  # e.g. no process can be started: every waiting call is told
            with self._lock:
                self._fail_all(f"{type(error).__name__}: {error}", taken)
        finally:
            with self._lock:
                self._busy_since.pop(number, None)
                self._works_for.pop(number, None)
                worker = self._workers.pop(number, None)
            if worker is not None:
                worker.end()

    def _answer(self, asked: OpenQuestion, answers: Iterable[tuple[int, Result]]) -> None:
        """Answers that have not been given yet."""
        run = asked.run
        with self._lock:
            for place, result in answers:
                if place not in asked.open:
                    continue
                asked.open.discard(place)
                run.answers.append((place, result))
                run.left -= 1
                if run.until_failed and isinstance(result, Failed):
                    self.halt(run)
            if len(run.answers) == 1 or len(run.answers) >= run.enough or not run.left:
                run.changed.notify_all()

    def _cancelled(self, asked: OpenQuestion) -> None:
        self._answer(asked, [(place, CANCELLED) for place in asked.question.places])

    def _result(self, number: int, asked: OpenQuestion, task: Task | Packed) -> Result:
        for last in (False, True):
            worker = self._worker(number)
            result = worker.load(task.function)
            if result is None:
                self._begins(number)
                result = worker.ask(task, min(asked.question.seconds, self._seconds))
            if isinstance(result, Lost):
                self._drop(number)
            if result != KILLED or last or self._closed or asked.run.over:
                return result
        raise AssertionError("unreachable")

    def _of_batch(self, number: int, asked: OpenQuestion, batch: Batch) -> list[Result]:
        """Its results. Each is told when it comes; the last one by whoever calls this, when this thread is free."""
        again: set[int] = set()  # whose process was killed

        def tell(at: int, result: Result) -> None:
            if len(asked.open) > 1 and (result != KILLED or at in again):
                self._answer(asked, [(asked.question.places[at], result)])

        results = ToldResults(len(batch.calls), tell)
        while not self._closed and not asked.run.over and (left := results.left()):
            worker, kept = self._worker(number), True
            failure = worker.load(batch.function)
            if failure is not None:
                results.fill(failure)
            else:
                self._begins(number)
                kept = worker.ask_many(batch, left, results)
            if not kept or isinstance(failure, Lost):
                self._drop(number)
            if killed := {at for at in left if results[at] == KILLED} - again:
                again |= killed
                for at in killed:
                    results[at] = None
                continue
            if batch.until_failed and any(isinstance(result, Failed) for result in results):
                break
            if (kept or results.left() == left) and not self._closed:  # to ask again would do no better
                results.fill(_SILENT)
        return [CANCELLED if result is None else result for result in results]

    def _worker(self, number: int) -> Worker:
        """The process of a thread, which starts it if there is none."""
        worker = self._workers.get(number)
        if worker is None:
            worker = Worker(self._variables, self._surroundings)
            with self._lock:
                self._workers[number] = worker
                if self._closed or self._works_for[number].over:
                    worker.kill()
        return worker

    def _begins(self, number: int) -> None:
        """A call begins; what the process has imported is no part of it."""
        with self._lock:
            self._busy_since[number] = time.monotonic()

    def _drop(self, number: int) -> None:
        """The process of a thread has ended."""
        with self._lock:
            self._workers.pop(number, None)

    def _take(self, number: int) -> OpenQuestion | None:
        """The next call; None when this worker is of no more use: the pool is closed, or has enough others."""
        with self._lock:
            while not self._todo:
                if self._closed or len(self._busy_since) > self._limit:
                    return None
                self._new.wait()
            self._busy_since[number] = time.monotonic()
            asked = self._todo.popleft()
            self._works_for[number] = asked.run
            return asked

    def _fail_all(self, reason: str, taken: OpenQuestion | None) -> None:
        waiting = [*([taken] if taken else []), *self._todo]
        self._todo.clear()
        failed = Failed(f"No process for rewards can be started: {reason}.", "", "")
        for asked in waiting:
            self._answer(asked, [(place, failed) for place in asked.question.places])
