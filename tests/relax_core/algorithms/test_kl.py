"""KL estimators: hand values, a float64 loop reference, and finiteness anywhere."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.algorithms.kl import KL_KINDS, approx_kl


def loop_reference(log_probs, refs, kind, olds=None):
    """Schulman (2020), one token at a time in Python floats."""
    result = []
    for i, (p, r) in enumerate(zip(log_probs, refs, strict=True)):
        d = p - r
        value = {"k1": d, "k2": d * d / 2}.get(kind, math.exp(-d) - 1 + d)
        if olds is not None:
            value *= math.exp(p - olds[i])
        if kind == "low_var_kl":
            value = min(max(value, -10.0), 10.0)
        result.append(value)
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize(
    ("log_prob", "ref", "k1", "k2", "k3"),
    [
        (-1, -1, 0, 0, 0),
        (-1, -2, 1, 0.5, 0.36788),  # e^-1 - 1 + 1
        (-2, -1, -1, 0.5, 0.71828),  # e - 1 - 1
        (0, -100, 100, 5000, 99),  # e^-100 - 1 + 100
    ],
)
def test_hand_values(log_prob, ref, k1, k2, k3):
    p, r = torch.tensor([float(log_prob)]), torch.tensor([float(ref)])
    for kind, want in (("k1", k1), ("k2", k2), ("k3", k3), ("low_var_kl", min(k3, 10))):
        assert approx_kl(p, r, kind).item() == pytest.approx(want, rel=2e-5, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("unbiased", [False, True])
def test_any_finite_input_gives_a_finite_value_and_gradient(dtype, kind, unbiased):
    extreme = torch.finfo(dtype).max
    points = [-extreme, -1e5, -200.0, -100.0, -1.0, 0.0, 1.0, 100.0, extreme]
    p, r = (x.reshape(-1) for x in torch.meshgrid(torch.tensor(points), torch.tensor(points), indexing="ij"))
    p = p.to(dtype).requires_grad_()
    old = p.detach().flip(0) if unbiased else None
    value = approx_kl(p, r.to(dtype), kind, unbiased_old_log_probs=old)
    value.sum().backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(value).all()
    assert torch.isfinite(p.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_k3_beyond_its_bound_still_pulls_the_policy_towards_the_reference(dtype):
    # log p = -100, log ref = 0: d = -100, k3 = e^100 - 101 in exact arithmetic, dk3/dlogp = 1 - e^100 < 0
    p = torch.tensor([-100.0, -30.0, -19.0], dtype=dtype, requires_grad=True)
    value = approx_kl(p, torch.zeros(3, dtype=dtype), "k3")
    value.sum().backward()
    assert (p.grad < 0).all()
    assert value[0].item() > value[1].item() > value[2].item() == pytest.approx(math.exp(19) - 20, rel=1e-6)


def test_k3_of_a_small_gap_keeps_its_digits():
    # e^-d - 1 + d = d^2/2 - d^3/6 ...: 5.0e-9 for d = 1e-4, below the rounding of e^-d in float32
    value = approx_kl(torch.tensor([1e-4]), torch.zeros(1), "k3")
    assert value.item() == pytest.approx(5.0e-9, rel=0.01)


@pytest.mark.parametrize("kind", KL_KINDS)
def test_masked_tokens_give_zero_and_leak_no_nan(kind):
    p = torch.tensor([float("nan"), -1.0, -1.0], requires_grad=True)
    ref = torch.tensor([0.0, -2.0, float("nan")])
    value = approx_kl(p, ref, kind, unbiased_old_log_probs=p.detach(), mask=torch.tensor([0, 1, 0]))
    value.sum().backward()
    assert value[0] == value[2] == 0
    assert p.grad[0] == p.grad[2] == 0
    assert torch.isfinite(p.grad).all()


def test_unbiased_weight_comes_before_the_clamp_and_keeps_its_gradient():
    # d = -1, k3 = 0.71828; ratio e^3: 14.4, clamped to 10
    p = torch.tensor([-2.0], dtype=torch.float64, requires_grad=True)
    ref, old = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-5.0], dtype=torch.float64)
    assert approx_kl(p, ref, "low_var_kl", unbiased_old_log_probs=old).item() == 10
    # d/dp (e^(p-old) k3) = e^3 (k3 + 1 - e)
    approx_kl(p, ref, "k3", unbiased_old_log_probs=old).backward()
    assert p.grad.item() == pytest.approx(math.exp(3) * (math.e - 2 + 1 - math.e))


LOG_PROBS = st.lists(st.tuples(*[st.floats(-9, 0)] * 3), min_size=1, max_size=20)


@settings(max_examples=100, deadline=None)
@given(LOG_PROBS, st.sampled_from(KL_KINDS), st.booleans())
def test_equals_the_plain_loop(tokens, kind, unbiased):
    p, r, old = (list(column) for column in zip(*tokens, strict=True))
    want = loop_reference(p, r, kind, old if unbiased else None)
    args = [torch.tensor(x, dtype=torch.float64) for x in (p, r, old)]
    got = approx_kl(args[0], args[1], kind, unbiased_old_log_probs=args[2] if unbiased else None)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_gradcheck(kind):
    p = (-torch.rand(6, dtype=torch.float64) * 4).requires_grad_()
    r, old = -torch.rand(6, dtype=torch.float64) * 4, -torch.rand(6, dtype=torch.float64) * 4
    assert torch.autograd.gradcheck(lambda x: approx_kl(x, r, kind), p)
    assert torch.autograd.gradcheck(lambda x: approx_kl(x, r, kind, unbiased_old_log_probs=old), p)


def test_unknown_kind_names_the_choices():
    with pytest.raises(UserError, match="k1, k2, k3, low_var_kl"):
        approx_kl(torch.zeros(1), torch.zeros(1), "k4")
