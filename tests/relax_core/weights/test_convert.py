"""A checkpoint as a Hugging Face folder, without the trainer that saved it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file
from saved_checkpoints import upload, write_checkpoint
from tiny import make_tiny
from training_batches import write_batches

from data.errors import UserError
from data.store import RunStore
from flows.cli.main import main
from relax_core.config import RelaxConfig, dump
from relax_core.config.options import with_options
from relax_core.weights import saved
from relax_core.weights.convert import convert, find_checkpoints
from relax_core.weights.convert_out import RECORD, Converted, appearing
from relax_core.weights.saved import SavedWeights


def content(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors = {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}
    return tensors, json.loads((folder / "config.json").read_text())


def assert_equal(left: Path, right: Path) -> None:
    """Bit by bit, names, types and config.json too."""
    (mine, config), (theirs, other) = content(left), content(right)
    assert config == other
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert mine[name].dtype == value.dtype
        assert torch.equal(mine[name], value), name


@pytest.mark.megatron
def test_a_conversion_is_what_the_trainer_exports(tmp_path: Path) -> None:
    write_batches(str(tmp_path))
    plain = {"use_kl_loss": False, "kl_loss_coef": 0.0}
    policies = {
        # a shape like SmolLM2's: tied, and heads whose number no power of two divides
        "llama": (str(make_tiny(tmp_path / "m0", "llama", tie=True, hidden=48, heads=3, kv_heads=1)), {}),
        # biases, its own output layer, another format; with frozen parameters layers are saved one by one
        "qwen2": (
            str(make_tiny(tmp_path / "m1", "qwen2")),
            {**plain, "bf16": True, "freeze_params_name_list": ["decoder.layers.0.mlp"]},
        ),
        # with a reference of its own in the checkpoint
        "qwen3": (str(make_tiny(tmp_path / "m2")), {"ref_update_interval": 1}),
    }
    arguments = {"work": str(tmp_path), "policies": policies, "critic": str(make_tiny(tmp_path / "m3", tie=True))}
    run_ranks(1, "relax_core.weights.convert_checks:saved_and_exported", arguments)
    for name in (*policies, "critic"):
        found = convert(find_checkpoints(f"{tmp_path}/{name}-saved"), tmp_path / f"{name}-converted")
        assert found.made
        assert_equal(tmp_path / f"{name}-converted", tmp_path / name)
    # it was trained
    assert not torch.equal(*(content(tmp_path / name)[0]["model.norm.weight"] for name in ("m0", "llama")))


@pytest.fixture
def run(tmp_path: Path, tiny_model: Path) -> Path:
    """A run whose checkpoints of steps 1 and 3 hold its history's weights; that of step 5 is of another one."""
    folder = tmp_path / "run"
    config = with_options(RelaxConfig(), {"hf_checkpoint": str(tiny_model), "run_dir": str(folder)})
    RunStore(str(folder)).write_bytes("config.yaml", dump(config, {}).encode())
    for step, weights_id in ((1, "w1"), (3, "w3"), (5, "old")):
        write_checkpoint(folder / "checkpoints", step, tiny_model, weights_id)
        RunStore(str(folder)).write_json(f"steps/{step:06d}/stages/train.json", _record(f"w{step}"))
    return folder


def _record(key: str) -> dict[str, Any]:
    return {"stage": "train", "key": key, "tables": {}, "values": {}, "seconds": 0.0}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_newest_of_the_runs_own_is_taken_and_the_run_is_left_alone(run: Path, tmp_path: Path) -> None:
    before, out = files(run), tmp_path / "out"
    found = convert(find_checkpoints(str(run)), out)
    assert (found.step, found.version, found.weights_id, found.dtype) == (3, 4, "w3", "float32")
    assert files(run) == before
    assert_equal_weights(out, Path(found.model))
    assert json.loads((out / RECORD).read_text())["checkpoint"] == f"{run}/checkpoints/iter_0000003"


def assert_equal_weights(left: Path, right: Path) -> None:
    (mine, _), (theirs, _) = content(left), content(right)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], value) for name, value in theirs.items())


