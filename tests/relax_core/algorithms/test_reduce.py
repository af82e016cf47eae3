"""Reductions: the two means by hand, and that no split or order of the batch changes loss or gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms.kl import approx_kl
from relax_core.algorithms.losses import policy_loss
from relax_core.algorithms.reduce import (
    StepSize,
    constant_length,
    sample_mean,
    sample_token_counts,
    step_weights,
    summed,
    token_mean,
    weighted_sum,
)
from relax_core.batching.plan import plan_updates


def offsets_of(lengths):
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])


def test_token_mean_and_sample_mean_by_hand():
    # [[1, 1, 1, 1], [3]]: tokens (4 + 3) / 5 = 1.4; samples (1 + 3) / 2 = 2
    values, mask = torch.tensor([1.0, 1, 1, 1, 3]), torch.ones(5)
    assert token_mean(values, mask, global_tokens=5).item() == pytest.approx(1.4)
    assert sample_mean(values, mask, offsets_of([4, 1]), global_samples=2).item() == pytest.approx(2.0)


def test_two_micro_batches_add_up_to_the_mean_of_the_whole():
    # split into [1, 1, 1, 1] and [3]: still 1.4 (not (1 + 3) / 2) and 2.0
    parts = [(torch.ones(4), offsets_of([4])), (torch.tensor([3.0]), offsets_of([1]))]
    by_token = sum(token_mean(v, torch.ones_like(v), global_tokens=5) for v, _ in parts)
    by_sample = sum(sample_mean(v, torch.ones_like(v), o, global_samples=2) for v, o in parts)
    assert by_token.item() == pytest.approx(1.4)
    assert by_sample.item() == pytest.approx(2.0)


def test_masked_tokens_do_not_count_and_fully_masked_samples_give_zero():
    # samples [2, NaN*], [inf*, NaN*], [4, 6]: (2 + 0 + 5) / 3; tokens (2 + 4 + 6) / 3
    values = torch.tensor([2.0, float("nan"), float("inf"), float("nan"), 4.0, 6.0], requires_grad=True)
    mask = torch.tensor([1, 0, 0, 0, 1, 1], dtype=torch.uint8)
    got = sample_mean(values, mask, offsets_of([2, 2, 2]), global_samples=3)
    assert got.item() == pytest.approx(7 / 3)
    got.backward()
    torch.testing.assert_close(values.grad, torch.tensor([1 / 3, 0, 0, 0, 1 / 6, 1 / 6]))
    assert token_mean(values, mask, global_tokens=3).item() == pytest.approx(4.0)


def test_nothing_to_train_gives_zero_and_zero_gradient():
    values = torch.full((3,), float("nan"), requires_grad=True)
    loss = sample_mean(values, torch.zeros(3), offsets_of([3]), global_samples=1)
    loss = loss + token_mean(values, torch.zeros(3), global_tokens=0)
    loss.backward()
    assert loss.item() == 0
    assert (values.grad == 0).all()


def test_no_samples_is_a_dummy_micro_batch_of_zero():
    empty = torch.zeros(0, requires_grad=True)
    loss = sample_mean(empty, torch.zeros(0), torch.zeros(1, dtype=torch.int64), global_samples=4)
    loss.backward()
    assert loss.item() == 0


def test_samples_without_tokens_are_allowed():
    assert sample_token_counts(torch.ones(3), offsets_of([0, 2, 0, 1])).tolist() == [0, 2, 0, 1]
    got = sample_mean(torch.tensor([1.0, 3, 5]), torch.ones(3), offsets_of([0, 2, 0, 1]), global_samples=4)
    assert got.item() == pytest.approx((2 + 5) / 4)


def test_parts_of_a_sample_add_up_when_its_token_count_is_given():
    # a sample of 4 tokens split 1 + 3 between context-parallel ranks
    counts = torch.tensor([4])
    values = torch.tensor([4.0, 1, 2, 3])
    left = sample_mean(values[:1], torch.ones(1), offsets_of([1]), global_samples=1, token_counts=counts)
    right = sample_mean(values[1:], torch.ones(3), offsets_of([3]), global_samples=1, token_counts=counts)
    assert (left + right).item() == pytest.approx(2.5)


def test_the_weights_of_a_step_and_the_sum_that_a_custom_loss_gets():
    # [1, 2 (masked)], [3, 5]: samples (1 + 4) / 2 = 2.5, summed 5; tokens (1 + 3 + 5) / 3 = 3, summed 9
    values, mask, size = torch.tensor([1.0, 2, 3, 5]), torch.tensor([1, 0, 1, 1]), StepSize(2, 3)
    for per_token, mean, total in ((False, 2.5, 5.0), (True, 3.0, 9.0)):
        weights = step_weights(mask, offsets_of([2, 2]), size, per_token=per_token)
        assert weighted_sum(values, weights).item() == pytest.approx(mean)
        assert summed(weights, size, per_token=per_token)(values).item() == pytest.approx(total)
    assert StepSize(0, 0).divisor(True) == StepSize(0, 0).divisor(False) == 1


def test_a_constant_length():
    # (1 + 3) / 10 and 5 / 10: every token weighs the same, whatever its response
    masks = [torch.tensor([1, 0, 1]), torch.tensor([1])]
    reducer = constant_length(10)([5, 2], [3, 1], masks, False)
    assert reducer(torch.tensor([1.0, float("nan"), 3, 5])).item() == pytest.approx(0.9)
    with pytest.raises(ValueError, match="at least 1"):
        constant_length(0)


def loop_reference(rows, per_token):
    """Semantics of the two means, in plain loops over (loss, mask) rows in Python floats."""
    if per_token:
        kept = [x for row in rows for x, m in row if m]
        return sum(kept) / max(len(kept), 1)
    total = 0.0
    for row in rows:
        kept = [x for x, m in row if m]
        total += sum(kept) / max(len(kept), 1)
    return total / len(rows)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.floats(-50, 50), st.booleans()), max_size=8), min_size=1, max_size=10), st.booleans()
)
def test_equals_the_plain_loop(rows, per_token):
    values = torch.tensor([x for row in rows for x, _ in row], dtype=torch.float64)
    mask = torch.tensor([m for row in rows for _, m in row], dtype=torch.bool)
    if per_token:
        got = token_mean(values, mask, global_tokens=int(mask.sum()))
    else:
        got = sample_mean(values, mask, offsets_of([len(row) for row in rows]), global_samples=len(rows))
    assert got.item() == pytest.approx(loop_reference(rows, per_token), rel=1e-6, abs=1e-5)


class Batch:
    """Samples of random tokens under a softmax policy with one parameter vector, so that gradients mix all tokens."""

    def __init__(self, lengths, seed):
        generator = torch.Generator().manual_seed(seed)
        self.lengths, tokens = lengths, sum(lengths)
        self.features = torch.randn(tokens, 5, generator=generator)
        self.old = -torch.rand(tokens, generator=generator) * 2
        self.ref = -torch.rand(tokens, generator=generator) * 2
        self.advantages = torch.randn(tokens, generator=generator)
        self.mask = (torch.rand(tokens, generator=generator) > 0.3).to(torch.uint8)
        self.theta = torch.randn(5, generator=generator)

    def tokens_of(self, samples):
        offsets = offsets_of(self.lengths)
        ranges = [torch.arange(int(offsets[i]), int(offsets[i + 1])) for i in samples]
        return torch.cat([torch.zeros(0, dtype=torch.int64), *ranges])

    def loss_and_gradient(self, micro_batches, per_token):
        """Accumulated over micro-batches (lists of samples)."""
        theta = self.theta.clone().requires_grad_()
        total = torch.zeros(())
        for samples in micro_batches:
            at = self.tokens_of(samples)
            mask = self.mask[at]
            new = -torch.nn.functional.softplus(self.features[at] @ theta)
            per = policy_loss(new, self.old[at], self.advantages[at], eps_clip=0.2, eps_clip_high=0.28, mask=mask).loss
            per = per + 0.1 * approx_kl(new, self.ref[at], "k3", mask=mask)
            if per_token:
                part = token_mean(per, mask, global_tokens=int(self.mask.sum()))
            else:
                offsets = offsets_of([self.lengths[i] for i in samples])
                part = sample_mean(per, mask, offsets, global_samples=len(self.lengths))
            part.backward()
            total += part.detach()
        return total, theta.grad


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
    dp_size=st.integers(1, 4),
    budget=st.integers(1, 30),
    balance=st.booleans(),
    per_token=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_order_packing_micro_batches_and_ranks_do_not_change_loss_or_gradient(
    lengths, seed, dp_size, budget, balance, per_token, random
):
    batch = Batch(lengths, seed)
    whole = list(range(len(lengths)))
    want, want_gradient = batch.loss_and_gradient([whole], per_token)
    random.shuffle(whole)
    (plan,) = plan_updates(lengths, dp_size=dp_size, max_tokens=budget, balance=balance)
    split = [micro_batch for rank in plan.micro_batches for micro_batch in rank]
    for micro_batches in ([whole], [[i] for i in whole], split):
        loss, gradient = batch.loss_and_gradient(micro_batches, per_token)
        torch.testing.assert_close(loss, want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient, want_gradient, rtol=1e-5, atol=1e-6)
