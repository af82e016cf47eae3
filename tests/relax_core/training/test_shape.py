"""Reading a model's shape from config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from relax_core.training.shape import Llama3Scaling, ModelShape

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 300,
}
SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(folder: Path, **changes: Any) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    return ModelShape.from_hf(folder)


def test_missing_keys_take_the_familys_defaults(tmp_path: Path):
    shape = read(tmp_path)
    assert (shape.kv_heads, shape.head_dim, shape.tie, shape.rope_theta) == (4, 16, False, 10000.0)
    assert (shape.qkv_bias, shape.qk_norm, shape.max_positions) == (False, False, 2048)
    assert read(tmp_path, model_type="qwen3").head_dim == 128
    assert read(tmp_path, model_type="qwen2").qkv_bias is True


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_scaling_is_read_in_the_old_and_the_new_form(tmp_path: Path, key: str):
    shape = read(tmp_path, **{key: SCALING, "rope_theta": 500000.0})
    assert shape.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert shape.rope_theta == 500000.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "type 'gemma3', which has no weight mapping"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "lacks the key 'factor'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size should be a positive whole number, not None"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        ({"head_dim": 5}, "head_dim=5 is odd"),
    ],
)
def test_what_would_be_computed_differently_is_refused(tmp_path: Path, changes: dict, message: str):
    with pytest.raises(UserError) as error:
        read(tmp_path, **changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "message"),
    [
        (8, 1, "--tensor-model-parallel-size 8 does not divide the model's 4 attention heads"),
        (1, 3, "--pipeline-model-parallel-size 3 does not divide the model's 4 layers"),
    ],
)
def test_uneven_parallel_sizes_are_refused(tmp_path: Path, tensor: int, pipeline: int, message: str):
    with pytest.raises(UserError, match=message):
        read(tmp_path).check_parallel(tensor, pipeline)


def test_a_vocabulary_that_the_ranks_cannot_share_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="301 entries of the vocabulary"):
        read(tmp_path, vocab_size=301).check_parallel(2, 1)


@pytest.mark.parametrize(
    ("folder", "message"),
    [("s3://bucket/model", "is a URL"), ("org/no-such-model", "There is no model folder"), (".", "has no config.json")],
)
def test_only_local_folders_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, message: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        ModelShape.from_hf(folder)


def test_a_broken_config_is_named(tmp_path: Path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is not valid JSON"):
        ModelShape.from_hf(tmp_path)
