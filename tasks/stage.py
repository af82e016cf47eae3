"""What makes a function a stage: a Prefect task whose finished work is found again in the run directory.

Guarantee: a stage runs once for one identity. Its record is written after its artefacts; a second call with the same
identity, in this process or after a kill, returns the record (shown in Prefect as ``Cached``) without running the
function. Prefect's own result cache is not used: it would be a second truth beside the run directory, and it answers
with records whose files are gone.
"""

import time
from collections.abc import Callable
from typing import Any, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, State

from relax_core.config import Stage
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession

Work = Callable[..., StageRecord]
Identity = Callable[[RunSession, int], dict[str, Any]]


def stage(name: str, identity: Identity | None = None, options: Stage | None = None) -> Callable[[Work], Work]:
    """Make ``work(run, step, key, *inputs) -> StageRecord`` a stage ``(run, step, *inputs) -> StageRecord``.

    The inputs are records of earlier stages; the content of their tables is part of the identity.

    Args:
        name: name of the stage and of its task in Prefect.
        identity: what else decides the output (weights, prompts, the source of a user's function).
        options: the stage in ``relax_core.config.stages`` whose options decide the output; by default ``name``.
    """

    def decorate(work: Work) -> Work:
        def body(run: RunSession, step: int, inputs: tuple[StageRecord, ...]) -> StageRecord | State:
            content: dict[str, Any] = {n: r.sha256 for record in inputs for n, r in record.tables.items()}
            key = run.stage_key(
                options or cast(Stage, name), step, {**content, **(identity(run, step) if identity else {})}
            )
            known = run.records.find(step, name, key)
            if known is not None:
                run.progress.reused(step, name)
                return Completed(name="Cached", message="finished before; taken from the run directory", data=known)
            with run.progress.stage(step, name):
                started = time.perf_counter()
                record = work(run, step, key, *inputs)
                run.seconds[name] = time.perf_counter() - started
                record = StageRecord(name, key, record.tables, record.values, run.seconds[name])
            run.records.write(step, record)
            return record

        run_task = task(name=name, task_run_name=name, cache_policy=NO_CACHE, persist_result=False)(body)

        def call(run: RunSession, step: int, *inputs: StageRecord) -> StageRecord:
            return _value(run_task(run, step, inputs))

        call.__name__ = call.__qualname__ = name
        call.__doc__ = work.__doc__
        call.work = work  # type: ignore[attr-defined]  # the function itself, for tests without Prefect
        return call

    return decorate


def action(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make ``work(run, step, *inputs)`` a task that always runs: it looks at engines, and is idempotent."""

    def decorate(work: Callable[..., Any]) -> Callable[..., Any]:
        def body(run: RunSession, step: int, inputs: tuple[Any, ...]) -> Any:
            started = time.perf_counter()
            with run.progress.stage(step, name):
                result = work(run, step, *inputs)
            run.seconds[name] = time.perf_counter() - started
            return result

        run_task = task(name=name, task_run_name=name, cache_policy=NO_CACHE, persist_result=False)(body)

        def call(run: RunSession, step: int, *inputs: Any) -> Any:
            return _value(run_task(run, step, inputs))

        call.__name__ = call.__qualname__ = name
        call.__doc__ = work.__doc__
        call.work = work  # type: ignore[attr-defined]
        return call

    return decorate


def _value(outcome: Any) -> Any:
    return outcome.result() if isinstance(outcome, State) else outcome
