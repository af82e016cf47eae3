"""Losses of tokens: hand values, float64 loop references and their gradients, extremes, masks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms.losses import (
    cispo_loss,
    gspo_loss,
    policy_loss,
    reinforce_loss,
    sapo_loss,
    sft_loss,
    value_loss,
)
from relax_core.algorithms.sequences import Sequences


def loop_reference(new, old, advantages, low, high, dual):
    """PPO (2017) eq. 7 with DAPO's upper bound and the dual clip, token by token; also d loss / d new."""
    values, gradients, clipped = [], [], []
    for n, o, a in zip(new, old, advantages, strict=True):
        ratio = math.exp(n - o)
        bounded = min(max(ratio, 1 - low), 1 + high)
        value, slope = -ratio * a, -ratio * a  # d ratio / d new = ratio
        if -bounded * a > value:
            value, slope = -bounded * a, (-ratio * a if bounded == ratio else 0.0)
            clipped.append(True)
        else:
            clipped.append(False)
        if dual is not None and a < 0 and value > -dual * a:
            value, slope = -dual * a, 0.0
        values.append(value)
        gradients.append(slope)
    return (
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(gradients, dtype=torch.float64),
        torch.tensor(clipped),
    )


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "dual", "want"),
    [
        (1.0, 1.0, None, -1.28),  # e > 1.28: clipped from above
        (-1.0, 2.0, None, 7.389056),  # -e^2 A: the plain branch is larger
        (-1.0, 2.0, 3.0, 3.0),  # bounded by -c A
        (-1.0, -1.0, None, 0.8),  # e^-1 < 0.8: -0.8 A
        (1.0, 2.0, 3.0, -1.28),  # the dual clip leaves positive advantages alone
        (0.0, 2.0, 3.0, 0.0),
    ],
)
def test_hand_values(advantage, log_ratio, dual, want):
    got = policy_loss(
        torch.tensor([log_ratio - 1.0]), torch.tensor([-1.0]), torch.tensor([advantage]),
        eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=dual,
    )  # fmt: skip
    assert got.loss.item() == pytest.approx(want, abs=1e-6)
    assert got.ppo_kl.item() == pytest.approx(-log_ratio)


def test_upper_clip_defaults_to_the_lower_one():
    got = policy_loss(torch.tensor([1.0]), torch.zeros(1), torch.ones(1), eps_clip=0.2)
    assert got.loss.item() == pytest.approx(-1.2)
    assert got.clipped.item()


def test_on_policy_tokens_give_minus_advantage_and_its_policy_gradient():
    new = torch.tensor([-0.3, -2.0], requires_grad=True)
    got = policy_loss(new, new.detach(), torch.tensor([2.0, -1.0]), eps_clip=0.2)
    got.loss.sum().backward()
    assert got.loss.tolist() == [-2.0, 1.0]
    assert new.grad.tolist() == [-2.0, 1.0]
    assert not got.clipped.any()


TOKENS = st.lists(st.tuples(st.floats(-6, 0), st.floats(-6, 0), st.floats(-3, 3)), min_size=1, max_size=20)


@settings(max_examples=150, deadline=None)
@given(TOKENS, st.sampled_from([(0.2, 0.2), (0.2, 0.28), (0.1, 1.0)]), st.sampled_from([None, 1.5, 3.0]))
def test_equals_the_plain_loop(tokens, eps, dual):
    columns = [list(column) for column in zip(*tokens, strict=True)]
    values, gradients, clipped = loop_reference(*columns, *eps, dual)
    new, old, advantages = (torch.tensor(column, dtype=torch.float64) for column in columns)
    new.requires_grad_()
    got = policy_loss(new, old, advantages, eps_clip=eps[0], eps_clip_high=eps[1], eps_clip_c=dual)
    torch.testing.assert_close(got.loss, values, rtol=1e-9, atol=1e-9)
    got.loss.sum().backward()
    torch.testing.assert_close(got.clipped, clipped)
    # Where both branches are equal (ratio inside the clip range) torch splits the same gradient between them.
    torch.testing.assert_close(new.grad, gradients, rtol=1e-9, atol=1e-9)


# -- the other losses --------------------------------------------------------------------------------------------------


def f64(*columns):
    return tuple(torch.tensor(column, dtype=torch.float64) for column in columns)


