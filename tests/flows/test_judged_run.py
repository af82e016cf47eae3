"""A run whose reward asks a judge, on fakes: what is started, what is stored, what an edit repeats."""

from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend

from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.config.eval_set import EvalSet
from relax_core.config.options import with_options

pytestmark = pytest.mark.usefixtures("prefect_server")


def config(folder: Path, model: Path, prompts: Path, **options: Any) -> RelaxConfig:
    values = {
        "run_dir": str(folder / "run"),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": 1,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 12,
        "rollout_max_context_len": 64,
        "eval_interval": 1,
        "skip_eval_before_train": True,
        "eval_datasets": [EvalSet(name="sums", path=f"{prompts}@[0:3]", rm_type="judge")],
        "rm_type": "judge",
        "genrm_model_path": str(model),
    }
    return with_options(RelaxConfig(), {**values, **options})


def test_a_run_asks_its_judge_and_a_run_without_one_starts_none(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    from flows.train import train

    template = tmp_path / "mine.jinja"
    template.write_text("{% set scale = [0, 7] %}Grade {{ answer }}")
    judged = config(tmp_path, tiny_model, sums, genrm_template=str(template))
    backend = FakeBackend()
    train(judged, backend=backend)
    assert backend.judges >= 3  # at the start, for the reward, for the evaluation
    store = RunStore(str(tmp_path / "run"))
    rewards = store.read_table("steps/000000/reward.parquet")
    assert rewards["reward"].to_pylist() == [1.0] * 4
    assert rewards["judge_output"].to_pylist() == ["Fine. [[7]]"] * 4
    assert all(text.startswith("[user]\nGrade") for text in rewards["judge_prompt"].to_pylist())
    evaluated = store.read_table("steps/000000/eval/sums.parquet")
    assert evaluated["judge_output"].to_pylist() == ["Fine. [[7]]"] * 3
    none = FakeBackend()
    plain = {"rm_type": "exact_number", "genrm_model_path": None, "eval_datasets": None, "eval_interval": None}
    train(config(tmp_path / "plain", tiny_model, sums, **plain), backend=none)
    assert none.judges == 0
