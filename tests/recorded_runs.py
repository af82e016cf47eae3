"""Runs that were recorded with fakes, one for every advantage estimator: what tests of replays look at."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from fakes import FakeBackend, FakeTrainer
from passes import config, train

from data.ragged import Ragged
from data.store import RunStore
from relax_core.algorithms.registry import estimator_names

OPTIONS: dict[str, dict[str, Any]] = {
    "rloo": {"calculate_per_token_loss": True, "global_batch_size": 6},
    "ppo": {
        "lambd": 0.9,
        "gamma": 0.95,
        "resource": {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 1), "advantages": (1, 0)},
    },
    "reinforce_plus_plus": {"kl_coef": 0.05, "kl_loss_type": "k1", "normalize_advantages": True},
    "reinforce_plus_plus_baseline": {
        "normalize_advantages": True,
        "use_kl_loss": True,
        "kl_loss_type": "k2",
        "kl_loss_coef": 0.01,
    },
}
"""What an estimator needs beside its name."""

ESTIMATORS = estimator_names()
STEPS = 3


def record(folder: Path, model: Path, prompts: Path, estimator: str = "grpo", **options: Any) -> Path:
    """A run of three steps with checkpoints of steps 1 and 2; returns its folder."""
    values = {"advantage_estimator": estimator, **OPTIONS.get(estimator, {}), **options}
    train(config(folder, model, prompts, **values), FakeBackend())
    return folder


def fake_trainer(config: Any, role: str) -> FakeTrainer:
    """In place of a ``LocalTrainer``."""
    return FakeTrainer(None, "trainer" if role == "actor" else role)  # type: ignore[arg-type]


def copied(run: Path, to: Path) -> Path:
    """The same run elsewhere."""
    shutil.copytree(run, to)
    return to


def files(folder: Path) -> dict[str, bytes]:
    """All that is in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read(run: Path, step: int, name: str) -> pa.Table:
    store = RunStore(str(run))
    return store.read_table(store.step_path(step, f"{name}.parquet"))


def write(run: Path, step: int, name: str, table: pa.Table) -> None:
    store = RunStore(str(run))
    store.write_table(store.step_path(step, f"{name}.parquet"), table)


def with_value(table: pa.Table, column: str, row: int, token: int | None, value: Any) -> pa.Table:
    """A table with one value changed."""
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    if token is None:
        values = table[column].to_pylist()
        values[row] = value
        return table.set_column(place, field, pa.array(values, field.type))
    ragged = Ragged.from_arrow(table[column]).copy()
    ragged[row][token] = value
    return table.set_column(place, field, ragged.to_arrow())
