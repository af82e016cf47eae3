"""The weights of version 0 where they are not those of --hf-checkpoint: the engines get them from the trainer."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend

from data.store import RunStore
from relax_core.config import RelaxConfig

pytestmark = pytest.mark.usefixtures("prefect_server")


def config(run_dir: Path, model: Path, prompts: Path, **checkpoint: Any) -> RelaxConfig:
    return RelaxConfig.model_validate(
        {
            "run": {"run_dir": str(run_dir)},
            "checkpoint": {"hf_checkpoint": str(model), **checkpoint},
            "data": {"prompt_data": str(prompts), "label_key": "label"},
            "rollout": {
                "num_rollout": 1,
                "rollout_batch_size": 3,
                "n_samples_per_prompt": 2,
                "rollout_max_response_len": 8,
            },
            "reward": {"rm_type": "random"},
            "eval": {"eval_prompt_data": ["sums", str(prompts)]},
        }
    )


@pytest.fixture
def other(tiny_model: Path, tmp_path: Path) -> Path:
    """Another model of the same shape."""
    folder = tmp_path / "other"
    shutil.copytree(tiny_model, folder)
    return folder


def test_evaluating_a_start_that_engines_do_not_have_takes_a_trainer(
    tmp_path: Path, tiny_model: Path, other: Path, sums: Path
) -> None:
    from flows.evaluate import evaluate

    plain = FakeBackend()
    assert evaluate(config(tmp_path / "a", tiny_model, sums), backend=plain)["version"] == 0
    assert (plain.ensured, plain.engine.events) == (0, ["abort_all"])
    started = FakeBackend()
    assert evaluate(config(tmp_path / "b", tiny_model, sums, ref_load=str(other)), backend=started)["version"] == 0
    assert started.ensured == 1
    assert "push 0" in started.engine.events


def test_a_run_generates_its_first_step_with_the_weights_that_it_starts_from(
    tmp_path: Path, tiny_model: Path, other: Path, sums: Path
) -> None:
    from flows.train import train

    (other / "model-2.safetensors").write_bytes(b"")  # the identity of weights is that of their files
    keys = {}
    for name, options in {"plain": {}, "reference": {"ref_load": str(other)}}.items():
        backend = FakeBackend()
        train(config(tmp_path / name, tiny_model, sums, **options), backend=backend)
        assert backend.engine.events[:2] == ["abort_all", "push 0"]
        manifest = RunStore(str(tmp_path / name)).read_manifest(0)
        assert manifest is not None
        keys[name] = manifest["stages"]["generate"]
    assert keys["reference"] != keys["plain"]
