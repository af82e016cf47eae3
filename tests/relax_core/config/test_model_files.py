from pathlib import Path
from typing import Any

import pytest
from configs import model_folder

from data.errors import UserError
from relax_core.config.model_files import read_model_folder


def test_the_shape_of_a_complete_folder(tmp_path: Path) -> None:
    shape = read_model_folder(str(model_folder(tmp_path / "model")))
    assert (shape.family, shape.layers, shape.heads, shape.vocab, shape.max_positions) == ("qwen3", 4, 4, 512, 2048)


@pytest.mark.parametrize("model_type", ["gpt2", "qwen3_moe", None, ["qwen3"]])
def test_a_family_without_a_mapping_is_refused_by_name(tmp_path: Path, model_type: Any) -> None:
    folder = model_folder(tmp_path / "model", model_type=model_type)
    with pytest.raises(UserError) as caught:
        read_model_folder(str(folder))
    assert f"of type {model_type!r}, which has no weight mapping" in str(caught.value)
    assert "llama, qwen2, qwen3" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", b'{"model_type": "qwen3"', "is not valid JSON"),
        ("config.json", b"\xff", "is not valid JSON"),
        ("config.json", b"[]", "should hold a JSON object"),
        ("tokenizer.json", None, "has no tokenizer"),
        ("model.safetensors", None, "has no weights"),
    ],
)
def test_an_incomplete_folder_is_refused(tmp_path: Path, name: str, content: bytes | None, text: str) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=text):
        read_model_folder(str(folder))


@pytest.mark.parametrize("files", [["tokenizer.model"], ["vocab.json", "merges.txt"]])
def test_other_kinds_of_tokenizer_will_do(tmp_path: Path, files: list[str]) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    for name in files:
        (folder / name).touch()
    read_model_folder(str(folder))


def test_a_reference_needs_no_tokenizer(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    read_model_folder(str(folder), tokenizer=False)


def test_a_name_on_a_hub_is_no_folder() -> None:
    with pytest.raises(UserError, match="There is no model folder Qwen/Qwen3"):
        read_model_folder("Qwen/Qwen3-0.6B")
