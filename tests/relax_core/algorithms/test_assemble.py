"""The loss put together: dummies, nothing to learn from, corrections and reducers of the user.

The whole against plain loops is in test_plain_objective, what must not change it in test_invariances.
"""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.algorithms.assemble import PolicyObjective, SupervisedObjective, ValueObjective
from relax_core.algorithms.corrections import probe_correction, rejection_function, user_correction
from relax_core.algorithms.loss_parts import LossOptions, Tokens
from relax_core.algorithms.reduce import StepSize, step_weights
from relax_core.algorithms.registry import estimator_names, get_estimator
from relax_core.algorithms.sequences import Sequences

NAN = float("nan")
ARGS = SimpleNamespace(tis_clip=1.5, tis_clip_low=0.7)
COLUMNS = ("old_log_probs", "ref_log_probs", "rollout_log_probs", "train_log_probs")


def offsets_of(lengths):
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])


class Batch:
    """Samples of random tokens under a policy and an entropy that share one parameter vector."""

    def __init__(self, lengths, seed, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        self.lengths, tokens = lengths, sum(lengths)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.features, self.theta = draw(tokens, 5) / 2, draw(5)
        self.columns = {name: -0.7 + 0.4 * draw(tokens) for name in COLUMNS}
        self.columns["advantages"] = draw(tokens)
        self.mask = torch.rand(tokens, generator=generator) > 0.3
        self.size = StepSize(len(lengths), int(self.mask.sum()))

    def policy(self, theta, at):
        new = -torch.nn.functional.softplus(self.features[at] @ theta)
        return new, -new * new.exp()  # an entropy with a gradient

    def tokens_of(self, samples):
        bounds = offsets_of(self.lengths)
        return torch.cat(
            [torch.zeros(0, dtype=torch.int64), *[torch.arange(bounds[i], bounds[i + 1]) for i in samples]]
        )

    def tokens(self, samples, theta, options, **changes):
        at = self.tokens_of(samples)
        new, entropy = self.policy(theta, at)
        sequences = Sequences(offsets_of([self.lengths[i] for i in samples]))
        weights = step_weights(self.mask[at], sequences.offsets, self.size, per_token=options.calculate_per_token_loss)
        given = {name: column[at] for name, column in self.columns.items()} | changes
        return Tokens(
            log_probs=new, entropy=entropy, mask=self.mask[at], weights=weights, sequences=sequences,
            total_lengths=[self.lengths[i] + 2 for i in samples], **given,
        )  # fmt: skip

    def run(self, micro_batches, estimator, options, **more):
        """Loss, gradient, totals and largest values, accumulated over micro-batches (lists of samples)."""
        theta = self.theta.clone().requires_grad_()
        objective = PolicyObjective(get_estimator(estimator), options, self.size, **more)
        loss, sums, largest = torch.zeros((), dtype=torch.float64), {}, {}
        for samples in micro_batches:
            parts = objective(self.tokens(samples, theta, options))
            (parts.loss + theta.sum() * 0).backward()
            loss += parts.loss.detach()
            assert not sums or sums.keys() == parts.sums.keys()
            sums = {name: sums.get(name, 0.0) + value.item() for name, value in parts.sums.items()}
            largest = {name: max(largest.get(name, 0.0), value.item()) for name, value in parts.largest.items()}
        return loss, theta.grad, objective.finish(sums, largest)


EVERYTHING = LossOptions(
    eps_clip_high=0.28, eps_clip_c=3.0, entropy_coef=0.1, kl_loss_coef=0.2, kl_loss_type="k3", use_opsm=True,
    opsm_delta=0.1, use_tis=True, tis_clip=1.5, tis_clip_low=0.5,
)  # fmt: skip


CASE = {
    "lengths": st.lists(st.integers(0, 8), min_size=1, max_size=7),
    "seed": st.integers(0, 10_000),
    "estimator": st.sampled_from(estimator_names()),
    "per_token": st.booleans(),
}


# -- edges -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", estimator_names())
def test_a_dummy_gives_zeros_under_the_same_names(estimator):
    batch = Batch([3, 2], seed=0)
    objective = PolicyObjective(get_estimator(estimator), EVERYTHING, batch.size)
    real, dummy = (objective(batch.tokens(samples, batch.theta, EVERYTHING)) for samples in ([0, 1], []))
    assert list(dummy.sums) == list(real.sums)
    assert list(dummy.largest) == list(real.largest)
    names = objective.names(batch.tokens([0, 1], batch.theta, EVERYTHING))
    assert names == (tuple(real.sums), tuple(real.largest))
    assert all(value == 0 for value in (dummy.loss, *dummy.sums.values(), *dummy.largest.values()))


@pytest.mark.parametrize("estimator", estimator_names())
def test_nothing_to_learn_from_is_no_crash_and_is_told(estimator):
    batch = Batch([3, 2], seed=0)
    batch.columns["advantages"] = torch.zeros(5, dtype=torch.float64)
    loss, gradient, metrics = batch.run([[0], [1]], estimator, LossOptions())
    assert loss == 0
    assert (gradient == 0).all()
    assert metrics["advantage_nonzero_frac"] == 0
    batch.mask = torch.zeros(5, dtype=torch.bool)  # all samples lost
    batch.size = StepSize(2, 0)
    for per_token in (False, True):
        options = dataclasses.replace(EVERYTHING, calculate_per_token_loss=per_token)
        loss, gradient, metrics = batch.run([[0], [1]], estimator, options)
        assert loss == 0
        assert (gradient == 0).all()
        assert math.isnan(metrics["importance_ess"])


def one_sample(loss_of_tokens, **columns):
    """A sample of REINFORCE whose token losses are these: A = -loss / new with new = -1."""
    count = len(loss_of_tokens)
    new = torch.full((count,), -1.0, requires_grad=True)
    return Tokens(
        log_probs=new, advantages=torch.tensor(loss_of_tokens), mask=torch.ones(count),
        weights=torch.full((count,), 1 / count), sequences=Sequences(torch.tensor([0, count])),
        total_lengths=[count + 1], **columns,
    )  # fmt: skip


def test_rejected_tokens_leave_the_denominator():
    # log-ratios 0.1 -1.5 0.8 -10 0.3, band 0.5 to 2: keeps the first and the last; losses 1 .. 5: (1 + 5) / 2, not / 5
    train = torch.tensor([0.1, -1.5, 0.8, -10.0, 0.3])
    tokens = one_sample([1.0, 2, 3, 4, 5], train_log_probs=train, rollout_log_probs=torch.zeros(5))
    args = SimpleNamespace(tis_clip=2.0, tis_clip_low=0.5)
    correction = user_correction(rejection_function, args)
    rloo = get_estimator("rloo")
    got = PolicyObjective(rloo, LossOptions(use_tis=True), StepSize(1, 5), correction=correction)(tokens)
    assert got.loss.item() == pytest.approx(3.0)
    assert got.sums["tis_clipfrac"].item() == pytest.approx(3 / 5)  # over the tokens that there were
    per_token = LossOptions(use_tis=True, calculate_per_token_loss=True)
    probe = probe_correction(correction, tokens)
    assert (probe.kept_tokens, probe.metrics) == (2, ("tis", "tis_clipfrac", "tis_abs"))
    got = PolicyObjective(rloo, per_token, StepSize(1, 5), correction=correction, probe=probe)(tokens)
    assert got.loss.item() == pytest.approx(3.0)
    got = PolicyObjective(rloo, per_token, StepSize(1, 5), correction=correction)(tokens)
    assert got.loss.item() == pytest.approx(6 / 5)  # nobody has counted


def test_truncation_in_the_loss():
    # weights of the same log-ratios, clipped to 2: (1.10517 + 0.22313 + 2 + 0.0000454 + 1.34986) / 5
    train = torch.tensor([0.1, -1.5, 0.8, -10.0, 0.3])
    tokens = one_sample([1.0] * 5, train_log_probs=train, rollout_log_probs=torch.zeros(5))
    got = PolicyObjective(get_estimator("rloo"), LossOptions(use_tis=True), StepSize(1, 5))(tokens)
    assert got.loss.item() == pytest.approx(4.678205 / 5, rel=1e-5)
    assert got.sums["tis_clipfrac"].item() == pytest.approx(1 / 5)
    assert got.sums["mismatch_kl"].item() == pytest.approx(-10.3 / 5)
    assert got.sums["ois"].item() == pytest.approx(1)


def test_without_the_recomputed_log_probs_the_current_ones_stand_for_them():
    tokens = one_sample([1.0, 1.0], rollout_log_probs=torch.tensor([-1.1, -1.2]))
    got = PolicyObjective(get_estimator("rloo"), LossOptions(use_tis=True), StepSize(1, 2))(tokens)
    got.loss.backward()
    assert got.loss.item() == pytest.approx((math.exp(0.1) + math.exp(0.2)) / 2)
    # as a constant: d loss / d new = -w A / 2
    torch.testing.assert_close(tokens.log_probs.grad, -torch.tensor([0.1, 0.2]).exp() / 2)


def test_mismatch_metrics_alone_use_the_loss_that_the_function_returns():
    def mine(args, *, pg_loss, loss_masks, **_):
        return pg_loss * 2, loss_masks, {"my/metric": pg_loss.detach()}

    options = LossOptions(get_mismatch_metrics=True)
    tokens = one_sample([1.0, 3.0], rollout_log_probs=torch.full((2,), -1.0))
    objective = PolicyObjective(get_estimator("rloo"), options, StepSize(1, 2), correction=user_correction(mine, None))
    got = objective(tokens)
    assert got.loss.item() == 4
    assert got.sums["my/metric"] == 2
    with pytest.raises(ValueError, match="correction"):
        PolicyObjective(get_estimator("rloo"), options, StepSize(1, 2))


def test_difference_of_trainer_and_engine():
    # trainer log 0.5 and log 0.25 against log 0.4 and log 0.3: |d log| 0.2231, 0.1823; |d p| 0.1, 0.05
    trainer, engine = torch.tensor([0.5, 0.25]).log(), torch.tensor([0.4, 0.3]).log()
    objective = PolicyObjective(get_estimator("rloo"), LossOptions(), StepSize(1, 2))
    got = objective(one_sample([0.0, 0.0], train_log_probs=trainer, rollout_log_probs=engine))
    assert got.sums["train_rollout_logprob_abs_diff"].item() == pytest.approx((0.22314355 + 0.18232156) / 2, rel=1e-5)
    assert got.sums["train_rollout_prob_abs_diff"].item() == pytest.approx(0.075, rel=1e-5)
    assert got.largest["train_rollout_logprob_abs_diff_max"].item() == pytest.approx(0.22314355, rel=1e-5)
    assert got.largest["train_rollout_prob_abs_diff_max"].item() == pytest.approx(0.1, rel=1e-5)
    later = one_sample([0.0, 0.0], rollout_log_probs=engine)  # the weights have moved, and no pass was made
    assert "train_rollout_logprob_abs_diff" not in objective(later).sums
    first = dataclasses.replace(later, first_update=True)
    gap = (torch.tensor([-1.0, -1.0]) - engine).abs()
    assert objective(first).sums["train_rollout_logprob_abs_diff"].item() == pytest.approx(gap.mean().item())


def test_effective_sample_size_is_of_the_policy_against_the_engine():
    tokens = one_sample([0.0, 0.0], rollout_log_probs=torch.tensor([-1.0, -1.0 - math.log(3)]))  # weights 1, 3
    objective = PolicyObjective(get_estimator("rloo"), LossOptions(), StepSize(1, 2))
    parts = objective(tokens)
    metrics = objective.finish({name: value.item() for name, value in parts.sums.items()}, {})
    assert metrics["importance_ess"] == pytest.approx(0.8, rel=1e-6)
    assert not any(name.startswith("_") for name in metrics)


def test_an_input_that_is_missing_is_told():
    tokens = one_sample([1.0])
    with pytest.raises(ValueError, match="engine"):
        PolicyObjective(get_estimator("rloo"), LossOptions(use_tis=True), StepSize(1, 1))(tokens)
    with pytest.raises(ValueError, match="entropy"):
        PolicyObjective(get_estimator("rloo"), LossOptions(entropy_coef=0.1), StepSize(1, 1))(tokens)
    with pytest.raises(ValueError, match="recomputes"):
        probe_correction(user_correction(rejection_function, ARGS), tokens)


# -- reducers ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(**CASE)
def test_a_custom_reducer_adds_up_over_micro_batches_and_touches_the_policy_loss_alone(
    lengths, seed, estimator, per_token
):
    def squares(total_lengths, response_lengths, loss_masks, of_tokens):
        assert of_tokens is per_token
        assert [len(mask) for mask in loss_masks] == response_lengths == [n - 2 for n in total_lengths]
        return lambda losses: sum(
            (x * m).sum() / 7 for x, m in zip(losses.split(response_lengths), loss_masks, strict=True)
        )

    batch = Batch(lengths, seed)
    options = dataclasses.replace(EVERYTHING, calculate_per_token_loss=per_token)
    plain = batch.run([range(len(lengths))], estimator, options)[2]
    whole = batch.run([range(len(lengths))], estimator, options, reducer=squares)
    parts = batch.run([[i] for i in range(len(lengths))], estimator, options, reducer=squares)
    torch.testing.assert_close(parts[0], whole[0])
    torch.testing.assert_close(parts[1], whole[1])
    for name in plain.keys() - {"loss", "pg_loss"}:
        assert whole[2][name] == pytest.approx(plain[name], nan_ok=True)


def test_a_dummy_with_a_reducer():
    batch = Batch([2], seed=0)
    objective = PolicyObjective(get_estimator("grpo"), LossOptions(), batch.size, reducer=lambda *_: 1 / 0)
    assert objective(batch.tokens([], batch.theta, LossOptions())).loss == 0


def test_a_reducer_that_gives_no_number_is_told():
    batch = Batch([2], seed=0)
    for result in (lambda losses: losses, lambda losses: 1.0):
        objective = PolicyObjective(get_estimator("grpo"), LossOptions(), batch.size, reducer=lambda *_, r=result: r)
        with pytest.raises(UserError, match="custom-pg-loss-reducer"):
            objective(batch.tokens([0], batch.theta, LossOptions()))


# -- critic and supervised ---------------------------------------------------------------------------------------------


def test_the_critics_loss_by_hand():
    # sample means of [1, 6.25] and [0.49]: (3.625 + 0.49) / 2
    values = torch.tensor([2.0, 2.0, 0.3], requires_grad=True)
    mask, offsets = torch.ones(3), torch.tensor([0, 2, 3])
    weights = step_weights(mask, offsets, StepSize(2, 3), per_token=False)
    objective = ValueObjective(LossOptions(value_clip=0.5))
    got = objective(values, torch.zeros(3), torch.tensor([1.0, 3.0, 1.0]), mask, weights)
    got.loss.backward()
    assert got.loss.item() == pytest.approx(2.0575)
    torch.testing.assert_close(values.grad, torch.tensor([0.5, 0.0, -0.7]))
    metrics = objective.finish({name: value.item() for name, value in got.sums.items()}, {})
    assert metrics == pytest.approx(
        {"loss": 2.0575, "value_loss": 2.0575, "value_clipfrac": 0.5, "value_mean": 1.15, "return_mean": 1.5}
    )
    empty = objective(values[:0], values[:0], values[:0], mask[:0], weights[:0])
    assert empty.loss == 0
    assert list(empty.sums) == list(got.sums)


def test_the_supervised_loss_and_its_perplexity():
    # -1, -3 | -2 and a masked one: sample mean (2 + 2) / 2, token mean 2; perplexity e^2
    log_probs, mask = torch.tensor([-1.0, -3.0, -2.0, NAN], requires_grad=True), torch.tensor([1, 1, 1, 0])
    weights = step_weights(mask, torch.tensor([0, 2, 4]), StepSize(2, 3), per_token=False)
    objective = SupervisedObjective()
    got = objective(log_probs, mask, weights, entropy=torch.tensor([1.0, 1, 3, NAN]))
    got.loss.backward()
    torch.testing.assert_close(log_probs.grad, torch.tensor([-0.25, -0.25, -0.5, 0.0]))
    metrics = objective.finish({name: value.item() for name, value in got.sums.items()}, {})
    assert metrics == pytest.approx({"loss": 2.0, "entropy_loss": 2.0, "ppl": math.exp(2)})
    empty = objective(log_probs[:0], mask[:0], weights[:0])
    assert "ppl" not in objective.finish({name: value.item() for name, value in empty.sums.items()}, {})


def test_options_are_taken_from_a_namespace():
    given = {field.name: field.default for field in dataclasses.fields(LossOptions)} | {"opsm_delta": 0.5, "other": 1}
    assert LossOptions.of(SimpleNamespace(**given)) == LossOptions(opsm_delta=0.5)
