"""What must not change loss, gradients or metrics: the order of samples, micro-batches, packing, ranks, padding.

In float32 within 1e-6 (of the value, where that is above 1), for every estimator's policy objective with each of its
terms on and off, for the critic's and the supervised objective, and for the stage that makes the advantages.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import OPTIONS, Case, Result
from ranks import run_ranks

from relax_core.algorithms.advantages import AdvantageInputs, AdvantageOptions, Advantages, compute_advantages
from relax_core.algorithms.corrections import probe_correction, rejection_function, user_correction
from relax_core.algorithms.registry import estimator_names, get_estimator
from relax_core.algorithms.rewards import normalize_rewards
from relax_core.batching.plan import plan_updates

TOLERANCE = 1e-6

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=9)
SEEDS = st.integers(0, 10_000)

Layout = Sequence[Sequence[int]]
"""Sample numbers of each micro-batch, all ranks' behind one another: their results add up."""


def layouts(lengths: Sequence[int], dp_size: int, budget: int, balance: bool, random: Any) -> list[Layout]:
    """Shuffled; a micro-batch a sample, backwards; packed to a budget over ranks, with dummies; two samples each."""
    shuffled = list(range(len(lengths)))
    random.shuffle(shuffled)
    tokens = [n + 1 for n in lengths]
    cut = []
    for size in ({"max_tokens": budget}, {"micro_batch_size": 2}):
        (plan,) = plan_updates(tokens, dp_size=dp_size, balance=balance, micro_batch_multiple=2, align="dummy", **size)
        cut.append([micro_batch for rank in plan.micro_batches for micro_batch in rank])
    return [[shuffled], [[i] for i in reversed(range(len(lengths)))], [[], *cut[0]], cut[1]]


def assert_same(got: Result, want: Result) -> None:
    assert got.loss == pytest.approx(want.loss, rel=TOLERANCE, abs=TOLERANCE)
    assert got.metrics == pytest.approx(want.metrics, rel=TOLERANCE, abs=TOLERANCE, nan_ok=True)
    for name in ("by_log_prob", "by_entropy"):
        torch.testing.assert_close(getattr(got, name), getattr(want, name), rtol=TOLERANCE, atol=TOLERANCE)
    # of parameters that all tokens share, the error is measured by the length of the gradient
    difference = (got.gradient - want.gradient).norm()
    assert difference <= TOLERANCE * max(1.0, float(want.gradient.norm()))


def check(lengths: Sequence[int], cuts: Sequence[Layout], run: Callable[[Layout], Result]) -> None:
    want = run([range(len(lengths))])
    for cut in cuts:
        assert_same(run(cut), want)


CUT = {
    "lengths": LENGTHS,
    "seed": SEEDS,
    "dp_size": st.integers(1, 3),
    "budget": st.integers(1, 25),
    "balance": st.booleans(),
    "random": st.randoms(use_true_random=False),
}


@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=40, deadline=None)
@given(**CUT, options=OPTIONS, rejecting=st.booleans(), kl=st.booleans())
def test_the_policy_is_the_same_in_any_order_and_cut(
    estimator, lengths, seed, dp_size, budget, balance, random, options, rejecting, kl
):
    case, more = Case(lengths, seed), {}
    if rejecting:  # a user's correction, which takes tokens out of the denominator
        correction = user_correction(rejection_function, SimpleNamespace(tis_clip=1.5, tis_clip_low=0.7))
        options = dataclasses.replace(options, use_tis=True)
        more = {"correction": correction, "probe": probe_correction(correction, case.step_tokens(options))}
    check(
        lengths,
        layouts(lengths, dp_size, budget, balance, random),
        lambda layout: case.policy(layout, estimator, options, kl=kl, **more),
    )


@settings(max_examples=60, deadline=None)
@given(**CUT, clip=st.sampled_from([0.0, 0.2]), per_token=st.booleans())
def test_the_critic_is_the_same_in_any_order_and_cut(lengths, seed, dp_size, budget, balance, random, clip, per_token):
    case = Case(lengths, seed)
    check(
        lengths,
        layouts(lengths, dp_size, budget, balance, random),
        lambda layout: case.value(layout, clip, per_token),
    )


@settings(max_examples=60, deadline=None)
@given(**CUT, per_token=st.booleans())
def test_the_supervised_loss_is_the_same_in_any_order_and_cut(
    lengths, seed, dp_size, budget, balance, random, per_token
):
    case = Case(lengths, seed)
    check(
        lengths, layouts(lengths, dp_size, budget, balance, random), lambda layout: case.supervised(layout, per_token)
    )


