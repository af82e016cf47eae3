"""Packed attention and rotary positions against plain formulas."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relax_core.training.attention import PackedAttention, Packing, attend
from relax_core.training.rope import inverse_frequencies, rotary_tables, rotate
from relax_core.training.shape import Llama3Scaling, ModelShape

FREQUENCIES = torch.tensor([1.0, 0.25])


def plain_attention(query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
    """softmax(q k / sqrt(d)) v over the whole packed row, with everything masked that a token must not see."""
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.arange(len(sequence))
    seen = (sequence[:, None] == sequence[None]) & (position[None] <= position[:, None])
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -math.inf).softmax(-1), value)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), groups=st.sampled_from([1, 2, 4]))
def test_a_token_sees_only_itself_and_what_is_before_it_in_its_sequence(lengths: list[int], groups: int):
    torch.manual_seed(0)
    query = torch.randn(sum(lengths), 4, 4, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(sum(lengths), groups, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found = attend(query, key, value, Packing.of(lengths, FREQUENCIES, torch.float64))
    expected = plain_attention(query, key, value, lengths)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), (query, key, value)),
        torch.autograd.grad((expected * weight).sum(), (query, key, value)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_positions_count_from_zero_in_each_sequence():
    cos, sin = rotary_tables([2, 3], FREQUENCIES, torch.float32)
    # Angles are position x frequency; positions 0 1 | 0 1 2.
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.25], [0.0, 0.0], [1.0, 0.25], [2.0, 0.5]])[:, None]
    torch.testing.assert_close(cos, angles.cos())
    torch.testing.assert_close(sin, angles.sin())


def test_rotation_turns_pairs_of_channels_half_a_head_apart():
    # One token at angle 90 degrees for the first pair and 0 for the second: (x0, x2) -> (-x2, x0), (x1, x3) stay.
    cos, sin = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 0.0]]])
    assert rotate(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), cos, sin).tolist() == [[[-3.0, 2.0, 1.0, 4.0]]]


def test_the_gradient_of_a_rotation_is_right_for_strided_heads():
    cos, sin = rotary_tables([3, 2], FREQUENCIES, torch.float64)
    mixed = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x[:, 1:], cos, sin), (mixed,))


def shape(scaling: Llama3Scaling | None = None) -> ModelShape:
    return ModelShape("llama", 1, 8, 8, 1, 1, 8, 8, False, 10000.0, scaling, 1e-6, False, False, 32)


def test_frequencies_fall_geometrically_from_one():
    torch.testing.assert_close(inverse_frequencies(shape()), torch.tensor([1.0, 0.1, 0.01, 0.001]))


def test_llama3_scaling_keeps_short_waves_stretches_long_ones_and_blends_between():
    # Turns within 512 positions: 81.5, 8.15, 0.815, 0.0815. Above 16 kept, below 4 divided by 8, and between:
    # kept share (8.15 - 4) / (16 - 4) = 0.3457, so 0.1 x (0.3457 + 0.6543 / 8) = 0.04275.
    found = inverse_frequencies(shape(Llama3Scaling(8.0, 4.0, 16.0, 512)))
    torch.testing.assert_close(found, torch.tensor([1.0, 0.04275, 0.00125, 0.000125]), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"attention_dropout": 0.1}, "no dropout"), ({"context_parallel_size": 2}, "no context parallelism")],
)
def test_what_packed_attention_lacks_is_refused(changes: dict[str, Any], message: str):
    config = SimpleNamespace(**({"attention_dropout": 0.0, "context_parallel_size": 1} | changes))
    with pytest.raises(ValueError, match=message):
        PackedAttention(config, 1, None, "self")
