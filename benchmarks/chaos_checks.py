"""The checks of a chaos run that has ended.

Guarantee: they read the run directory and the driver's notes alone.
"""

from collections import Counter
from typing import Any

from data.store import RunStore


def repeated(notes: list[dict[str, Any]]) -> list[int]:
    """Seeds of samples that an engine was asked for though the run had them finished: before the driver began, or
    answered to the same driver."""
    has: dict[int, set[int]] = {}
    wrong = []
    for note in notes:
        pid = note["pid"]
        if "has" in note:
            has[pid] = set(note["has"])  # a later driver may have the number of an earlier one
        elif note.get("whole") and "got" in note:
            has[pid].add(note["got"])
        elif "ask" in note and note["ask"] in has[pid]:
            wrong.append(note["ask"])
    return wrong


def wasted(notes: list[dict[str, Any]]) -> int:
    """Answers of engines beyond one a sample: those that were not yet kept when their driver died."""
    return sum(count - 1 for count in Counter(note["got"] for note in notes if note.get("whole")).values())


def mistakes(
    store: RunStore, steps: int, samples: int, updates: int, reference: RunStore | None, staleness: int = 0
) -> list[str]:
    """What is wrong with a run that has ended.

    Args:
        samples: rows that each step must have.
        updates: optimiser steps of a rollout step.
        reference: the same run, undisturbed, to which every table must be equal, or, where steps overlap, which has
            the same samples; None: only what holds for any run.
        staleness: by how many versions the weights that made a token may be behind; above 0, steps overlap.
    """
    wrong, seen = [], Counter[str]()
    for step in range(steps):
        manifest = store.read_manifest(step)
        if manifest is None:
            wrong.append(f"step {step} has no manifest")
            continue
        names = ("rollout", "reward", "batch")
        tables = {name: store.read_table(store.step_path(step, f"{name}.parquet")) for name in names}
        seen.update(tables["rollout"]["sample_id"].to_pylist())
        ids = {name: sorted(table["sample_id"].to_pylist()) for name, table in tables.items()}
        counts = {name: len(its) for name, its in ids.items()}
        if set(counts.values()) != {samples} or not ids["rollout"] == ids["reward"] == ids["batch"]:
            wrong.append(f"step {step} has other rows than {samples} in each table: {counts}")
        if manifest["optimizer_step"] != (step + 1) * updates:
            wrong.append(f"step {step}: {manifest['optimizer_step']} optimiser steps instead of {(step + 1) * updates}")
        if (store.read_json(store.step_path(step, "train.json")) or {}) == {}:
            wrong.append(f"step {step} has no train.json")
        versions = {version for row in tables["rollout"]["token_versions"].to_pylist() for version in row}
        if not versions <= set(range(max(0, step - staleness), step + 1)):
            wrong.append(f"step {step} has tokens of the versions {sorted(versions)}")
        if reference is not None:
            wrong += _other(store, reference, step, SAME if staleness else None)
    wrong += [f"{name} is there {count} times" for name, count in seen.items() if count > 1]
    lines = Counter(line.get("step") for line in store.read_jsonl("metrics.jsonl"))
    if sorted(lines.elements()) != list(range(steps)):
        wrong.append(f"metrics.jsonl has the steps {sorted(lines.elements())}")
    return wrong


SAME = ["sample_id", "prompt_id", "group_index", "index", "prompt", "seed", "label"]
"""Columns of a rollout that no weights decide."""


def _other(store: RunStore, reference: RunStore, step: int, columns: list[str] | None) -> list[str]:
    """Tables of a step that differ from the reference's; given columns, only these of the rollout."""
    wrong = []
    for name in ("rollout", "reward", "batch") if columns is None else ("rollout",):
        path = store.step_path(step, f"{name}.parquet")
        if columns is None:
            same = store.read_bytes(path) == reference.read_bytes(path)
        else:
            mine, its = (one.read_table(path).select(columns).sort_by("sample_id") for one in (store, reference))
            same = mine.equals(its)
        if not same:
            wrong.append(f"{path} differs from the undisturbed run's")
    return wrong
