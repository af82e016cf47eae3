"""What the manifest of a step says: all that a run needs to go on from it, and to tell whether its files are whole.

Guarantee: a pure function of the step's records, its tables and the manifest before it, and of the step's small files,
whose hashes it holds; a step that is committed twice gets the same content but for the seconds.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data.files import FileStore
from data.manifest import NAME
from data.schema import STATUSES
from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.run.records import StageRecord
from relax_core.training.checkpoint_index import MARKER
from relax_core.training.checkpoint_names import folder_name

FORMAT = 2
"""Version of a manifest's content; 1 had neither files, counters nor random state."""


def manifest_content(
    step: int,
    stages: Mapping[str, StageRecord],
    *,
    config: RelaxConfig,
    weights: Mapping[str, Any],
    cursor: Mapping[str, Any],
    counters: Mapping[str, int],
    files: Mapping[str, Mapping[str, Any]],
    metrics: Mapping[str, Any],
    seconds: Mapping[str, float],
    wall_seconds: float,
    checkpoint: Mapping[str, Any] | None,
    critic: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of ``steps/<step>/manifest.json``.

    Args:
        step: rollout step.
        stages: record of each of its stages, by name.
        weights: ``version`` and ``id`` of the weights that the step made.
        cursor: where the prompts of the next step begin.
        counters: see ``count``.
        files: see ``other_files``.
        metrics: name to value.
        seconds: wall time of each stage.
        wall_seconds: of the whole step in the process that committed it.
        checkpoint: see ``checkpoint_entry``; None where none is complete.
        critic: the same as ``weights``, ``optimizer_step`` and ``checkpoint``, of the critic.

    Returns:
        A JSON object but for table references: ``tables`` has every table of every stage with its hash, also the
        buffer of partial rollouts (``generate/buffer``).
    """
    update = stages.get("train")  # none with --debug-rollout-only
    tables = {f"{name}/{table}": ref for name, record in stages.items() for table, ref in record.tables.items()}
    content = {
        "format": FORMAT,
        "step": step,
        "weights": dict(weights),
        "optimizer_step": update.values["optimizer_step"] if update else 0,
        "cursor": dict(cursor),
        "counters": dict(counters),
        "rng": random_state(config, step),
        "tables": {name: reference.to_json() for name, reference in tables.items()},
        "files": {path: dict(entry) for path, entry in files.items()},
        "stages": {name: record.key for name, record in stages.items()},
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "wall_seconds": round(wall_seconds, 3),
        "checkpoint": None if checkpoint is None else dict(checkpoint),
        "metrics": dict(metrics),
    }
    if critic is not None:
        content["critic"] = dict(critic)
    return content


def random_state(config: RelaxConfig, step: int) -> dict[str, Any]:
    """What decides every random draw behind this step. No generator runs on from step to step outside the trainer,
    so there is no state to restore: ``derived`` says from what each is made anew."""
    return {
        "rollout_seed": config.data.rollout_seed,
        "seed": config.optimizer.seed,
        "next_step": step + 1,
        "derived": {
            "prompt_order": ["rollout_seed", "epoch"],
            "sampling": ["rollout_seed", "step", "prompt", "sample"],
            "trainer": ["seed", "checkpoint", "stored batches"],
        },
    }


def count(rollout: pa.Table, rewards: pa.Table, before: Mapping[str, Any] | None) -> dict[str, int]:
    """Samples, groups, tokens and states of samples since the run began, this step counted.

    Args:
        rollout: N rows of schema ``ROLLOUT``.
        rewards: the rows of schema ``REWARD`` of the same samples.
        before: manifest of the step before; None for the first, or where an earlier version wrote it: then what is
            counted begins here.
    """
    earlier = (before or {}).get("counters") or {}
    statuses = rollout["status"].to_pylist()
    step = {
        "steps": 1,
        "samples": rollout.num_rows,
        "groups": pc.count_distinct(rollout["group_id"]).as_py(),
        "prompt_tokens": pc.sum(rollout["prompt_length"]).as_py() or 0,
        "response_tokens": pc.sum(rollout["response_length"]).as_py() or 0,
        "scored": rewards.num_rows - rewards["reward"].null_count,
        **{status: statuses.count(status) for status in STATUSES},
    }
    return {name: int(earlier.get(name, 0)) + int(value) for name, value in step.items()}


def other_files(store: RunStore, step: int, stages: Mapping[str, StageRecord]) -> dict[str, dict[str, Any]]:
    """Size and hash of every file of a step that is no stage's table: records, updates, seconds of rewards.

    What lies in other folders of the step is left out: parts of unfinished stages go with the commit.
    """
    known = {reference.path for record in stages.values() for reference in record.tables.values()}
    known.add(store.step_path(step, NAME))
    folders = (store.step_path(step, "").rstrip("/"), store.step_path(step, "stages"))
    found = (path for path in store.sizes(folders[0]) if path.rpartition("/")[0] in folders)
    return {path: _entry(store, path) for path in sorted(found) if path not in known}


def checkpoint_entry(saved: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a manifest says of a complete checkpoint: ``saved`` with the hash of its marker, which has the size of each
    file.

    Args:
        saved: at least ``iteration`` and ``url``.
    """
    if saved is None:
        return None
    marker = _entry(FileStore(str(saved["url"])), f"{folder_name(int(saved['iteration']))}/{MARKER}")
    return {**saved, "marker_sha256": marker["sha256"]}


def _entry(store: FileStore, path: str) -> dict[str, Any]:
    content = store.read_bytes(path)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
