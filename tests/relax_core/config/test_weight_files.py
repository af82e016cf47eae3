import json
from pathlib import Path
from typing import Any

import pytest
from configs import model_folder

from relax_core.config.model_files import read_model_folder
from relax_core.config.weight_files import weight_problems
from relax_core.training.shape import ModelShape


@pytest.fixture
def shape(tmp_path: Path) -> ModelShape:
    """4 layers."""
    return read_model_folder(str(model_folder(tmp_path / "model")))


def checkpoint(folder: Path, shape: ModelShape | None = None, step: int = 3, **entries: Any) -> Path:
    """A folder with one checkpoint, as far as the configuration looks at it."""
    made = folder / f"iter_{step:07d}"
    made.mkdir(parents=True)
    recorded = {} if shape is None else {"shape": shape.to_json()}
    (made / "relax_state.json").write_text(json.dumps({"role": "actor", **recorded, **entries}))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def told(option: str, folder: object, shape: ModelShape | None, **more: Any) -> list[str]:
    return [str(problem) for problem in weight_problems(option, str(folder), shape, **more)]


def test_a_checkpoint_of_this_shape_is_right(tmp_path: Path, shape: ModelShape) -> None:
    folder = checkpoint(tmp_path / "c", shape)
    assert told("--load", folder, shape) == told("--load", folder / "iter_0000003", shape) == []


@pytest.mark.parametrize("option", ["--load", "--critic-load", "--ref-load", "--opd-teacher-load"])
def test_a_checkpoint_of_another_shape_is_told_with_both(tmp_path: Path, shape: ModelShape, option: str) -> None:
    other = read_model_folder(str(model_folder(tmp_path / "other", num_hidden_layers=2, hidden_size=32)))
    [text] = told(option, checkpoint(tmp_path / "c", other), shape)
    assert text.startswith(f"{option} {tmp_path}/c: has another shape than --hf-checkpoint: layers 2 instead of 4, ")
    assert "hidden 32 instead of 64." in text


def test_the_model_that_a_checkpoint_names_tells_its_shape_where_it_recorded_none(
    tmp_path: Path, shape: ModelShape
) -> None:
    other = model_folder(tmp_path / "other", num_hidden_layers=2)
    [text] = told("--load", checkpoint(tmp_path / "c", hf_checkpoint=str(other)), shape)
    assert "layers 2 instead of 4" in text
    assert told("--load", checkpoint(tmp_path / "d", hf_checkpoint="gone"), shape) == []


def test_training_goes_on_under_other_positions(tmp_path: Path, shape: ModelShape) -> None:
    longer = read_model_folder(str(model_folder(tmp_path / "longer", rope_theta=1e6, max_position_embeddings=4096)))
    folder = checkpoint(tmp_path / "c", longer)
    assert told("--load", folder, shape) == []
    assert "rope_theta" in told("--ref-load", folder, shape)[0]  # compared with, it would be another model


def test_a_critic_starts_from_an_actor_and_not_the_other_way_round(tmp_path: Path, shape: ModelShape) -> None:
    critic = ModelShape.from_json({**shape.to_json(), "values": True, "tie": False})
    assert told("--critic-load", checkpoint(tmp_path / "actor", shape), shape) == []
    saved = checkpoint(tmp_path / "critic", critic, role="critic")
    assert told("--critic-load", saved, shape) == []
    assert told("--load", saved, shape) == [
        f"--load {saved}: is a critic's checkpoint: it has no output layer. Give an actor's."
    ]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    [text] = told("--critic-load", tmp_path / "file", None)
    assert text.startswith(f"--critic-load {tmp_path}/file: is a file, not a folder.")


def test_a_shape_comes_back_from_json(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    folder = model_folder(tmp_path / "m", model_type="llama", rope_scaling=scaling)
    shape = read_model_folder(str(folder))
    assert shape.rope_scaling is not None
    assert ModelShape.from_json(json.loads(json.dumps(shape.to_json()))) == shape
