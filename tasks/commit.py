"""Commit: the step's manifest, written last, then what people look at.

Guarantee: a step with a manifest is finished and is never run again; everything that the next step needs to know is
in it.
"""

from typing import Any

from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from relax_core.tracking.jsonl import append_metrics
from relax_core.tracking.metrics import step_metrics
from tasks import artefacts
from tasks.stage import action


@action("commit")
def commit(
    run: RunSession, step: int, stages: dict[str, StageRecord], checkpoint: dict[str, Any] | None
) -> dict[str, Any]:
    """Write the manifest, the metrics and the artefacts of a step."""
    tables = {f"{name}/{table}": ref for name, record in stages.items() for table, ref in record.tables.items()}
    metrics = step_metrics(run.store.read_table(stages["generate"].table), run.store.read_table(stages["reward"].table))
    for name in ("train", "evaluate_before", "evaluate"):
        metrics.update(stages[name].values["metrics"] if name in stages else {})
    seconds = dict(run.seconds)  # in the order in which they ran; after them what an earlier process has done
    for name, record in stages.items():
        seconds.setdefault(name, record.seconds)
    manifest = {
        "step": step,
        "weights": {"version": step + 1, "id": stages["train"].key},
        "optimizer_step": stages["train"].values["optimizer_step"],
        "cursor": stages["generate"].values["cursor"],
        "tables": {name: reference.to_json() for name, reference in tables.items()},
        "stages": {name: record.key for name, record in stages.items()},
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "wall_seconds": round(run.step_seconds(), 3),
        "checkpoint": checkpoint,
        "metrics": metrics,
    }
    append_metrics(run.store, step, metrics)
    run.store.write_manifest(step, manifest)
    run.committed(step)
    run.progress.step_done(step, metrics, seconds, run.step_seconds())
    artefacts.step(run, step, manifest)
    return manifest
