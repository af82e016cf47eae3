"""What a run says in Prefect's logs: in the flow run's what the terminal is told, in a task run's what its stage came
to, and the lines of engines and trainers that matter.

Guarantee: nothing waits for it: lines are made and sent beside the run; a server that takes none, or a log that cannot
be read, changes nothing. A stage adds at most a line of facts and ``actor_logs.MOST`` lines of actors.
"""

import contextlib
import contextvars
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

from data.errors import UserError
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from relax_core.tracking.actor_logs import ActorLogs, log_folder
from relax_core.tracking.step_table import short

SHOWN_LEARNING = ("loss", "grad_norm", "lr", "reward_kl", "kl", "entropy", "value_loss", "critic/value_loss")
"""Metrics of an update that its line has, as far as there are."""

_MOST_WAITING = 200

END_SECONDS = 3.0
"""How long the end of a run waits for lines that are being made."""

_beside = ThreadPoolExecutor(1, thread_name_prefix="stage-log")
_log = logging.getLogger("relax")  # to the server alone: the terminal has lines of its own
_log.propagate = False
_log.setLevel(logging.INFO)


@dataclass
class _Told:
    """The run that is told of."""

    flow_run: Any
    logs: ActorLogs
    waiting: int = 0


_told: list[_Told] = []


def begin(run: RunSession) -> None:
    """From now on lines belong to this run, in whose flow this is called."""
    if not _log.handlers:
        _log.addHandler(APILogHandler())
        for name in ("prefect.flow_runs", "prefect.task_runs"):
            logging.getLogger(name).addFilter(_said_plainly)
    _told[:] = [_Told(_flow_run(), ActorLogs(log_folder(run.store.url, run.id)))]


def _said_plainly(record: logging.LogRecord) -> bool:
    """A mistake that a person can mend is told in its own words; where in the code it was found helps nobody."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, UserError):
        record.msg, record.args, record.exc_info, record.exc_text = str(error), (), None, None
    return True


def end() -> None:
    """No further line is told; those before are sent."""
    _told.clear()
    with contextlib.suppress(TimeoutError):
        _beside.submit(bool).result(timeout=END_SECONDS)


def tell(text: str, level: int = logging.INFO) -> None:
    """A line in the run's log, and in that of the task that this is called in."""
    if not _told:
        return
    run, task, step = _told[0].flow_run, TaskRunContext.get(), _flow_run()
    if run is not None:
        _log.log(level, text, extra={"flow_run_id": run})
    if task is not None:
        _log.log(level, text, extra=_address(task))
    elif step is not None and step != run:
        _log.log(level, text, extra={"flow_run_id": step})


def finished(run: RunSession, name: str, outcome: Any, seconds: float) -> None:
    """A stage has ended well: tell what it came to, and what its actors have said meanwhile."""
    _submit(lambda: facts(run, name, outcome, seconds), name)


def failed(name: str) -> None:
    """A stage has ended with an error, which Prefect tells: add what its actors have said."""
    _submit(lambda: "", name)


def _submit(text: Callable[[], str], name: str) -> None:
    task = TaskRunContext.get()
    if not _told or task is None or _told[0].waiting >= _MOST_WAITING:
        return
    told = _told[0]
    told.waiting += 1
    _beside.submit(partial(contextvars.copy_context().run, _write, told, text, name, _address(task)))


def _write(told: _Told, text: Callable[[], str], name: str, address: Mapping[str, Any]) -> None:
    try:
        if line := text():
            _log.info(line, extra=dict(address))
        for found in told.logs.after(name):
            _log.log(logging.ERROR if found.error else logging.WARNING, str(found), extra=dict(address))
    except Exception as error:  # a line is never worth a run
        logging.getLogger(__name__).debug("nothing is told of %s: %s", name, error)
    finally:
        told.waiting -= 1


def facts(run: RunSession, name: str, outcome: Any, seconds: float) -> str:
    """A line about what a stage came to; empty where its name and its time say all."""
    if isinstance(outcome, StageRecord):
        tables = {
            table: run.store.read_table(reference)
            for table, reference in outcome.tables.items()
            if name in ("generate", "reward") and table in ("rollout", "reward")
        }
        return stage_facts(name, tables, outcome.values.get("metrics", {}), seconds)
    if name == "weight_sync" and outcome:
        return f"{len(run.engines.urls)} engines have the new weights, {outcome.get('seconds', seconds):.2f} s"
    return ""


def stage_facts(name: str, tables: Mapping[str, pa.Table], metrics: Mapping[str, Any], seconds: float) -> str:
    """As ``facts``, from what the stage has written.

    Args:
        tables: ``rollout`` of generate, ``reward`` of reward.
        metrics: of a stage that has its own.
        seconds: that it took.
    """
    if name == "generate":
        return _generated(tables["rollout"], seconds)
    if name == "reward":
        return _scored(tables["reward"])
    if name.startswith("train"):
        parts = [f"{key} {short(metrics[key])}" for key in SHOWN_LEARNING if key in metrics]
        if seconds and metrics.get("tokens"):
            parts.append(f"{metrics['tokens'] / seconds:.0f} tokens/s")
        return ", ".join(parts)
    return ", ".join(f"{key} {short(value)}" for key, value in list(metrics.items())[:8])


def _generated(rollout: pa.Table, seconds: float) -> str:
    status = rollout["status"].to_pylist()
    tokens = sum(rollout["response_length"].to_pylist())
    parts = [f"{len(status)} samples", f"{tokens} response tokens"]
    parts += [f"{tokens / seconds:.0f} tokens/s"] if seconds else []
    parts += [f"{count} {kind}" for kind in ("truncated", "aborted", "failed") if (count := status.count(kind))]
    return ", ".join(parts)


def _scored(reward: pa.Table) -> str:
    scores = [score for score in reward["reward"].to_pylist() if score is not None and score == score]
    parts = [f"{len(scores)} of {reward.num_rows} samples scored"]
    if scores:
        parts.append(f"mean {short(sum(scores) / len(scores))}, {short(min(scores))} to {short(max(scores))}")
    errors = [error for error in reward["error"].to_pylist() if error] if "error" in reward.column_names else []
    if errors:
        parts.append(f"{len(errors)} failed, the first: {errors[0][:200]}")
    return ", ".join(parts)


def _address(task: TaskRunContext) -> dict[str, Any]:
    return {"flow_run_id": task.task_run.flow_run_id, "task_run_id": task.task_run.id}


def _flow_run() -> Any:
    context = FlowRunContext.get()
    return context.flow_run.id if context and context.flow_run else None
