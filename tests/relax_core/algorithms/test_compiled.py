"""Which functions torch compiles, and what happens where it cannot."""

import logging

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from relax_core.algorithms import compiled as module
from relax_core.algorithms.compiled import SWITCH, Compiled, compiled, want_compiled, wants_compiled


def doubled(x: Tensor) -> Tensor:
    return x * 2


def broken(x: Tensor) -> Tensor:
    print(x)  # dynamo takes no print into a graph
    torch._dynamo.graph_break()
    return x * 3


class OnAGpu:
    """What is asked of a tensor there."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.is_cuda, self.dtype, self.shape = True, dtype, (4,)


@pytest.mark.parametrize(
    ("dtype", "compiles"), [(torch.bfloat16, True), (torch.float16, True), (torch.float32, False)], ids=str
)
def test_narrow_types_are_compiled_and_float32_keeps_its_bits(
    dtype: torch.dtype, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = Compiled(lambda x: "as written")
    monkeypatch.setattr(function, "compiled", lambda x: "compiled")
    assert function(OnAGpu(dtype)) == ("compiled" if compiles else "as written")


def test_on_a_cpu_nothing_is_compiled() -> None:
    counters.clear()
    assert torch.equal(compiled(doubled)(torch.ones(3)), torch.full((3,), 2.0))
    assert not counters["stats"]


def test_another_number_of_rows_compiles_nothing_anew() -> None:
    torch._dynamo.reset()
    counters.clear()
    function = Compiled(doubled, backend="eager")
    for rows in (3, 5, 8):
        assert torch.equal(function.compiled(torch.ones(rows, 2)), torch.full((rows, 2), 2.0))
    assert counters["stats"]["unique_graphs"] == 1


def test_torch_is_asked_for_kernels_that_hold_for_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object] | None] = []
    monkeypatch.setattr(torch, "compile", lambda function, **given: asked.append(given["options"]) or function)
    for backend in ("inductor", "eager"):
        Compiled(doubled, backend).compiled(torch.ones(3))
    assert asked == [{module.WITHOUT_BOUNDS: True}, None]
    monkeypatch.setattr("torch._inductor.list_options", lambda: ["another"])  # a torch that does not know it
    Compiled(doubled).compiled(torch.ones(3))
    assert asked[2] is None


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def test_one_row_and_none_are_computed_as_it_is_written() -> None:
    torch._dynamo.reset()
    counters.clear()
    function = Compiled(doubled, backend="eager")
    for rows in (0, 1):
        assert torch.equal(function.compiled(torch.ones(rows, 2)), torch.full((rows, 2), 2.0))
    assert not counters["stats"]


def test_more_variants_than_torch_compiles_by_itself_are_compiled() -> None:
    torch._dynamo.reset()
    counters.clear()
    function = Compiled(scaled, backend="eager")
    for size in range(2, 14):  # torch gives up after 8; a parameter's size is a number
        assert function.compiled(torch.ones(3, size), torch.nn.Parameter(torch.ones(size))).shape == (3, size)
    assert counters["stats"]["unique_graphs"] == 12


def test_a_variant_too_many_is_computed_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(module, "VARIANTS", 2)
    function = Compiled(scaled, backend="eager")
    with torch._dynamo.config.patch(recompile_limit=2), caplog.at_level(logging.WARNING, logger=module.__name__):
        for size in (2, 3, 4, 5, 2):
            assert function.compiled(torch.ones(3, size), torch.nn.Parameter(torch.ones(size))).shape == (3, size)
    assert counters["stats"]["unique_graphs"] == 2
    (record,) = [record for record in caplog.records if record.name == module.__name__]
    assert record.getMessage().startswith("scaled runs uncompiled, which is slower: ")


def test_what_cannot_be_compiled_says_so_once_and_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    function = Compiled(broken, backend="eager")
    with caplog.at_level(logging.WARNING, logger=module.__name__):
        for _ in range(2):
            assert torch.equal(function.compiled(torch.ones(3)), torch.full((3,), 3.0))
            assert torch.equal(function(torch.ones(3)), torch.full((3,), 3.0))
    (record,) = [record for record in caplog.records if record.name == module.__name__]
    assert record.getMessage().startswith("broken runs uncompiled, which is slower: ")


def test_the_options_and_the_environment_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    try:
        want_compiled(False)
        assert not wants_compiled()
    finally:
        want_compiled(True)
    assert wants_compiled()
    monkeypatch.setenv(SWITCH, "0")
    assert not wants_compiled()
