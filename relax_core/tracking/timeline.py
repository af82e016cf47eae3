"""Timelines: when the stages of a step ran, for Chrome's tracing page or Perfetto.

Guarantee: with --timeline-dump-dir each step that ran in this process leaves one whole file
``timeline_step_<step>.json`` in the trace format of Chrome, with one event a stage; times are in microseconds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from data.files import FileStore
from relax_core.config.sections import RelaxConfig

ROLES = ("driver", "rollout", "actor", "critic")
"""The processes of a timeline; a role's place is its process id. A critic is there if it worked."""

ROLE_OF = {
    "generate": "rollout",
    "evaluate": "rollout",
    "evaluate_before": "rollout",
    "train_critic": "critic",
    "train": "actor",
    "weight_sync": "actor",
    "checkpoint": "actor",
}
"""Stage -> the role that works in it; the others are the driver's own."""


class Span(NamedTuple):
    """When a stage ran: ``began`` in seconds since 1970, ``seconds`` long."""

    stage: str
    began: float
    seconds: float


def write_timeline(config: RelaxConfig, step: int, spans: Sequence[Span]) -> None:
    """Write the timeline of a step, if that is asked for.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = config.tracking.timeline_dump_dir
    if folder:
        FileStore(folder).write_json(f"timeline_step_{step}.json", trace(step, spans))


def trace(step: int, spans: Sequence[Span]) -> dict[str, Any]:
    """The object of a trace file."""
    worked = {"critic"} & {ROLE_OF.get(span.stage) for span in spans}
    names = [
        {"name": "process_name", "ph": "M", "pid": place, "tid": 0, "args": {"name": role}}
        for place, role in enumerate(ROLES)
        if role != "critic" or worked
    ]
    events = [
        {
            "name": span.stage,
            "cat": "stage",
            "ph": "X",
            "ts": round(span.began * 1e6),
            "dur": round(span.seconds * 1e6),
            "pid": ROLES.index(ROLE_OF.get(span.stage, "driver")),
            "tid": 0,
            "args": {"step": step},
        }
        for span in spans
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}