def test_gspo_by_hand():
    # log-ratios 0.1, -0.2, 0.3: mean 0.0666667, ratio 1.06894 for every token; A = 1 unclipped, A = 2 for the third
    old = torch.zeros(3, dtype=torch.float64)
    new, advantages = f64([0.1, -0.2, 0.3], [1, 1, 2])
    new.requires_grad_()
    sequences = Sequences(torch.tensor([0, 3]))
    got = gspo_loss(new, old, advantages, eps_clip=0.2, mask=torch.ones(3), sequences=sequences)
    torch.testing.assert_close(got.loss, -1.0689391 * advantages, rtol=1e-6, atol=0)
    torch.testing.assert_close(got.ppo_kl, torch.full((3,), -0.2 / 3, dtype=torch.float64))
    got.loss.sum().backward()
    # d/d new_t of -(1 + 1 + 2) e^mean = -4 e^mean / 3
    torch.testing.assert_close(new.grad, torch.full((3,), -4 * 1.0689391 / 3, dtype=torch.float64), rtol=1e-6, atol=0)
    got = gspo_loss(new, old, advantages, eps_clip=0.05, mask=torch.ones(3), sequences=sequences)
    assert got.clipped.all()
    torch.testing.assert_close(got.loss, -1.05 * advantages)


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "want", "slope", "clipped"),
    [
        (1.0, 0.0, -2.0, -1.0, False),  # -4/1 * 1/2; the gate's slope at ratio 1 is the surrogate's
        (-1.0, 0.0, 4 / 1.05 / 2, 1.0, False),
        # ratio e: p = s(1.718282) = 0.847907, loss -4 p; slope -e 4 p (1 - p); 4 p (1 - p) = 0.516 < 0.9
        (1.0, 1.0, -3.391630, -1.402203, True),
        (0.0, 1.0, 0.0, 0.0, True),  # takes the lower temperature; no gradient either way
    ],
)
def test_sapo_by_hand(advantage, log_ratio, want, slope, clipped):
    new, old, advantages = f64([log_ratio], [0.0], [advantage])
    got = sapo_loss(new.requires_grad_(), old, advantages, sapo_tau_pos=1.0, sapo_tau_neg=1.05)
    got.loss.backward()
    assert got.loss.item() == pytest.approx(want, abs=1e-6)
    assert new.grad.item() == pytest.approx(slope, abs=1e-6)
    assert got.clipped.item() is clipped


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "weight"),
    [
        (1.0, 1.0, 1.28),  # bounded above
        (1.0, -1.0, math.exp(-1)),  # and not below
        (-1.0, -1.0, 0.8),  # bounded below
        (-1.0, 1.0, math.e),  # and not above
        (0.0, 1.0, 1.28),
    ],
)
def test_cispo_by_hand(advantage, log_ratio, weight):
    new, old, advantages = f64([-2.0], [-2.0 - log_ratio], [advantage])
    got = cispo_loss(new.requires_grad_(), old, advantages, eps_clip=0.2, eps_clip_high=0.28)
    got.loss.backward()
    assert got.loss.item() == pytest.approx(weight * advantage * 2.0)
    assert new.grad.item() == pytest.approx(-weight * advantage)  # clipped tokens keep their gradient
    assert got.clipped.item() is (weight in (1.28, 0.8))


def test_reinforce_by_hand():
    new, old, advantages = f64([-2.0, -1.0], [-9.0, 0.0], [3.0, -1.0])
    got = reinforce_loss(new.requires_grad_(), old, advantages)
    got.loss.sum().backward()
    assert got.loss.tolist() == [6.0, -1.0]
    assert new.grad.tolist() == [-3.0, 1.0]  # whatever the old policy was
    assert not got.clipped.any()
    assert got.ppo_kl.tolist() == [-7.0, 1.0]


def test_value_loss_by_hand():
    # clip 0.5, old 0. V 2, R 1: (2 - 1)² = 1 against (0.5 - 1)² = 0.25. V 2, R 3: 1 against 6.25, and no gradient.
    # V 0.3, R 1: 0.49 either way, gradient 2 (0.3 - 1)
    values, old, returns = f64([2.0, 2.0, 0.3], [0.0, 0.0, 0.0], [1.0, 3.0, 1.0])
    got = value_loss(values.requires_grad_(), old, returns, value_clip=0.5)
    got.loss.sum().backward()
    torch.testing.assert_close(got.loss.tolist(), [1.0, 6.25, 0.49])
    torch.testing.assert_close(values.grad.tolist(), [2.0, 0.0, -1.4])
    assert got.clipped.tolist() == [True, True, False]


