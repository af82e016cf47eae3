"""The replay flow: a recorded step, computed again from its stored tables; a task for each stage.

Guarantee: it does what ``relax_core.replay.replay.Replay`` does, no more; nothing is generated and the run directory is
only read.
"""

from collections.abc import Callable
from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow, tags, task
from prefect.cache_policies import NO_CACHE

from flows.guard import guard_temporary_server
from relax_core.replay.replay import Replay
from relax_core.replay.report import Report
from relax_core.run.session import run_id


@flow(name="replay", flow_run_name="replay-{step:06d}", validate_parameters=False)
def replay_flow(replay: Replay, step: int) -> Report:
    """Every stage that is to be repeated, in the order of the step."""
    guard_temporary_server()
    return replay_stages(replay)


def replay_stages(replay: Replay) -> Report:
    """The body of a flow that replays: a task for each stage."""
    for stage, work in replay.work.items():
        _task(stage, work)()
    return replay.finish()


def _task(stage: str, work: Callable[[], None]) -> Any:
    def body() -> None:
        work()

    return task(name=stage, task_run_name=stage, cache_policy=NO_CACHE, persist_result=False)(body)


def replay(replayed: Replay) -> Report:
    """``replayed.run()`` as a flow of Prefect."""
    with replayed, tags(run_id(replayed.url)):
        return replay_flow(replayed, replayed.report.step)