def test_two_processes_give_what_one_gives():
    # samples shared between ranks, and every sample's tokens shared between ranks (context parallelism)
    assert run_ranks(2, "relax_core.algorithms.invariances_ranks:parity") == ["equal", "equal"]


# -- padding -----------------------------------------------------------------------------------------------------------


def padded(case: Case, columns: dict[str, torch.Tensor], left: bool) -> dict[str, torch.Tensor]:
    """[B, L] of each column, NaN (0 of a mask) in the padding, and ``real`` [B, L], where a sample's tokens are."""
    width = max(case.lengths) + 2
    real = torch.zeros(len(case.lengths), width, dtype=torch.bool)
    for i, n in enumerate(case.lengths):
        real[i, width - n if left else 0 : width if left else n] = True
    found = {"real": real}
    for name, column in columns.items():
        filler = False if column.dtype == torch.bool else torch.nan
        found[name] = torch.full(real.shape, filler, dtype=column.dtype)
        found[name][real] = column
    return found


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=15, deadline=None)
@given(lengths=LENGTHS, seed=SEEDS, options=OPTIONS)
def test_rows_padded_on_either_side_are_the_same_once_packed_by_their_mask(estimator, left, lengths, seed, options):
    case = Case(lengths, seed)
    named = {"new": case.new, "entropy": case.entropy, "mask": case.mask, **case.columns}
    rows = padded(case, named, left)
    other = Case(lengths, seed + 1)
    other.new, other.entropy, other.mask = (rows[name][rows["real"]] for name in ("new", "entropy", "mask"))
    other.columns = {name: rows[name][rows["real"]] for name in case.columns}
    other.features, other.size = case.features, case.size
    whole = [range(len(lengths))]
    got, want = (one.policy(whole, estimator, options) for one in (other, case))
    assert got.loss == want.loss  # packing by the mask gives the packed tokens themselves: the same bits
    assert got.metrics == pytest.approx(want.metrics, rel=0, abs=0, nan_ok=True)
    for name in ("by_log_prob", "by_entropy", "gradient"):
        assert torch.equal(getattr(got, name), getattr(want, name))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=15, deadline=None)
@given(lengths=LENGTHS, seed=SEEDS, options=OPTIONS)
def test_padding_that_is_left_in_as_masked_tokens_changes_nothing(estimator, left, lengths, seed, options):
    # whole rows of [B, L] as samples of L tokens each, the padding masked
    case = Case(lengths, seed)
    features = case.features
    named = {"new": case.new, "entropy": case.entropy, "mask": case.mask, **case.columns}
    rows = padded(case, named, left)
    real = rows.pop("real")
    other = Case([real.shape[1]] * len(lengths), seed + 1)
    other.new, other.entropy, other.mask = (rows[name].flatten() for name in ("new", "entropy", "mask"))
    other.columns = {name: rows[name].flatten() for name in case.columns}
    other.features, other.size = torch.zeros_like(other.features), case.size
    other.features[real.flatten()] = features
    whole = [range(len(lengths))]
    got, want = (one.policy(whole, estimator, options) for one in (other, case))
    assert not got.by_log_prob[~real.flatten()].any()
    got = dataclasses.replace(
        got, by_log_prob=got.by_log_prob[real.flatten()], by_entropy=got.by_entropy[real.flatten()]
    )
    assert_same(got, want)


# -- the stage that makes the advantages -------------------------------------------------------------------------------


class Stage:
    """Scored samples with a column for everything that an estimator may read; NaN where masked."""

    def __init__(self, lengths: Sequence[int], seed: int, estimator: str, distil: bool, normalize: bool) -> None:
        rng = np.random.default_rng(seed)
        self.spec, self.distil, self.normalize = get_estimator(estimator), distil, normalize
        self.lengths = np.array(lengths, dtype=np.int64)
        total = int(self.lengths.sum())
        self.groups = rng.integers(0, 3, len(lengths)).astype(str)
        self.rewards = np.where(rng.random(len(lengths)) < 0.2, np.nan, rng.integers(0, 3, len(lengths)) / 2)
        self.mask = (rng.random(total) < 0.7).astype(np.uint8)
        drawn = {name: -rng.random(total) for name in ("old_log_probs", "ref_log_probs", "teacher")}
        drawn["values"] = rng.standard_normal(total)
        self.columns = {name: np.where(self.mask, row, np.nan).astype(np.float32) for name, row in drawn.items()}

    def offsets(self) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(self.lengths)))

    def scores(self) -> np.ndarray:
        return normalize_rewards(self.rewards, self.groups, kind=self.spec.normalizer)

    def of(self, samples: Sequence[int], scores: np.ndarray, add: Any = None) -> Advantages:
        """Of these samples in this order."""
        bounds = self.offsets()
        at = np.concatenate([np.arange(0), *[np.arange(bounds[i], bounds[i + 1]) for i in samples]])
        lengths = self.lengths[list(samples)]
        own = {name: column[at] for name, column in self.columns.items()}
        inputs = AdvantageInputs(
            scores, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), self.mask[at],
            AdvantageOptions(gamma=0.9, lambd=0.95, kl_coef=0.1),
            own["values"], own["old_log_probs"], own["ref_log_probs"],
        )  # fmt: skip
        return compute_advantages(
            self.spec, inputs, teacher_log_probs=own["teacher"] if self.distil else None, opd_kl_coef=0.5,
            normalize=self.normalize, sum_over_ranks=add,
        )  # fmt: skip

    def split(self, found: Advantages, samples: Sequence[int]) -> dict[tuple[str, int], np.ndarray]:
        """Each column of each sample."""
        bounds = np.concatenate(([0], np.cumsum(self.lengths[list(samples)])))
        columns = {name: getattr(found, name) for name in ("advantages", "returns", "kl", "opd_reverse_kl")}
        return {
            (name, i): column[bounds[k] : bounds[k + 1]]
            for name, column in columns.items()
            if column is not None
            for k, i in enumerate(samples)
        }