def test_sft_loss_is_the_negative_log_likelihood():
    new = torch.tensor([-2.0, float("nan")], requires_grad=True)
    got = sft_loss(new, mask=torch.tensor([1, 0]))
    got.sum().backward()
    assert got.tolist() == [2.0, 0.0]
    assert new.grad.tolist() == [-1.0, 0.0]


def other_reference(name, rows, low, high, dual, tau_pos, tau_neg):
    """Losses of samples given as lists of (new, old, A, trained), in Python floats."""
    result = []
    for row in rows:
        trained = [(n, o) for n, o, _, m in row if m]
        mean = sum(n - o for n, o in trained) / max(len(trained), 1)
        for n, o, a, m in row:
            if not m:
                result.append(0.0)
            elif name == "gspo":
                result.append(loop_reference([mean], [0.0], [a], low, high, dual)[0].item())
            elif name == "sapo":
                tau = tau_pos if a > 0 else tau_neg
                result.append(-4 / tau / (1 + math.exp(-tau * (math.exp(n - o) - 1))) * a)
            elif name == "cispo":
                ratio = math.exp(n - o)
                result.append(-(min(ratio, 1 + high) if a >= 0 else max(ratio, 1 - low)) * a * n)
            else:
                result.append(-a * n)
    return torch.tensor(result, dtype=torch.float64)


def run_other(name, new, old, advantages, mask, sequences, dual=None):
    if name == "gspo":
        return gspo_loss(
            new, old, advantages, eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=dual, mask=mask, sequences=sequences
        )
    if name == "sapo":
        return sapo_loss(new, old, advantages, sapo_tau_pos=1.0, sapo_tau_neg=1.05, mask=mask)
    if name == "cispo":
        return cispo_loss(new, old, advantages, eps_clip=0.2, eps_clip_high=0.28, mask=mask)
    if name == "ppo":
        return policy_loss(new, old, advantages, eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=dual, mask=mask)
    return reinforce_loss(new, old, advantages, mask=mask)


OTHERS = ["gspo", "sapo", "cispo", "reinforce"]
ALL = ["ppo", *OTHERS]
ROWS = st.lists(
    st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3), st.booleans()), max_size=8),
    min_size=1, max_size=5,
)  # fmt: skip


def packed(rows, dtype=torch.float64):
    columns = [[token[k] for row in rows for token in row] for k in range(4)]
    offsets = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()])
    new, old, advantages = (torch.tensor(column, dtype=dtype) for column in columns[:3])
    return new, old, advantages, torch.tensor(columns[3], dtype=torch.bool), Sequences(offsets)


@settings(max_examples=150, deadline=None)
@given(ROWS, st.sampled_from(OTHERS), st.sampled_from([None, 3.0]))
def test_other_losses_equal_their_loops(rows, name, dual):
    new, old, advantages, mask, sequences = packed(rows)
    got = run_other(name, new, old, advantages, mask, sequences, dual)
    want = other_reference(name, rows, 0.2, 0.28, dual, 1.0, 1.05)
    torch.testing.assert_close(got.loss, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["ppo", "gspo", "sapo"])
def test_gradcheck(name):
    # away from the kinks of the clip: log-ratios of 0.1 to 0.15 and of 0.5 to 0.6
    generator = torch.Generator().manual_seed(1)
    old = -torch.rand(6, generator=generator, dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 2.0, -0.5, 1.0, -2.0], dtype=torch.float64)
    mask, sequences = torch.tensor([1, 1, 0, 1, 1, 1]), Sequences(torch.tensor([0, 2, 4, 6]))
    new = (old + torch.tensor([0.1, 0.12, 0.0, 0.5, 0.55, 0.6], dtype=torch.float64)).requires_grad_()

    def loss(x):
        return run_other(name, x, old, advantages, mask, sequences).loss

    assert torch.autograd.gradcheck(loss, new)


@pytest.mark.parametrize("name", ["cispo", "reinforce"])
def test_weights_of_log_probs_are_constants(name):
    # d loss / d new is the loss / new: the weight does not depend on new
    new, old, advantages = f64([-0.5, -1.0, -2.0], [-1.0, -0.5, -2.5], [1.0, -1.0, 0.5])
    got = run_other(name, new.requires_grad_(), old, advantages, None, None)
    got.loss.sum().backward()
    torch.testing.assert_close(new.grad, (got.loss / new).detach())


