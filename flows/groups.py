"""Steps of a long run in groups, so that the graph of the run and of each group can be read.

Guarantee: a run of at most ``FEW`` steps has none, and its steps are subflows of its own flow run; of a longer one each
is a subflow of a group, and neither the run nor a group of a run of 1,000 steps has more than ``FEW`` of them. A group
is a flow run and nothing else: it decides nothing and ends when its last step does, with the others when one fails.
"""

import contextvars
import threading
import time
from typing import Any

from prefect import flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Cancelled, Failed, State

from relax_core.run.session import RunSession

FEW = 40
"""Nodes of a graph whose names can be read when it opens."""

SIZE = 25
"""Steps of a group."""

END_SECONDS = 5.0
"""How long the end of a run waits for its groups to report theirs."""


def group_size(total_steps: int) -> int:
    """Steps of a group; 0: the run needs none."""
    if total_steps <= FEW:
        return 0
    return SIZE if total_steps <= FEW * SIZE else -(-total_steps // FEW)


class _Group:
    """One group, from before its first step to after its last."""

    def __init__(self, run: RunSession, first: int, last: int) -> None:
        self.last, self.context = last, contextvars.copy_context()
        self._ready, self._ended = threading.Event(), threading.Event()
        self._state: Any = None
        self._error: BaseException | None = None

        @flow(name="steps", flow_run_name=f"{run.id}/steps-{first:06d}-{last:06d}", validate_parameters=False)
        def steps() -> Any:
            self.context = contextvars.copy_context()
            self._ready.set()
            self._ended.wait()
            return self._state

        def serve() -> None:
            try:
                # The heartbeat of a subflow costs a second; that of the run shows that it lives.
                with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                    steps()
            except BaseException as error:
                if not self._ready.is_set():  # afterwards it is the state that it ends with, or only a picture
                    self._error = error
            finally:
                self._ready.set()

        self._thread = threading.Thread(target=self.context.run, args=(serve,), name=f"steps-{first:06d}", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def end(self, state: State | None = None) -> None:
        """Let the group end, well or in the given state. It reports that beside the run."""
        self._state = state
        self._ended.set()

    def wait(self, seconds: float) -> None:
        """Wait until it has reported its end."""
        self._thread.join(seconds)


class Groups:
    """Opens and ends the groups of a run; steps may overlap.

    Args:
        first: the first step that this process runs.
    """

    def __init__(self, run: RunSession, first: int) -> None:
        self._run, self._size = run, group_size(run.total_steps)
        self._first, self._ended = first, False
        self._open: dict[int, _Group] = {}
        self._ending: list[_Group] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "Groups":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Groups whose last step has not ended end as well."""
        failed = kind is not None and issubclass(kind, Exception)
        state: State = Failed(message="a step has failed") if failed else Cancelled(message="the run was ended")
        with self._lock:
            self._ended = True
            for group in self._open.values():
                group.end(state)
            until = time.monotonic() + END_SECONDS
            for group in (*self._ending, *self._open.values()):
                group.wait(max(0.0, until - time.monotonic()))

    def context(self, step: int) -> contextvars.Context:
        """A context in which a flow that is called is a subflow of the group of ``step``, or of the present flow."""
        place = step // self._size if self._size else 0
        with self._lock:
            if not self._size or self._ended:
                return contextvars.copy_context()
            if place not in self._open:
                begin = max(self._first, place * self._size)
                self._open[place] = _Group(self._run, begin, min((place + 1) * self._size, self._run.total_steps) - 1)
            return self._open[place].context.copy()

    def finished(self, step: int) -> None:
        """A step has ended well, and all before it."""
        with self._lock:
            for place in [place for place, group in self._open.items() if group.last <= step]:
                self._open[place].end()
                self._ending = [*self._ending[-1:], self._open.pop(place)]
