"""Steps that overlap (--fully-async): while one trains, the next ones generate.

Guarantee: each step is a subflow as in the synchronous mode, with the same stages, records and tables; who may generate
and who may train is ``StepOrder``'s to say. An error of one step ends the others, with what they have finished kept,
and is the one that is raised; the caller is not held up by a thread that is deep in a library.
"""

import contextlib
import contextvars
import threading
from collections.abc import Callable, Generator
from typing import Any

from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.groups import Groups
from relax_core.aio import Canceller
from relax_core.run.order import StepOrder, Stopped
from relax_core.run.session import RunSession

END_SECONDS = 10.0
"""How long the other steps may take to end when one has failed, or the run is stopped."""

AHEAD = 2
"""Subflows that are there before their turn: Prefect makes one in 0.2 s, and in seconds where its database is busy."""

OneStep = Callable[[RunSession, int, StepOrder], dict[str, Any]]


class _Steps:
    """The threads of the steps that are under way."""

    def __init__(self, run: RunSession, order: StepOrder, one_step: OneStep, groups: Groups) -> None:
        self._run, self._order, self._one_step, self._groups = run, order, one_step, groups
        self._canceller = Canceller()
        self._threads: list[threading.Thread] = []
        self._finished: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self.error: BaseException | None = None

    def start(self, step: int) -> None:
        """Begin a step, unless all are to end."""
        try:
            context = self._groups.context(step)  # the parent flow's, so that this is its subflow
        except BaseException as error:  # the group's flow run could not be made
            self._fail(error)
            return
        thread = threading.Thread(target=context.run, args=(self._serve, step), name=f"step-{step:06d}", daemon=True)
        with self._changed:
            if self._ended or self.error is not None:
                return  # its subflow would be made while the parent ends
            self._threads.append(thread)
            thread.start()

    def finished(self, step: int) -> dict[str, Any]:
        """The manifest of a step, when it is there.

        Raises:
            Stopped: it will not be.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or step in self._finished)
            if self.error is not None:
                raise Stopped("a step has failed")
            return self._finished.pop(step)

    def stop(self) -> None:
        """End what can be ended, and wait a little for it."""
        with self._changed:
            self._ended = True
        self._order.stop()
        self._canceller.cancel()
        for thread in self._threads:
            thread.join(END_SECONDS / len(self._threads))

    def _serve(self, step: int) -> None:
        try:
            with self._canceller.reaching():
                manifest = self._one_step(self._run, step, self._order)
            with self._changed:
                self._finished[step] = manifest
                self._changed.notify_all()
        except Stopped:
            pass
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """All steps end with this error, unless another was first."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
        self._order.stop()
        self._canceller.cancel()


def overlapping_steps(
    run: RunSession, first: int, order: StepOrder, one_step: OneStep
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Run all steps from ``first`` on; each is begun as soon as it may generate.

    Args:
        one_step: the subflow of a step.

    Yields:
        Each finished step and its manifest, in order.
    """
    # The heartbeat of a subflow costs a second a step; the parent's shows that the run lives.
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), Groups(run, first) as groups:
        steps = _Steps(run, order, one_step, groups)
        starter = threading.Thread(
            target=contextvars.copy_context().run,
            args=(_start_all, run, first, order, steps),
            name="steps",
            daemon=True,
        )
        starter.start()
        try:
            for step in range(first, run.total_steps):
                manifest = steps.finished(step)
                groups.finished(step)
                yield step, manifest
        except Stopped:
            assert steps.error is not None
            raise steps.error from None
        finally:
            steps.stop()


def _start_all(run: RunSession, first: int, order: StepOrder, steps: _Steps) -> None:
    with contextlib.suppress(Stopped):
        for step in range(first, run.total_steps):
            order.wait_for_begin(step - AHEAD)
            steps.start(step)
