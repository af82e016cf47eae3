"""The layer as one function: what torch makes of it, and which layers it serves. Its numbers: see test_model.py."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from relax_core.algorithms.compiled import Compiled
from relax_core.training import fused_layer
from relax_core.training.fused_layer import LayerWeights, alike, fits, transformer_layer
from relax_core.training.rope import rotary_tables

HIDDEN, HEADS, KV_HEADS, SIZE, FFN = 32, 4, 2, 8, 48


def looking_back(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, scale: Any) -> Tensor:
    """Stands for the kernel of a GPU: it mixes all that it gets, and one operation is enough for a graph."""
    shared = HEADS // KV_HEADS
    return query * key.repeat_interleave(shared, 1) + value.repeat_interleave(shared, 1) * (longest / bounds[-1])


def weights(seed: int) -> LayerWeights:
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(size, generator=generator) / 4)

    mixed = (HEADS + 2 * KV_HEADS) * SIZE
    qkv, projection = random(mixed, HIDDEN), random(HIDDEN, HEADS * SIZE)
    return LayerWeights(
        random(HIDDEN), qkv, None, random(SIZE), random(SIZE), projection, random(HIDDEN), random(2 * FFN, HIDDEN),
        random(HIDDEN, FFN),
    )  # fmt: skip


def run(function: Any, layers: list[LayerWeights], lengths: list[int]) -> list[Tensor]:
    """Result and gradients, of the input first."""
    x = states(lengths)
    y = forward(function, layers, x, lengths)
    leaves = [x, *(weight for layer in layers for weight in layer if weight is not None)]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]


def states(lengths: list[int]) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, sum(lengths), HIDDEN, generator=generator, requires_grad=True)


def forward(function: Any, layers: list[LayerWeights], x: Tensor, lengths: list[int]) -> Tensor:
    """The layers one after another; ``x`` comes to them transposed, as an embedding's result does."""
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    cos, sin = rotary_tables(lengths, torch.linspace(0.1, 1, SIZE // 2), torch.float32)
    y = x.transpose(0, 1)
    for layer in layers:
        y = function(
            alike(y), cos, sin, bounds, torch.empty(1).expand(max(lengths)), layer, (HEADS, KV_HEADS, SIZE), 1e-6
        )
    return y


def test_all_layers_share_one_graph_and_other_packings_need_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "flash", looking_back)
    function = Compiled(transformer_layer.plain, backend="aot_eager")
    layers = [weights(seed) for seed in range(3)]
    torch._dynamo.reset()
    counters.clear()
    graphs = []
    for lengths in ([5, 7, 3], [4, 9], [6, 1, 8, 2, 2], [30]):
        for found, plain in zip(
            run(function.compiled, layers, lengths), run(transformer_layer.plain, layers, lengths), strict=True
        ):
            torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1, 1, 1, 1]


def test_scoring_and_training_by_turns_need_a_graph_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "flash", looking_back)
    function = Compiled(transformer_layer.plain, backend="aot_eager")
    layers, graphs = [weights(seed) for seed in range(3)], []
    torch._dynamo.reset()
    counters.clear()
    for lengths in ([5, 7, 3], [4, 9], [30]):
        with torch.no_grad():
            forward(function.compiled, layers, states(lengths), lengths)
        run(function.compiled, layers, lengths)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [2, 2, 2]


@pytest.mark.parametrize("rows", [2, 5])
def test_hidden_states_come_to_a_layer_with_the_strides_of_its_own_result(rows: int) -> None:
    embedded = torch.arange(float(rows * HIDDEN)).view(1, rows, HIDDEN).transpose(0, 1)
    contiguous = torch.empty(rows, 1, HIDDEN)
    assert embedded.stride() == (HIDDEN, rows * HIDDEN, 1) != contiguous.stride() == (HIDDEN, HIDDEN, 1)
    assert alike(embedded).stride() == contiguous.stride()
    assert torch.equal(alike(embedded), embedded)
    assert alike(embedded)._base is None
    assert alike(contiguous) is contiguous


def test_a_layer_is_called_with_such_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    part = SimpleNamespace(weight=None, bias=None)
    attention = SimpleNamespace(
        linear_qkv=part, linear_proj=part, q_layernorm=part, k_layernorm=part,
        num_attention_heads_per_partition=HEADS, num_query_groups_per_partition=KV_HEADS,
        hidden_size_per_attention_head=SIZE,
    )  # fmt: skip
    mlp, config = SimpleNamespace(linear_fc1=part, linear_fc2=part), SimpleNamespace(layernorm_epsilon=1e-6)
    layer = SimpleNamespace(
        self_attention=attention, mlp=mlp, config=config, input_layernorm=part, pre_mlp_layernorm=part, forward=None
    )
    seen: list[Tensor] = []
    monkeypatch.setattr(fused_layer, "takes", lambda hidden_states: True)
    monkeypatch.setattr(fused_layer, "transformer_layer", lambda x, *rest: seen.append(x) or x)
    packing = SimpleNamespace(cos=None, sin=None, cu_seqlens=None, ruler=None)
    embedded = torch.ones(1, 5, HIDDEN).transpose(0, 1)
    fused_layer.LayerForward(layer)(embedded, packed_seq_params=SimpleNamespace(packing=packing))
    assert seen[0].stride() == (HIDDEN, HIDDEN, 1)


def layer_config(**changes: Any) -> SimpleNamespace:
    plain = {
        "tensor_model_parallel_size": 1,
        "params_dtype": torch.bfloat16,
        "recompute_granularity": None,
        "add_bias_linear": False,
        "fp32_residual_connection": False,
    }
    return SimpleNamespace(**(plain | changes))


def test_an_ordinary_layer_in_bfloat16_is_the_function() -> None:
    assert fits(layer_config())
    assert fits(layer_config(recompute_granularity="full", params_dtype=torch.float16))


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_model_parallel_size": 2},
        {"params_dtype": torch.float32},
        {"recompute_granularity": "selective"},
        {"add_bias_linear": True},
        {"fp32_residual_connection": True},
        {"cpu_offloading": True},
        {"fine_grained_activation_offloading": True},
    ],
    ids=str,
)
def test_a_layer_that_does_more_stays_as_it_is(change: dict[str, Any]) -> None:
    assert not fits(layer_config(**change))
