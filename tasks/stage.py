"""What makes a function a stage: a Prefect task whose finished work is found again in the run directory.

Guarantee: a stage runs once for one identity. Its record is written after its artefacts; a second call with the same
identity, in this process or after a kill, returns the record (shown in Prefect as ``Cached``) without running the
function. What dies under it, a trainer or an engine, is started anew, and it is done again. Prefect's own result cache
is not used: it would be a second truth beside the run directory, and it answers with records whose files are gone.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TagsContext
from prefect.states import Completed, State

from data.errors import Lost
from relax_core.config import Stage as StageOptions
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks import stage_log

T = TypeVar("T")
UNTAGGED = partial(TagsContext, current_tags=set())
"""Round a task: for each tag of it Prefect asks its server whether a limit of that name is reached, and while the
server writes that takes two seconds. Flow runs have the tags by which they are found."""

TRIES = 3
"""How often a stage is tried while what it needs dies."""

Work = Callable[..., StageRecord]
Identity = Callable[[RunSession, int], dict[str, Any]]


class Stage:
    """A stage: call it with the run, the step and the records of earlier stages, whose tables are its inputs."""

    def __init__(self, name: str, work: Work, identity: Identity | None, options: str | None) -> None:
        self.name, self.work, self.__doc__ = name, work, work.__doc__
        self._identity, self._options = identity, cast(StageOptions, options or name)

        def body(run: RunSession, step: int, inputs: tuple[StageRecord, ...]) -> StageRecord | State:
            return self._find_or_do(run, step, inputs)

        self._task = task(name=name, task_run_name=name, cache_policy=NO_CACHE, persist_result=False)(body)

    def __call__(self, run: RunSession, step: int, *inputs: StageRecord) -> StageRecord:
        with UNTAGGED():
            outcome = self._task(run, step, inputs)
        record: StageRecord = _value(outcome)
        return record

    def known(self, run: RunSession, step: int, *inputs: StageRecord) -> StageRecord | None:
        """The record of this very stage if it is finished."""
        return run.records.find(step, self.name, self._key(run, step, inputs))

    def _key(self, run: RunSession, step: int, inputs: tuple[StageRecord, ...]) -> str:
        content: dict[str, Any] = {name: ref.sha256 for record in inputs for name, ref in record.inputs.items()}
        if self._identity is not None:
            content |= self._identity(run, step)
        return run.stage_key(self._options, step, content)

    def _find_or_do(self, run: RunSession, step: int, inputs: tuple[StageRecord, ...]) -> StageRecord | State:
        run.check_driver()
        key = self._key(run, step, inputs)
        known = run.records.find(step, self.name, key)
        if known is not None:
            run.progress.reused(step, self.name)
            run.events.add("stage_reused", step, self.name)
            return Completed(name="Cached", message="finished before; taken from the run directory", data=known)
        started = time.perf_counter()
        run.events.add("stage_started", step, self.name)
        deaths: list[str] = []
        with run.progress.stage(step, self.name), failing(run, step, self.name):
            record = mended(run, step, self.name, partial(self.work, run, step, key, *inputs), deaths)
        seconds = run.clock(step).ran(self.name, started)
        record = StageRecord(self.name, key, record.tables, record.values, seconds)
        run.check_driver()
        run.records.write(step, record)
        run.events.add("stage_finished", step, self.name, seconds=round(seconds, 3))
        stage_log.finished(run, self.name, record, seconds)
        return _done_again(deaths, record) if deaths else record


def _value(outcome: Any) -> Any:
    """What a task returned; Prefect calls a state that carries None one without a result."""
    if not isinstance(outcome, State):
        return outcome
    return None if outcome.data is None else outcome.result()


def _done_again(deaths: list[str], outcome: Any) -> State:
    """What Prefect shows of a stage under which something has died."""
    return Completed(name="Retried", message=f"done again {len(deaths)}x: {deaths[-1]}", data=outcome)


def mended(run: RunSession, step: int, name: str, work: Callable[[], T], deaths: list[str] | None = None) -> T:
    """What ``work`` returns; where something dies under it, that is started anew and the work is done again.

    Args:
        deaths: gets the reason of each time.

    Raises:
        Lost: the third time, or nothing can be started; the reason is the last one's. What dies while it comes up for
            the first time in this process may never come up, and is told at once.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return work()
        except Lost as error:
            if attempt == TRIES or not run.engines_known:
                raise
            run.check_driver()  # what a newer driver has ended is not to be started again
            run.progress.note(f"step {step + 1}: {name} is done again: {error.problem}")
            run.events.add("retry", step, name, error.problem, attempt=attempt + 1, of=TRIES)
            if deaths is not None:
                deaths.append(error.problem)
            run.ensure()
    raise AssertionError("unreachable")


@contextmanager
def failing(run: RunSession, step: int, name: str) -> Iterator[None]:
    """Tell the run's timeline of an error that ends the body."""
    try:
        yield
    except BaseException as error:
        run.events.add("stage_failed", step, name, cause=f"{type(error).__name__}: {error}")
        stage_log.failed(name)
        raise


def stage(name: str, identity: Identity | None = None, options: str | None = None) -> Callable[[Work], Stage]:
    """Make ``work(run, step, key, *inputs) -> StageRecord`` a ``Stage``.

    The content of the inputs' tables is part of the identity.

    Args:
        name: name of the stage and of its task in Prefect.
        identity: what else decides the output (weights, prompts, the source of a user's function).
        options: the stage in ``relax_core.config.stages`` whose options decide the output; by default ``name``.
    """
    return lambda work: Stage(name, work, identity, options)


def action(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make ``work(run, step, *inputs)`` a task that always runs: it looks at engines, and is idempotent."""

    def decorate(work: Callable[..., Any]) -> Callable[..., Any]:
        def body(run: RunSession, step: int, inputs: tuple[Any, ...]) -> Any:
            run.check_driver()
            started = time.perf_counter()
            deaths: list[str] = []
            with run.progress.stage(step, name), failing(run, step, name):
                result = mended(run, step, name, partial(work, run, step, *inputs), deaths)
            stage_log.finished(run, name, result, run.clock(step).ran(name, started))
            return _done_again(deaths, result) if deaths else result

        run_task = task(name=name, task_run_name=name, cache_policy=NO_CACHE, persist_result=False)(body)

        def call(run: RunSession, step: int, *inputs: Any) -> Any:
            with UNTAGGED():
                outcome = run_task(run, step, inputs)
            return _value(outcome)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = work.__doc__
        return call

    return decorate
