"""Scores of one case, and of recorded rollouts, for whoever develops a reward.

Guarantee: they are the scores that a run with the same options would give (``score.score_table``); nothing of a
recorded run is written.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data.errors import UserError
from data.ragged import Ragged
from data.schema import ROLLOUT
from data.store import RunStore
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.pools import Pools
from relax_core.rewards.score import score_timed
from relax_core.tracking.metrics import aligned

READ = (
    *("sample_id", "group_id", "index", "group_index", "prompt", "tokens", "response", "response_length"),
    *("label", "metadata", "status"),
)
"""Columns of a rollout that a reward may see."""

ONE = "1"
"""The id of a single case."""


def one_case(
    config: RelaxConfig,
    *,
    response: str,
    prompt: str = "",
    label: Any = None,
    metadata: dict[str, Any] | None = None,
    response_length: int = 0,
    truncated: bool = False,
) -> dict[str, Any]:
    """The reward row of one sample: ``reward``, ``outcome``, ``components`` (an object), ``seconds`` and so on.

    Raises:
        UserError: as ``score_table``.
    """
    row: dict[str, list[Any]] = {
        "sample_id": [ONE],
        "group_id": ["group"],
        "index": [0],
        "group_index": [0],
        "prompt": [prompt],
        "response": [response],
        "response_length": [response_length],
        "label": [None if label is None else json.dumps(label)],
        "metadata": [json.dumps(metadata or {})],
        "status": ["truncated" if truncated else "completed"],
    }
    columns: dict[str, Any] = {name: pa.array(values, ROLLOUT.field(name).type) for name, values in row.items()}
    columns["tokens"] = Ragged.from_list([[]], np.int32).to_arrow()
    table, seconds = score_timed(pa.table(columns), config)
    [scored] = table.to_pylist()
    components = json.loads(scored["components"] or "{}")
    return {**scored, "seconds": seconds["seconds"][0].as_py(), "components": components}


def token_count(folder: str, text: str) -> int | None:
    """Tokens of a text by the tokenizer of a model folder; None where that has no tokenizer.json.

    Raises:
        UserError: there is no such folder.
    """
    if not Path(folder).is_dir():
        raise UserError(
            f"--hf-checkpoint {folder}: there is no such folder.", "Name a model's folder, or leave it out."
        )
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer  # here: without a model nothing is counted

    return len(Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True)
class Rescored:
    """New scores of a recorded rollout, beside the old ones.

    Attributes:
        table: N rows with ``sample_id``, ``group_id``, ``old_reward``, ``reward``, ``changed``, the other columns of
            the new rewards, ``seconds``, and ``prompt``, ``response``, ``label``.
        step: of the rollout.
    """

    table: pa.Table
    step: int

    def summary(self) -> dict[str, Any]:
        """Counts and means: ``samples``, ``changed``, of them ``up``, ``down``, ``gained`` and ``lost`` a score,
        ``nan`` scores, ``failed`` calls, ``old_mean`` and ``new_mean`` over scored samples (None without one),
        ``scored_by``."""
        old, new = _scores(self.table["old_reward"]), _scores(self.table["reward"])
        had, has = ~np.isnan(old), ~np.isnan(new)
        ended = list(zip(self.table["outcome"].to_pylist(), self.table["decision"].to_pylist(), strict=True))
        by = Counter(zip(self.table["rm_type"].to_pylist(), self.table["decision"].to_pylist(), strict=True))
        return {
            "step": self.step,
            "samples": self.table.num_rows,
            "changed": int(np.sum(self.table["changed"].to_pylist())),
            "up": int(np.sum(new > old)),
            "down": int(np.sum(new < old)),
            "gained": int(np.sum(has & ~had)),
            "lost": int(np.sum(had & ~has)),
            "nan": sum(outcome == "nan" for outcome, _ in ended),
            "failed": sum(outcome == "failed" and how is not None for outcome, how in ended),
            "old_mean": float(old[had].mean()) if had.any() else None,
            "new_mean": float(new[has].mean()) if has.any() else None,
            "scored_by": {
                f"{name} ({decision})" if decision else name: count for (name, decision), count in by.items()
            },
        }

    def changes(self) -> list[dict[str, Any]]:
        """``sample_id``, ``old``, ``new`` and ``error`` of each sample whose score has changed."""
        rows = self.table.select(["sample_id", "old_reward", "reward", "error", "changed"]).to_pylist()
        return [
            {"sample_id": row["sample_id"], "old": row["old_reward"], "new": row["reward"], "error": row["error"]}
            for row in rows
            if row["changed"]
        ]


def rescored(run: str, step: int | None, config: RelaxConfig) -> Rescored:
    """Score a step's ``rollout.parquet`` again.

    Args:
        run: run directory, which may be an fsspec URL.
        step: rollout step; None: the last finished one.
        config: options of the reward.

    Raises:
        UserError: there is no such rollout, or as ``score_table``.
    """
    store = RunStore(run)
    if not store.exists("steps"):
        raise UserError(
            f"There is no run in {store.url}: it has no folder steps.",
            "Name the folder, or the URL, that --run-dir named when it was trained.",
        )
    if step is None:
        step = store.last_complete_step()
        if step is None:
            raise UserError(f"{store.url} has no finished step.", "Name a run directory, or a step with --step.")
    path = store.step_path(step, "rollout.parquet")
    if not store.exists(path):
        raise UserError(f"{store.url} has no rollout of step {step}.", "Check --run and --step.")
    rollout = store.read_table(path, READ)
    with Pools(config) as pools:
        new, seconds = score_timed(rollout, config, pools)
    old_path = store.step_path(step, "reward.parquet")
    old = pa.nulls(rollout.num_rows, pa.float32())
    if store.exists(old_path):
        old = aligned(store.read_table(old_path, ["sample_id", "reward"]), rollout)["reward"]
    pairs = zip(old.to_pylist(), new["reward"].to_pylist(), strict=True)
    columns = {
        "sample_id": new["sample_id"],
        "group_id": new["group_id"],
        "old_reward": old,
        "reward": new["reward"],
        "changed": pa.array([not _same(before, after) for before, after in pairs], pa.bool_()),
        **{name: new[name] for name in new.column_names if name not in ("sample_id", "group_id", "reward")},
        "seconds": seconds["seconds"],
        **{name: rollout[name] for name in ("prompt", "response", "label")},
    }
    return Rescored(pa.table(columns), step)


def _same(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is after
    return before == after or (math.isnan(before) and math.isnan(after))


def _scores(column: pa.ChunkedArray) -> Any:
    """[N] float64; NaN where there is none."""
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
