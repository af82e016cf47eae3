"""Off-policy corrections: cases by hand, loops, the contract of user functions, extremes."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.algorithms.corrections import (
    discard,
    icepop_function,
    importance_sums,
    mismatch_metrics,
    off_policy_sequences,
    reject,
    rejection_function,
    tis_function,
    truncate,
    user_correction,
)
from relax_core.algorithms.metrics import effective_sample_fraction
from relax_core.algorithms.sequences import Sequences

NAN = float("nan")
LOG_RATIOS = torch.tensor([0.1, -1.5, 0.8, -10.0, 0.3])
# e^x: 1.105, 0.223, 2.226, 0.0000454, 1.350


def apply(function, low, high, loss=None):
    loss = torch.ones(5) if loss is None else loss
    return function(loss, LOG_RATIOS - 2.0, torch.full((5,), -2.0), torch.ones(5), low=low, high=high)


def test_truncation_bounds_the_weights():
    got = apply(truncate, 0.0, 2.0)
    torch.testing.assert_close(
        got.loss, torch.tensor([1.10517, 0.22313, 2.0, 0.0000454, 1.34986]), rtol=1e-5, atol=1e-7
    )
    assert got.mask is None
    assert got.metrics["tis_clipfrac"].tolist() == [0, 0, 1, 0, 0]
    torch.testing.assert_close(got.metrics["tis"][2], torch.tensor(0.8).exp())  # as it was
    torch.testing.assert_close(got.metrics["tis_abs"][1], 1 - torch.tensor(-1.5).exp())
    assert apply(truncate, 0.5, 2.0).loss[3] == 0.5


def test_icepop_zeroes_and_keeps_the_denominator():
    got = apply(discard, 0.5, 2.0)
    torch.testing.assert_close(got.loss, torch.tensor([1.10517, 0, 0, 0, 1.34986]), rtol=1e-5, atol=0)
    assert got.mask is None
    assert got.metrics["tis_clipfrac"].tolist() == [0, 1, 1, 1, 0]


def test_rejection_masks():
    got = apply(reject, 0.5, 2.0)
    assert got.loss.tolist() == [1, 0, 0, 0, 1]  # what is kept has no weight
    assert got.mask.tolist() == [True, False, False, False, True]
    assert got.metrics["tis_clipfrac"].tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize("function", [truncate, discard, reject])
def test_weights_carry_no_gradient(function):
    loss, train = torch.ones(5, requires_grad=True), (LOG_RATIOS - 2.0).requires_grad_()
    got = function(loss, train, torch.full((5,), -2.0), torch.ones(5), low=0.5, high=2.0)
    got.loss.sum().backward()
    assert train.grad is None
    torch.testing.assert_close(loss.grad, got.loss.detach())  # of loss 1: its weight
    assert not any(values.requires_grad for values in got.metrics.values())


@pytest.mark.parametrize("function", [truncate, discard, reject])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extremes_stay_finite_and_masked_tokens_silent(function, dtype):
    most = torch.finfo(dtype).max
    train = torch.tensor([0.0, -most, -100.0, NAN], dtype=dtype)
    rollout = torch.tensor([-most, 0.0, -1.0, NAN], dtype=dtype)
    mask = torch.tensor([1, 1, 1, 0])
    loss = torch.tensor([1.0, 1.0, 1.0, NAN], requires_grad=True)
    got = function(loss, train, rollout, mask, low=0.0, high=2.0)
    got.loss.sum().backward()
    assert torch.isfinite(got.loss).all()
    assert torch.isfinite(loss.grad).all()
    assert got.loss[3] == 0
    assert loss.grad[3] == 0
    for values in got.metrics.values():
        assert torch.isfinite(values).all()


def test_mismatch_by_hand():
    # train -1, rollout -2: 1 and e - 1 - 1; equal: 0 and 0; masked NaN: 0
    got = mismatch_metrics(torch.tensor([-1.0, -1, NAN]), torch.tensor([-2.0, -1, 0]), torch.tensor([1, 1, 0]))
    torch.testing.assert_close(got["mismatch_kl"], torch.tensor([1.0, 0, 0]))
    torch.testing.assert_close(got["mismatch_k3_kl"], torch.tensor([math.e - 2, 0, 0]))


# -- off-policy sequence masking ---------------------------------------------------------------------------------------


def test_sequences_that_moved_too_far_lose_their_tokens_of_negative_advantage():
    # old - new: [0.3, 0.1 (masked: NaN)] mean 0.3; [0.1, 0.3, -0.1] mean 0.1; [] and [0.5]
    old = torch.tensor([0.0, NAN, 0.0, 0.0, 0.0, 0.0])
    new = torch.tensor([-0.3, NAN, -0.1, -0.3, 0.1, -0.5])
    advantages = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0, 1.0])
    mask, sequences = torch.tensor([1, 0, 1, 1, 1, 1]), Sequences(torch.tensor([0, 2, 5, 5, 6]))
    got = off_policy_sequences(new, old, advantages, mask, sequences, delta=0.2)
    assert got.tolist() == [True, False, False, False, False, False]
    got = off_policy_sequences(new, old, advantages, mask, sequences, delta=0.05)
    assert got.tolist() == [True, False, True, True, True, False]


TOKEN = st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.sampled_from([-1.0, 0.0, 1.0]), st.booleans())
ROWS = st.lists(st.lists(TOKEN, max_size=6), max_size=6)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.floats(-1, 1))
def test_sequence_masking_equals_the_loop(rows, delta):
    want = []
    for row in rows:
        moved = [old - new for new, old, _, m in row if m]
        far = sum(moved) / max(len(moved), 1) > delta
        want += [bool(m and a < 0 and far) for _, _, a, m in row]
    columns = [torch.tensor([token[k] for row in rows for token in row], dtype=torch.float64) for k in range(4)]
    offsets = torch.tensor([0, *torch.tensor([len(row) for row in rows], dtype=torch.int64).cumsum(0).tolist()])
    got = off_policy_sequences(*columns, Sequences(offsets), delta=delta)
    moved_by_hand = [
        abs(sum(o - n for n, o, _, m in row if m) / max(sum(m for *_, m in row), 1) - delta) for row in rows
    ]
    if all(gap > 1e-9 for gap in moved_by_hand):  # not on the edge, where rounding decides
        assert got.tolist() == want


# -- effective sample size ---------------------------------------------------------------------------------------------


def test_effective_sample_size_by_hand():
    # weights 1, 3 and a masked one: 16 / (2 x 10) = 0.8; equal weights: 1; adds up over parts
    train, rollout = torch.tensor([0.0, math.log(3), NAN]), torch.tensor([0.0, 0.0, NAN])
    mask = torch.tensor([1, 1, 0])
    whole = importance_sums(train, rollout, mask)
    torch.testing.assert_close(whole, torch.tensor([4.0, 10.0, 2.0], dtype=torch.float64))
    assert effective_sample_fraction(*whole.tolist()) == pytest.approx(0.8)
    parts = sum(importance_sums(train[at], rollout[at], mask[at]) for at in ([0], [1, 2], []))
    torch.testing.assert_close(parts, whole)
    assert effective_sample_fraction(3.0, 3.0, 3.0) == 1.0
    assert math.isnan(effective_sample_fraction(0.0, 0.0, 0.0))


# -- functions of the user ---------------------------------------------------------------------------------------------


def call_user(function, **options):
    args = SimpleNamespace(tis_clip=2.0, tis_clip_low=0.5, **options)
    correct = user_correction(function, args)
    return correct(torch.ones(5), LOG_RATIOS - 2.0, torch.full((5,), -2.0), torch.ones(5), [5, 4], [3, 2])


@pytest.mark.parametrize(
    ("function", "built_in"), [(tis_function, truncate), (icepop_function, discard), (rejection_function, reject)]
)
def test_shipped_functions_keep_the_contract(function, built_in):
    got, want = call_user(function), apply(built_in, 0.5, 2.0)
    torch.testing.assert_close(got.loss, want.loss)
    kept = torch.ones(5, dtype=torch.bool) if want.mask is None else want.mask
    assert got.mask.tolist() == kept.tolist()
    assert set(got.metrics) == {"tis", "tis_clipfrac", "tis_abs"}


def test_a_function_gets_one_entry_a_sample_and_all_options():
    seen = {}

    def mine(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths):
        seen.update(args=args.mine, train=[len(x) for x in train_log_probs], total=total_lengths, own=response_lengths)
        masks = [torch.zeros_like(mask) if len(mask) == 2 else mask for mask in loss_masks]
        return pg_loss * 3, masks, {"mine": pg_loss.detach()}

    got = call_user(mine, mine="option")
    assert seen == {"args": "option", "train": [3, 2], "total": [5, 4], "own": [3, 2]}
    assert got.mask.tolist() == [True, True, True, False, False]
    assert got.loss.tolist() == [3] * 5
    assert list(got.metrics) == ["mine"]


def test_a_function_cannot_train_what_is_masked():
    def all_of_it(args, *, pg_loss, loss_masks, **_):
        return pg_loss, [torch.ones_like(mask) for mask in loss_masks], {}

    correct = user_correction(all_of_it, None)
    values = torch.tensor([1.0, NAN])
    got = correct(values, values, values, torch.tensor([1, 0]), [3], [2])
    assert got.mask.tolist() == [True, False]
    assert got.loss.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (lambda loss, masks: loss, "returned Tensor"),
        (lambda loss, masks: (loss.sum(), masks, {}), "no loss of the 5 tokens"),
        (lambda loss, masks: (loss, masks[:1], {}), "masks of other lengths"),
        (lambda loss, masks: (loss, masks, {"x": loss.sum()}), "metric 'x'"),
    ],
)
def test_a_result_of_another_form_is_told(result, told):
    with pytest.raises(UserError, match=told):
        call_user(lambda args, *, pg_loss, loss_masks, **_: result(pg_loss, loss_masks))
