"""Names and shapes between Hugging Face and Megatron, on hand-made tensors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.training.shape import Family, ModelShape
from relax_core.weights.mapping import blocks, hf_shapes, join, layer_block, merge, split, tied_copy


def shape(family: Family = "qwen3", **changes: object) -> ModelShape:
    values: dict = {
        "family": family,
        "layers": 4,
        "hidden": 8,
        "ffn": 12,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 2,
        "vocab": 6,
        "tie": False,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "norm_eps": 1e-6,
        "qkv_bias": family == "qwen2",
        "qk_norm": family == "qwen3",
        "max_positions": 32,
    }
    return ModelShape(**(values | changes))


def test_queries_keys_and_values_are_joined_by_key_value_group():
    entry = layer_block(shape("qwen2"), 0, 0)[2]
    # 4 query heads and 2 key-value heads of size 2; biases make the order easy to see. Head h has the values h0, h1.
    query = torch.tensor([0, 1, 10, 11, 20, 21, 30, 31])
    key = torch.tensor([100, 101, 110, 111])
    value = torch.tensor([200, 201, 210, 211])
    # Group 0: query heads 0 and 1, key head 0, value head 0. Group 1: query heads 2 and 3, key head 1, value head 1.
    expected = [0, 1, 10, 11, 100, 101, 200, 201, 20, 21, 30, 31, 110, 111, 210, 211]
    assert entry.kind == "qkv"
    assert join(entry, [query, key, value], shape("qwen2")).tolist() == expected


def test_gate_lies_above_up():
    entry = next(e for e in layer_block(shape(), 0, 0) if e.kind == "gate_up")
    gate, up = torch.zeros(3, 2), torch.ones(3, 2)
    assert torch.equal(join(entry, [gate, up], shape()), torch.cat([gate, up]))


@given(
    family=st.sampled_from(["llama", "qwen2", "qwen3"]),
    tie=st.booleans(),
    ranks=st.sampled_from([1, 2]),
    stages=st.sampled_from([1, 2, 4]),
)
def test_cut_join_split_and_merge_give_every_tensor_back(family: Family, tie: bool, ranks: int, stages: int):
    model = shape(family, tie=tie)
    tensors = {name: torch.randn(size) for name, size in hf_shapes(model).items()}
    back: dict[str, torch.Tensor] = {}
    for _, block in blocks(model, stages):
        for entry in block:
            parts_by_rank = []
            for rank in range(ranks):
                parts = [
                    tensors[name] if entry.cut is None else tensors[name].chunk(ranks, entry.cut)[rank]
                    for name in entry.hf
                ]
                parts_by_rank.append(split(entry, join(entry, parts, model), model))
            back |= dict(zip(entry.hf, merge(entry, parts_by_rank), strict=True))
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_layers_are_numbered_from_the_start_of_their_stage():
    found = [(stage, block[0].megatron, block[0].hf[0]) for stage, block in blocks(shape(), stages=2)]
    assert found[3] == (1, "decoder.layers.0.input_layernorm.weight", "model.layers.2.input_layernorm.weight")
    assert [stage for stage, _, _ in found] == [0, 0, 0, 1, 1, 1]


def test_a_tied_model_has_no_output_layer_of_its_own():
    assert "lm_head.weight" not in hf_shapes(shape(tie=True))
    assert hf_shapes(shape(tie=False))["lm_head.weight"] == (6, 8)
    assert tied_copy().hf == ("model.embed_tokens.weight",)


@pytest.mark.parametrize(
    ("family", "ending", "there"),
    [
        ("qwen2", "q_proj.bias", True),
        ("llama", "q_proj.bias", False),
        ("qwen3", "k_norm.weight", True),
        ("qwen2", "k_norm.weight", False),
    ],
)
def test_only_the_family_that_has_them_maps_biases_and_norms(family: Family, ending: str, there: bool):
    assert any(name.endswith(ending) for name in hf_shapes(shape(family))) is there
