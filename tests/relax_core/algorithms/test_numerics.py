"""Exponentials that go on as their tangent, and differences that stay finite."""

import math

import pytest
import torch

from relax_core.algorithms.numerics import MAX_EXPONENT, MAX_LOG_DIFFERENCE, log_difference, safe_exp, safe_expm1


@pytest.mark.parametrize(("function", "less"), [(safe_exp, 0.0), (safe_expm1, 1.0)])
def test_an_exponential_goes_on_as_its_tangent(function, less):
    # e^20 at 20; at 22 the tangent e^20 (1 + 2); the slope stays e^20 and never vanishes
    x = torch.tensor([-100.0, 0.5, 20.0, 22.0, 1e6], dtype=torch.float64, requires_grad=True)
    got = function(x)
    got.sum().backward()
    top = math.exp(MAX_EXPONENT)
    want = [math.exp(-100), math.exp(0.5), top, 3 * top, top * (1e6 - 19)]
    assert got.tolist() == pytest.approx([value - less for value in want], rel=1e-12)
    assert x.grad.tolist() == pytest.approx([math.exp(-100), math.exp(0.5), top, top, top], rel=1e-12)


def test_expm1_keeps_the_digits_of_a_small_exponent():
    assert safe_expm1(torch.tensor(1e-8)).item() == pytest.approx(1e-8, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_differences_are_wide_and_bounded(dtype):
    left = torch.tensor([-1.0, 0.0, -math.inf, torch.finfo(dtype).max], dtype=dtype)
    right = torch.tensor([-1.5, math.inf, 0.0, -torch.finfo(dtype).max], dtype=dtype)
    got = log_difference(left, right)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert got.tolist() == [0.5, -MAX_LOG_DIFFERENCE, -MAX_LOG_DIFFERENCE, MAX_LOG_DIFFERENCE]
