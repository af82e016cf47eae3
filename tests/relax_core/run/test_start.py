"""The first weights of a run: found once, with an identity of their own."""

from pathlib import Path
from typing import Any

import pytest
from configs import model_folder

from data.errors import UserError
from data.files import FileStore
from data.store import RunStore
from relax_core.config import RelaxConfig, resolve, with_options
from relax_core.run.start import pin_load, start_id


def checkpoint(folder: Path, iteration: int) -> None:
    """What makes an iteration of a folder of checkpoints a complete one."""
    marker = {"iteration": iteration, "weights_id": f"w{iteration}", "files": {}}
    FileStore(str(folder)).write_json(f"iter_{iteration:07d}/relax_state.json", marker)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(model_folder(tmp_path / "model"))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(str(tmp_path / "run"))


@pytest.fixture
def checkpoints(tmp_path: Path) -> str:
    for iteration in (1, 3):
        checkpoint(tmp_path / "checkpoints", iteration)
    return str(tmp_path / "checkpoints")


def config(model: str, **options: Any) -> RelaxConfig:
    return resolve(with_options(RelaxConfig(), {"hf_checkpoint": model, **options}))


def test_the_actor_starts_from_the_reference_unless_load_says_otherwise(model: str) -> None:
    assert config(model).checkpoint.load is None
    assert config(model, ref_load="ref").checkpoint.load == "ref"
    assert config(model, ref_load="ref/", ref_ckpt_step=12).checkpoint.load == "ref/iter_0000012"
    assert config(model, ref_load="ref", load="actor").checkpoint.load == "actor"
    assert config(model, ref_load="ref").checkpoint.critic_load == "ref"


def test_a_run_keeps_the_checkpoints_that_it_began_with(
    model: str, checkpoints: str, store: RunStore, tmp_path: Path
) -> None:
    given = config(model, load=checkpoints, ref_load=checkpoints, ref_ckpt_step=1, use_kl_loss=True)
    first = pin_load(given, store)
    assert first.checkpoint.load == f"{checkpoints}/iter_0000003"
    assert first.checkpoint.ref_load == f"{checkpoints}/iter_0000001"
    checkpoint(tmp_path / "checkpoints", 7)
    assert pin_load(given, store) == first
    assert pin_load(first, store) == first
    other = pin_load(given, RunStore(str(tmp_path / "other")))
    assert other.checkpoint.load == f"{checkpoints}/iter_0000007"


def test_a_look_at_a_run_writes_nothing_down(model: str, checkpoints: str, store: RunStore) -> None:
    pinned = pin_load(config(model, ref_load=checkpoints), store, keep=False)
    assert pinned.checkpoint.load == f"{checkpoints}/iter_0000003"
    assert not store.exists("start.json")


def test_a_reference_that_nothing_compares_with_is_not_looked_for(model: str, store: RunStore) -> None:
    given = config(model, load=model, ref_load="nowhere")
    assert pin_load(given, store) == given


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"load": "{}/empty"}, "--load .*empty holds neither a model"),
        ({"ref_load": "{}/empty", "use_kl_loss": True, "load": "{}/model"}, "--ref-load .*empty holds neither"),
        ({"load": "{}/checkpoints/iter_0000002"}, "no complete checkpoint of step 2.*missing"),
        ({"ref_load": "{}/checkpoints", "ref_ckpt_step": 5}, "no complete checkpoint of step 5"),
    ],
)
def test_a_place_without_weights_is_an_error_at_once(
    options: dict[str, Any], text: str, model: str, checkpoints: str, store: RunStore, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    filled = {name: value.format(tmp_path) if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(UserError, match=text):
        pin_load(config(model, **filled), store)


def test_other_first_weights_have_another_identity(model: str, checkpoints: str, tmp_path: Path) -> None:
    other = model_folder(tmp_path / "other")
    (other / "model.safetensors").write_bytes(b"1")
    places = (None, str(other), f"{checkpoints}/iter_0000001", f"{checkpoints}/iter_0000003")
    found = [start_id(config(model, ref_load=place)) for place in places]
    assert len(set(found)) == len(places)
    assert start_id(config(model, load=model)) == found[0]