def on_ranks(function: Callable[[int, Any], Any], ranks: int) -> list[Any]:
    """``function(rank, add)`` on so many threads, where ``add`` gives all of them the sum of what each of them has."""
    said: list[np.ndarray] = [np.empty(0)] * ranks
    barrier = threading.Barrier(ranks, timeout=60)

    def run(rank: int) -> Any:
        def add(own: np.ndarray) -> np.ndarray:
            said[rank] = own
            barrier.wait()
            total: np.ndarray = np.sum(said, axis=0)
            barrier.wait()
            return total

        return function(rank, add)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))


STAGE = {"lengths": LENGTHS, "seed": SEEDS, "distil": st.booleans(), "normalize": st.booleans()}


def assert_same_columns(got: dict[Any, np.ndarray], want: dict[Any, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, column in want.items():
        np.testing.assert_allclose(got[name], column, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=40, deadline=None)
@given(**STAGE, random=st.randoms(use_true_random=False))
def test_advantages_are_the_same_in_any_order_of_samples(estimator, lengths, seed, distil, normalize, random):
    stage = Stage(lengths, seed, estimator, distil, normalize)
    order = list(range(len(lengths)))
    want = stage.split(stage.of(order, stage.scores()), order)
    random.shuffle(order)
    scores = normalize_rewards(stage.rewards[order], stage.groups[order], kind=stage.spec.normalizer)
    assert_same_columns(stage.split(stage.of(order, scores), order), want)


@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=40, deadline=None)
@given(**STAGE, ranks=st.integers(1, 3))
def test_advantages_are_the_same_on_any_number_of_ranks(estimator, lengths, seed, distil, normalize, ranks):
    stage = Stage(lengths, seed, estimator, distil, normalize)
    order, scores = list(range(len(lengths))), stage.scores()
    want = stage.split(stage.of(order, scores), order)
    shares = [order[rank::ranks] for rank in range(ranks)]

    def run(rank: int, add: Any) -> dict[Any, np.ndarray]:
        return stage.split(stage.of(shares[rank], scores[shares[rank]], add), shares[rank])

    got: dict[Any, np.ndarray] = {}
    for part in on_ranks(run, ranks):
        got |= part
    assert_same_columns(got, want)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=20, deadline=None)
@given(**STAGE)
def test_padding_that_is_left_in_changes_no_advantage(estimator, left, lengths, seed, distil, normalize):
    stage = Stage(lengths, seed, estimator, distil, normalize)
    order = list(range(len(lengths)))
    want = stage.of(order, stage.scores())
    width = max(lengths) + 2
    real = np.zeros((len(lengths), width), dtype=bool)
    for i, n in enumerate(lengths):
        real[i, width - n if left else 0 : width if left else n] = True
    other = Stage(lengths, seed, estimator, distil, normalize)
    other.lengths = np.full(len(lengths), width)
    other.mask = np.zeros(real.size, np.uint8)
    other.mask[real.flatten()] = stage.mask
    for name, column in stage.columns.items():
        other.columns[name] = np.full(real.size, np.nan, np.float32)
        other.columns[name][real.flatten()] = column
    got = other.of(order, stage.scores())
    for name in ("advantages", "returns", "kl", "opd_reverse_kl"):
        column, plain = getattr(got, name), getattr(want, name)
        assert (column is None) == (plain is None)
        if column is not None:
            np.testing.assert_allclose(column[real.flatten()], plain, rtol=TOLERANCE, atol=TOLERANCE)
