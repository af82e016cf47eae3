"""The norm and the activation against torch's own."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from relax_core.training.activation import SwiGLU
from relax_core.training.norm import RMSNorm


def test_the_activation_has_the_bits_and_gradients_of_the_plain_formula():
    x = torch.randn(5, 1, 12, requires_grad=True)
    gate, up = x.chunk(2, -1)
    plain, found = F.silu(gate) * up, SwiGLU()(x)
    assert torch.equal(found, plain)
    weight = torch.randn_like(found)
    torch.testing.assert_close(torch.autograd.grad(found, x, weight), torch.autograd.grad(plain, x, weight))


@pytest.mark.parametrize("size", [(7, 1, 16), (7, 1, 3, 16)])  # hidden states, and query heads
def test_the_norm_has_the_values_and_gradients_of_torchs(size: tuple[int, ...]):
    norm = RMSNorm(SimpleNamespace(sequence_parallel=False), 16, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(size, requires_grad=True)
    plain, found = F.rms_norm(x, (16,), norm.weight, 1e-6), norm(x)
    torch.testing.assert_close(found, plain)
    weight = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, (x, norm.weight), weight),
        torch.autograd.grad(plain, (x, norm.weight), weight),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_the_norm_in_bf16_rounds_once_as_torchs_does():
    norm = RMSNorm(SimpleNamespace(sequence_parallel=False), 64).bfloat16()
    x = torch.randn(50, 64, dtype=torch.bfloat16)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (64,), norm.weight, 1e-5), rtol=2**-7, atol=0)
    assert norm(x).dtype == torch.bfloat16


def test_under_sequence_parallelism_the_weight_is_marked_for_the_sum_over_ranks():
    assert RMSNorm(SimpleNamespace(sequence_parallel=True), 4).weight.sequence_parallel is True
