"""Metrics of a run as lines of JSON: ``<run>/metrics.jsonl``.

Guarantee: every line is standard JSON (NaN and infinity are null) that pandas and DuckDB read as a table; a step that
was committed twice, because a kill came between its metrics and its manifest, counts once when read here.
"""

import time
from collections.abc import Mapping
from typing import Any

from data.jsontext import dumps
from data.store import RunStore

FILE = "metrics.jsonl"


def append_metrics(store: RunStore, step: int, metrics: Mapping[str, float], now: float | None = None) -> None:
    """Add the line of a step.

    Args:
        store: of the run.
        step: rollout step; -1 before training.
        metrics: name to value.
        now: seconds since 1970; the clock's when None.
    """
    store.append_jsonl(FILE, {"step": step, "time": round(time.time() if now is None else now, 3), **metrics})


def trim_metrics(store: RunStore, first_step: int) -> None:
    """Drop the lines of steps that will be made again, from ``first_step`` on, doubled ones, and what is no JSON: a
    kill may have torn a line."""
    if not store.exists(FILE):
        return
    kept = "".join(dumps(line) + "\n" for line in read_metrics(store) if line["step"] < first_step).encode()
    if kept != store.read_bytes(FILE):
        store.write_bytes(FILE, kept)


def read_metrics(store: RunStore) -> list[dict[str, Any]]:
    """The newest line of each step, by step; empty for a run without metrics. What is no step's line is left out."""
    found = (line for line in store.read_jsonl(FILE) if isinstance(line, dict))
    lines = {line["step"]: line for line in found if type(line.get("step")) is int}
    return [lines[step] for step in sorted(lines)]