def test_the_same_conversion_again_is_there_and_another_one_is_refused(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    first = convert(find_checkpoints(str(run)), out)
    before = files(out)
    assert convert(find_checkpoints(f"{run}/"), out).made is False
    assert (
        convert(find_checkpoints(f"{run}/checkpoints/iter_0000003"), out).to_json()
        | {
            "made": True,
            "seconds": first.seconds,
        }
        == first.to_json()
    )
    with pytest.raises(UserError, match=r"holds the conversion of step 3 .* asked for is step 1"):
        convert(find_checkpoints(str(run), step=1), out)
    assert files(out) == before
    (out / "model.safetensors").unlink()
    with pytest.raises(UserError, match="not whole any more"):
        convert(find_checkpoints(str(run)), out)


def test_a_folder_with_something_else_in_it_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name, problem in (("mine", "is not empty"), ("file", "is a file"), ("s3://bucket/x", "is a URL")):
        out = name if "://" in name else str(tmp_path / name)
        with pytest.raises(UserError, match=problem):
            convert(find_checkpoints(str(run)), out)
    assert files(tmp_path / "mine") == {"notes.txt": b"keep"}
    (tmp_path / "empty").mkdir()
    assert convert(find_checkpoints(str(run)), tmp_path / "empty").made


def test_nothing_is_there_until_it_is_whole(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen = tmp_path / "out", []
    real = SavedWeights._read

    def read(self: SavedWeights, name: str) -> Any:
        seen.append(out.exists())
        if name.endswith("final_layernorm.weight"):
            raise KeyboardInterrupt
        return real(self, name)

    monkeypatch.setattr(SavedWeights, "_read", read)
    with pytest.raises(KeyboardInterrupt):
        convert(find_checkpoints(str(run)), out)
    assert not any(seen)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    monkeypatch.undo()
    (tmp_path / ".out.converting").mkdir()  # of one that was killed
    (tmp_path / ".out.converting" / "model.safetensors").write_bytes(b"half")
    assert convert(find_checkpoints(str(run)), out).made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_two_at_once_do_not_write_into_one_folder(run: Path, tmp_path: Path) -> None:
    with appearing(tmp_path / "out"), pytest.raises(UserError, match="Another process is converting"):
        convert(find_checkpoints(str(run)), tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def _vanishing(monkeypatch: pytest.MonkeyPatch, checkpoints: Path, deleted: int, then: Any = lambda: None) -> None:
    """The run deletes a checkpoint while its first layer is read: as ``relax_core.run.retention``, the marker first."""
    real = SavedWeights._read

    def read(self: SavedWeights, name: str) -> Any:
        place = checkpoints / f"iter_{deleted:07d}"
        if self.iteration == deleted and place.exists() and "layers.0.mlp.linear_fc1" in name:
            (place / "relax_state.json").unlink()
            shutil.rmtree(place)
            then()
        return real(self, name)

    monkeypatch.setattr(SavedWeights, "_read", read)


def test_what_the_run_deletes_meanwhile_is_told_and_the_next_is_taken(
    run: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, told = RunStore(str(run)), []

    def save_another() -> None:
        store.write_json("steps/000004/stages/train.json", _record("w4"))
        write_checkpoint(run / "checkpoints", 4, tiny_model, "w4")

    _vanishing(monkeypatch, run / "checkpoints", 3, save_another)
    found = convert(find_checkpoints(str(run)), tmp_path / "out", told.append)
    assert found.step == 4
    assert told == [
        f"The checkpoint {run}/checkpoints/iter_0000003 was deleted or replaced while it was read. The newest one is"
        " taken."
    ]


def test_the_one_that_is_meant_has_no_other_in_its_place(
    run: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _vanishing(monkeypatch, run / "checkpoints", 1)
    with pytest.raises(saved.Vanished, match="iter_0000001 was deleted or replaced while it was read"):
        convert(find_checkpoints(str(run), step=1), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # also where another one, whole, takes its place before the next tensor is read
    again = {"then": lambda: write_checkpoint(run / "checkpoints", 3, tiny_model, "w3-anew")}
    _vanishing(monkeypatch, run / "checkpoints", 3, **again)
    with pytest.raises(saved.Vanished):
        convert(find_checkpoints(str(run), step=3), tmp_path / "out")


def test_what_is_not_there_is_told_with_what_is(run: Path, tmp_path: Path, tiny_model: Path) -> None:
    (run / "checkpoints" / "iter_0000003" / "relax_state.json").unlink()
    with pytest.raises(UserError, match=r"no complete checkpoint of step 3: .* Complete are the steps 5, 1\."):
        convert(find_checkpoints(str(run), step=3), tmp_path / "out")
    with pytest.raises(UserError, match="are two checkpoints"):
        find_checkpoints(f"{run}/checkpoints/iter_0000001", step=3)
    with pytest.raises(UserError, match="neither a run"):
        find_checkpoints(str(tmp_path / "nowhere"))
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"holds no complete checkpoint of the run.*save-interval"):
        convert(find_checkpoints(str(run)), tmp_path / "out")
    other = make_tiny(tmp_path / "other", layers=1)
    write_checkpoint(run / "checkpoints", 1, tiny_model, "w1")
    with pytest.raises(UserError, match=r"are of another model than .*: layers differ\..*--hf-checkpoint"):
        convert(find_checkpoints(str(run), str(other)), tmp_path / "out")
    with pytest.raises(UserError, match=r"no model folder /nowhere.*--hf-checkpoint"):
        convert(find_checkpoints(str(run), "/nowhere"), tmp_path / "out")


def test_a_run_on_s3(s3_endpoint: str, run: Path, tmp_path: Path, tiny_model: Path) -> None:
    upload(run, "s3://runs/converted")
    found = convert(find_checkpoints("s3://runs/converted"), tmp_path / "out")
    assert (found.checkpoint, found.step) == ("s3://runs/converted/checkpoints/iter_0000003", 3)
    assert_equal_weights(tmp_path / "out", tiny_model)
    pinned = convert(find_checkpoints("s3://runs/converted/checkpoints/iter_0000001"), tmp_path / "one")
    assert isinstance(pinned, Converted)
    assert pinned.step == 1


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["convert", str(run), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert f"{tmp_path}/out: weights after 4 steps, float32" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["made"], told["model"]) == (3, False, find_checkpoints(str(run)).hf_checkpoint)
    assert main(["convert", str(run), "--out", str(run)]) == 2
    assert "is not empty" in capsys.readouterr().err
