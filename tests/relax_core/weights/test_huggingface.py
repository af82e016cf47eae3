"""Hugging Face folders: what is read, what is refused, what is written."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make_tiny

from data.errors import UserError
from relax_core.training.shape import ModelShape
from relax_core.weights.huggingface import HfWeights, plan_shards, write_folder
from relax_core.weights.mapping import hf_shapes


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"), "qwen2")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    target = tmp_path / "model"
    target.mkdir()
    for file in original.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def open_weights(folder: Path) -> HfWeights:
    return HfWeights(folder, ModelShape.from_hf(folder))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Copies, because a test overwrites the file that the tensors would be mapped from."""
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def test_a_part_of_a_tensor_is_the_ranks_share(folder: Path):
    weights, whole = open_weights(folder), tensors_of(folder)
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(weights.read(name), whole[name])
    assert torch.equal(weights.read(name, 1, 1, 2), whole[name][:, 64:])
    assert torch.equal(weights.read(name, 0, 0, 2), whole[name][:32])


def test_a_sharded_folder_reads_alike(folder: Path, tmp_path: Path):
    shape, whole = ModelShape.from_hf(folder), tensors_of(folder)
    out = tmp_path / "sharded"
    write_folder(((n, whole[n]) for n in hf_shapes(shape)), shape, folder, out, torch.float32, shard_bytes=100_000)
    assert len(list(out.glob("model-0000?-of-*.safetensors"))) > 1
    again = HfWeights(out, shape)
    assert all(torch.equal(again.read(name), whole[name]) for name in whole)


def test_missing_and_unexpected_tensors_are_named(folder: Path):
    tensors = tensors_of(folder)
    tensors["model.layers.0.odd.weight"] = tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks model\.norm\.weight and also has model\.layers\.0\.odd\.weight"):
        open_weights(folder)


def test_many_missing_tensors_are_counted(folder: Path):
    kept = {name: tensor for name, tensor in tensors_of(folder).items() if "layers.1." not in name}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"and 8 more"):  # 12 tensors a layer with biases, 4 of them shown
        open_weights(folder)


def test_the_copy_of_a_tied_output_layer_and_old_rotary_tables_are_let_pass(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(tensors_of(folder) | extra, folder / "model.safetensors")
    open_weights(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(folder: Path):
    save_file(tensors_of(folder) | {"model.norm.weight": torch.ones(3)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.norm\.weight in .* has the shape \[3\], but config\.json says \[64\]"):
        open_weights(folder)


def test_quantised_weights_are_refused(folder: Path):
    save_file(
        tensors_of(folder) | {"model.norm.weight": torch.ones(64, dtype=torch.int8)}, folder / "model.safetensors"
    )
    with pytest.raises(UserError, match="stored as I8"):
        open_weights(folder)


def test_a_truncated_file_is_called_damaged(folder: Path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        open_weights(folder)


def test_bin_files_are_refused_with_the_way_to_convert_them(folder: Path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"\.bin files.*save_pretrained"):
        open_weights(folder)


def test_a_folder_without_weights_says_so(folder: Path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        open_weights(folder)


def test_a_shard_that_the_index_lists_but_is_not_there_is_named(folder: Path):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"lacks model-00001-of-00002\.safetensors"):
        open_weights(folder)


def test_a_failed_export_leaves_the_older_folder_as_it_was(folder: Path, tmp_path: Path):
    shape, out = ModelShape.from_hf(folder), tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("")

    def broken():
        yield "model.embed_tokens.weight", torch.zeros(512, 64)
        raise RuntimeError("rank died")

    with pytest.raises(RuntimeError, match="rank died"):
        write_folder(broken(), shape, folder, out, torch.float32)
    assert [file.name for file in out.iterdir()] == ["old"]


def test_an_export_to_a_full_disk_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(UserError, match=r"needs 0\.00 GB, but the disk has 0\.00 GB left"):
        write_folder(iter(()), ModelShape.from_hf(folder), folder, tmp_path / "out", torch.float32)
    assert not (tmp_path / "out").exists()


def test_an_export_to_a_url_is_refused(folder: Path):
    with pytest.raises(UserError, match="s3://bucket/out"):
        write_folder(iter(()), ModelShape.from_hf(folder), folder, "s3://bucket/out", torch.float32)


def test_the_config_of_an_export_names_the_type_of_its_weights(folder: Path, tmp_path: Path):
    shape, whole = ModelShape.from_hf(folder), tensors_of(folder)
    write_folder(((n, whole[n].bfloat16()) for n in hf_shapes(shape)), shape, folder, tmp_path / "o", torch.bfloat16)
    assert json.loads((tmp_path / "o" / "config.json").read_text())["dtype"] == "bfloat16"
    assert (tmp_path / "o" / "tokenizer.json").is_file()


def test_shards_are_filled_in_order_and_an_oversized_tensor_has_its_own():
    # Sizes 3, 3, 10 and 1 elements of 4 bytes with a limit of 24 bytes: {a, b} is exactly full, c alone is too large.
    plan = plan_shards({"a": (3,), "b": (3, 1), "c": (10,), "d": (1,)}, itemsize=4, limit=24)
    assert plan == {("a", "b"): 24, ("c",): 40, ("d",): 4}


def test_a_body_is_read_whatever_stands_on_top_of_it(folder: Path):
    """A folder without an output layer, with another head: no policy, but what a critic can begin with."""
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = tensors_of(folder) | {"score.weight": torch.zeros(1, 64)}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors")
    shape = ModelShape.from_hf(folder)
    with pytest.raises(UserError, match=r"lacks lm_head.weight"):
        HfWeights(folder, shape)
    body = HfWeights(folder, shape, body=True)
    assert torch.equal(body.read("model.norm.weight"), tensors["model.norm.weight"])
