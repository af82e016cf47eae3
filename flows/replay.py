"""The replay flow: a recorded step, computed again from its stored tables; a task for each stage.

Guarantee: it does what ``relax_core.replay.replay.Replay`` does, no more; nothing is generated and the run directory is
only read.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow, tags, task
from prefect.cache_policies import NO_CACHE

from flows.guard import guard_temporary_server
from relax_core.replay.columns import Tolerance
from relax_core.replay.local_trainer import LocalTrainer
from relax_core.replay.models import MakeTrainer
from relax_core.replay.replay import Replay
from relax_core.replay.report import Report
from relax_core.replay.span import Stage
from relax_core.run.session import run_id


@flow(name="replay", flow_run_name="replay-{step:06d}", validate_parameters=False)
def replay_flow(replay: Replay, step: int) -> Report:
    """Every stage that is to be repeated, in the order of the step."""
    guard_temporary_server()
    for stage, work in replay.work.items():
        _task(stage, work)()
    return replay.finish()


def _task(stage: str, work: Callable[[], None]) -> Any:
    def body() -> None:
        work()

    return task(name=stage, task_run_name=stage, cache_policy=NO_CACHE, persist_result=False)(body)


def replay(
    run: str,
    step: int,
    *,
    first: Stage = "reward",
    last: Stage | None = None,
    changes: Sequence[str] = (),
    tolerance: Tolerance | None = None,
    out: str | None = None,
    model: str | None = None,
    make_trainer: MakeTrainer = LocalTrainer,
) -> Report:
    """Repeat a recorded step as a flow of Prefect; arguments and errors as of ``Replay``."""
    replayed = Replay(
        run,
        step,
        first=first,
        last=last,
        changes=changes,
        tolerance=tolerance,
        out=out,
        model=model,
        make_trainer=make_trainer,
    )
    with replayed, tags(run_id(run)):
        return replay_flow(replayed, step)
