"""The first weights of a run: found once, with an identity of their own."""

from pathlib import Path
from typing import Any

import pytest
from configs import model_folder

from data.errors import UserError
from data.files import FileStore
from data.store import RunStore
from relax_core.config import RelaxConfig, resolve, with_options
from relax_core.run.start import critic_start_id, critic_start_text, pin_load, start_id


def checkpoint(folder: Path, iteration: int, **more: Any) -> None:
    """What makes an iteration of a folder of checkpoints a complete one."""
    marker = {"iteration": iteration, "weights_id": f"w{iteration}", "files": {}, **more}
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


def test_a_run_keeps_the_teacher_that_it_began_with(
    model: str, checkpoints: str, store: RunStore, tmp_path: Path
) -> None:
    distils = {"use_opd": True, "opd_type": "megatron", "opd_teacher_load": checkpoints}
    first = pin_load(config(model, **distils), store)
    assert first.opd.opd_teacher_load == f"{checkpoints}/iter_0000003"
    checkpoint(tmp_path / "checkpoints", 7)
    assert pin_load(config(model, **distils), store) == first
    named = pin_load(config(model, **distils, opd_teacher_ckpt_step=1), RunStore(str(tmp_path / "other")))
    assert named.opd.opd_teacher_load == f"{checkpoints}/iter_0000001"
    of_a_server = config(model, **{**distils, "opd_type": "sglang"})
    assert pin_load(of_a_server, RunStore(str(tmp_path / "third"))) == of_a_server


def test_a_run_keeps_the_critic_that_it_began_with(
    model: str, checkpoints: str, store: RunStore, tmp_path: Path
) -> None:
    ppo = {"advantage_estimator": "ppo", "load": checkpoints, "critic_load": str(tmp_path / "critics")}
    checkpoint(tmp_path / "critics", 5)
    first = pin_load(config(model, **ppo), store)
    assert first.checkpoint.load == f"{checkpoints}/iter_0000003"
    assert first.checkpoint.critic_load == f"{tmp_path}/critics/iter_0000005"
    checkpoint(tmp_path / "critics", 7)
    assert pin_load(config(model, **ppo), store) == first
    without = config(model, **{**ppo, "advantage_estimator": "grpo"})
    assert pin_load(without, RunStore(str(tmp_path / "other"))).checkpoint.critic_load == str(tmp_path / "critics")


def test_a_critic_has_first_weights_of_its_own(model: str, checkpoints: str, tmp_path: Path) -> None:
    """Its head follows the seed, unless it is in a critic's checkpoint: a checkpoint says whose it is."""
    plain = config(model, advantage_estimator="ppo")
    assert critic_start_id(plain) == critic_start_id(config(model, advantage_estimator="ppo", load=None))
    assert critic_start_id(plain) != start_id(plain)
    assert critic_start_id(plain) != critic_start_id(config(model, advantage_estimator="ppo", seed=7))
    assert critic_start_text(plain) == f"the critic starts from the model {model}, with a fresh value head"
    of_actor = config(model, advantage_estimator="ppo", critic_load=f"{checkpoints}/iter_0000001")
    assert critic_start_id(of_actor) not in (critic_start_id(plain), critic_start_id(with_seed(of_actor)))
    assert "the actor's checkpoint" in critic_start_text(of_actor)
    assert "fresh value head" in critic_start_text(of_actor)
    checkpoint(tmp_path / "critics", 5, role="critic")
    of_critic = config(model, advantage_estimator="ppo", critic_load=str(tmp_path / "critics"))
    assert critic_start_id(of_critic) == critic_start_id(with_seed(of_critic))
    assert critic_start_text(of_critic) == (
        f"the critic starts from the critic's checkpoint {tmp_path}/critics/iter_0000005"
    )


def with_seed(config: RelaxConfig) -> RelaxConfig:
    return with_options(config, {"seed": 7})


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
        ({"use_opd": True, "opd_type": "megatron", "opd_teacher_load": "{}/empty"}, "--opd-teacher-load .*empty holds"),
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
