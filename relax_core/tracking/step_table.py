"""A step as tables for people: its metrics beside those of the step before, and its files.

Guarantee: every metric and every stage's seconds are there once, in groups that are always in the same order; a number
keeps at most four digits; nothing here fails on a metric that nobody knows.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from relax_core.tracking.links import place

GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    (
        "reward",
        (
            *("reward/", "raw_reward", "reward_component/", "reward_outcome/", "reward_router/"),
            *("pass@", "zero_std/", "error_cat/", "samples/scored"),
        ),
    ),
    ("evaluation", ("eval/",)),
    (
        "rollout",
        (
            *("response_len", "prompt_len", "tokens/", "truncated_ratio", "aborted_ratio", "failed_ratio", "samples/"),
            *("repetition_frac", "prefix_cache_hit_rate", "num_turn/", "turn_len/", "staleness/", "partial/"),
        ),
    ),
    ("critic", ("critic/",)),
    ("speed", ("perf/",)),
)
"""Group -> beginnings of its metrics' names; what fits none was learned from: ``learning``."""

ORDER = ("reward", "learning", "critic", "rollout", "evaluation", "speed", "seconds")

FIRST = ("reward/mean", "loss", "grad_norm", "lr", "response_len/mean", "truncated_ratio")
"""What a group begins with, as far as it has it."""


def metric_rows(manifest: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Rows with ``group``, ``metric``, ``value``, ``before`` and ``change``.

    Args:
        manifest: of the step.
        before: of the step before it; None: there is none.
    """
    known = before or {}
    named = {name: (value, known.get("metrics", {}).get(name)) for name, value in manifest["metrics"].items()}
    rows = [(group_of(name), name, *values) for name, values in sorted(named.items())]
    seconds = {**manifest["seconds"], "whole step": manifest.get("wall_seconds")}
    earlier = {**known.get("seconds", {}), "whole step": known.get("wall_seconds")}
    rows += [("seconds", name, value, earlier.get(name)) for name, value in seconds.items() if value is not None]
    first = {name: place for place, name in enumerate(FIRST)}
    # stable: names stay sorted, and stages in order of time
    rows.sort(key=lambda row: (ORDER.index(row[0]), first.get(row[1], len(FIRST))))
    return [
        {"group": group, "metric": name, "value": short(value), "before": short(old), "change": change(value, old)}
        for group, name, value, old in rows
    ]


def group_of(name: str) -> str:
    """Group of a metric."""
    return next((group for group, begins in GROUPS if name.startswith(tuple(begins))), "learning")


def short(value: Any) -> str:
    """A value in at most four digits; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else f"{value:.4g}"
    return str(value)


def change(value: Any, before: Any) -> str:
    """How a number differs from the one before, with its sign; nothing where there is no number or no difference."""
    if not all(isinstance(number, int | float) for number in (value, before)) or value == before:
        return ""
    return f"{value - before:+.3g}"


def step_text(url: str, step: int, manifest: Mapping[str, Any], server: str | None = None) -> str:
    """Markdown: which step it is, its files with their rows, and how its rollouts are looked at.

    Args:
        url: of the run.
        server: see ``relax_core.tracking.links.place``.
    """
    folder = f"{url.rstrip('/')}/steps/{step:06d}"
    paths = {str(table["path"]).rpartition(f"/{step:06d}/")[2]: table["rows"] for table in manifest["tables"].values()}
    files = [f"{place(folder, name, url, server)} ({rows} rows)" for name, rows in paths.items()]
    lines = [f"Step {step} of {place('', url)}", "", f"Files in {place('', folder)}: {', '.join(files)}", ""]
    return "\n".join([*lines, f"Rollouts, token by token: `relax show {shlex.quote(url)} --step {step}`"])
