"""Runs with the stage forward, on fakes: what tests of them share."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from fakes import FakeBackend

from relax_core.config import RelaxConfig
from relax_core.config.options import with_options

REWARD_KL = {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.05, "normalize_advantages": True}


def config(run_dir: Path, model: Path, prompts: Path, **options: Any) -> RelaxConfig:
    values = {
        "run_dir": str(run_dir),
        "hf_checkpoint": str(model),
        "save_interval": 2,
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": 3,
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8,
        "rollout_max_context_len": 64,
        "rm_type": "random",
    }
    return with_options(RelaxConfig(), {**values, **options})


def train(settings: RelaxConfig, backend: FakeBackend) -> dict[str, Any]:
    from flows.train import train

    return train(settings, backend=backend)


def rows(folder: Path, step: int, name: str) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pq.read_table(folder / f"steps/{step:06d}/{name}.parquet").to_pylist()
    return table


def forwards(backend: FakeBackend) -> list[str]:
    return [event for event in backend.events if "forward" in event]