def test_value_loss_gradcheck_and_loop():
    values, old, returns = f64([0.3, 1.4, -2.0, 0.9], [0.1, 0.2, 0.0, 0.8], [1.0, 0.0, -1.0, 3.0])
    want = [
        max((v - r) ** 2, (min(max(v, o - 0.5), o + 0.5) - r) ** 2)
        for v, o, r in zip(values, old, returns, strict=True)
    ]
    values.requires_grad_()
    got = value_loss(values, old, returns, value_clip=0.5)
    torch.testing.assert_close(got.loss, torch.stack(want).to(got.loss))
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old, returns, value_clip=0.5).loss, values)


# -- extremes and masks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("name", ALL)
def test_extreme_ratios_stay_finite(dtype, dual, name):
    points = torch.tensor([-torch.finfo(dtype).max, -1e4, -100.0, 0.0, 100.0, torch.finfo(dtype).max])
    new, old, advantages = (
        x.reshape(-1) for x in torch.meshgrid(points, points, torch.tensor([-5.0, 0, 5.0]), indexing="ij")
    )
    new = new.to(dtype).requires_grad_()
    sequences = Sequences(torch.arange(0, len(new) + 1, 2))
    mask = torch.ones(len(new), dtype=torch.bool)
    got = run_other(name, new, old.to(dtype), advantages.to(dtype), mask, sequences, dual)
    got.loss.sum().backward()
    assert got.loss.dtype == torch.float32
    assert torch.isfinite(got.loss).all()
    assert torch.isfinite(got.ppo_kl).all()
    assert torch.isfinite(new.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_values_stay_finite(dtype):
    points = torch.tensor([-torch.finfo(dtype).max, -1e4, 0.0, 1e4, torch.finfo(dtype).max])
    values, old, returns = (x.reshape(-1).to(dtype) for x in torch.meshgrid(points, points, points, indexing="ij"))
    got = value_loss(values.requires_grad_(), old, returns, value_clip=0.2)
    got.loss.sum().backward()
    assert torch.isfinite(got.loss).all()
    assert torch.isfinite(values.grad).all()


@settings(max_examples=100, deadline=None)
@given(ROWS, st.sampled_from(ALL), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_what_masked_tokens_hold_changes_nothing(rows, name, dtype):
    new, old, advantages, mask, sequences = packed(rows, dtype)
    want_new, got_new = new.clone().requires_grad_(), torch.where(mask, new, torch.nan).requires_grad_()
    want = run_other(name, want_new, old, advantages, mask, sequences)
    got = run_other(
        name, got_new, torch.where(mask, old, torch.inf), torch.where(mask, advantages, torch.nan), mask, sequences
    )
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    want.loss.sum().backward()
    got.loss.sum().backward()
    torch.testing.assert_close(got_new.grad, want_new.grad, rtol=0, atol=0)
    assert (got.loss[~mask] == 0).all()
    assert not got.clipped[~mask].any()
    assert (got_new.grad[~mask] == 0).all()


def test_masked_values_leak_nothing():
    nan = float("nan")
    values = torch.tensor([nan, 1.0], requires_grad=True)
    got = value_loss(
        values, torch.tensor([0.0, 1.0]), torch.tensor([nan, 0.0]), value_clip=0.2, mask=torch.tensor([0, 1])
    )
    got.loss.sum().backward()
    assert got.loss.tolist() == [0.0, 1.0]
    assert values.grad.tolist() == [0.0, 2.0]
    assert not got.clipped.any()


def test_nan_in_masked_tokens_leaks_neither_value_nor_gradient():
    nan = float("nan")
    new = torch.tensor([nan, -1.0, -1.0, -1.0], requires_grad=True)
    old, advantages = torch.tensor([-1.0, nan, -1.0, -1.5]), torch.tensor([1.0, 1.0, nan, 1.0])
    got = policy_loss(new, old, advantages, eps_clip=0.2, mask=torch.tensor([0, 0, 0, 1], dtype=torch.uint8))
    got.loss.sum().backward()
    assert (got.loss[:3] == 0).all()
    assert not got.clipped[:3].any()
    assert (new.grad[:3] == 0).all()
    assert torch.isfinite(got.loss).all()


def test_only_the_new_log_probs_get_a_gradient():
    new, old, advantages = (torch.zeros(2, requires_grad=True) for _ in range(3))
    got = policy_loss(new, old, advantages + 1, eps_clip=0.2)
    got.loss.sum().backward()
    assert old.grad is None
    assert advantages.grad is None
    assert not got.ppo_kl.requires_grad
