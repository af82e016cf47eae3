"""Clipped policy loss: hand values, a float64 loop reference and its gradient."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms.losses import policy_loss


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dual", [None, 3.0])
def test_extreme_ratios_stay_finite(dtype, dual):
    points = torch.tensor([-torch.finfo(dtype).max, -1e4, -100.0, 0.0, 100.0, torch.finfo(dtype).max])
    new, old, advantages = (
        x.reshape(-1) for x in torch.meshgrid(points, points, torch.tensor([-5.0, 0, 5.0]), indexing="ij")
    )
    new = new.to(dtype).requires_grad_()
    got = policy_loss(new, old.to(dtype), advantages.to(dtype), eps_clip=0.2, eps_clip_c=dual)
    got.loss.sum().backward()
    assert torch.isfinite(got.loss).all()
    assert torch.isfinite(got.ppo_kl).all()
    assert torch.isfinite(new.grad).all()


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
