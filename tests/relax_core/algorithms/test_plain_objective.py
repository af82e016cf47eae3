"""Every estimator's whole objective, the critic's and the supervised one against plain loops: values and derivatives.

Ragged samples, masks with NaN behind them, log-ratios of up to 19 nats, all terms on and off, float64 to bfloat16.
"""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_objective import Plain, plain_policy, plain_supervised, plain_value, token_kl, token_loss
from policy_cases import OPTIONS, Case, Result

from relax_core.algorithms.corrections import probe_correction, rejection_function, user_correction
from relax_core.algorithms.kl import KL_KINDS
from relax_core.algorithms.loss_parts import LossOptions
from relax_core.algorithms.registry import estimator_names

BAND = (0.7, 1.5)

LENGTHS = st.lists(st.integers(0, 8), min_size=1, max_size=7)


def assert_equal(got: Result, want: Plain, rtol: float, atol: float) -> None:
    """Loss, derivatives of all tokens, and exactly the metrics that there are, each within ``atol`` of its scale."""
    assert got.loss == pytest.approx(want.loss, rel=rtol, abs=atol)
    for values, plain in ((got.by_log_prob, want.by_log_prob), (got.by_entropy, want.by_entropy)):
        torch.testing.assert_close(values.double(), torch.tensor(plain, dtype=torch.float64), rtol=rtol, atol=atol)
    assert got.metrics == pytest.approx(want.metrics, rel=rtol, abs=atol, nan_ok=True)


def run(case: Case, estimator: str, options: LossOptions, rejecting: bool = False, kl: bool = True) -> Result:
    more = {}
    if rejecting:
        correction = user_correction(rejection_function, SimpleNamespace(tis_clip_low=BAND[0], tis_clip=BAND[1]))
        options = dataclasses.replace(options, use_tis=True)
        more = {"correction": correction, "probe": probe_correction(correction, case.step_tokens(options))}
    return case.policy([range(len(case.lengths))], estimator, options, kl=kl, **more)


@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 10_000), options=OPTIONS, rejecting=st.booleans(), kl=st.booleans(),
       spread=st.sampled_from([0.3, 4.0]))  # fmt: skip
def test_loss_derivatives_and_metrics_equal_the_plain_loops(estimator, lengths, seed, options, rejecting, kl, spread):
    case = Case(lengths, seed, torch.float64, spread=spread)
    assume_exact(case)
    band = BAND if rejecting else None
    want = plain_policy(case.rows(), estimator, options, band, kl)
    scale = max(1.0, abs(want.loss), *(abs(x) for x in want.by_log_prob), *map(abs, finite(want.metrics.values())))
    got = run(case, estimator, options, rejecting, kl)
    assert_equal(got, want, rtol=1e-6, atol=1e-7 * scale)  # weights are float32


@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 10_000), options=OPTIONS,
       dtypes=st.sampled_from([(torch.float32, torch.float32), (torch.float32, torch.bfloat16)]))  # fmt: skip
def test_in_float32_with_columns_of_bfloat16_too(estimator, lengths, seed, options, dtypes):
    # the loops get the rounded numbers, so that only the arithmetic is compared
    case = Case(lengths, seed, *dtypes)
    got = run(case, estimator, options)
    if not on_an_edge(case, options):
        assert_equal(got, plain_policy(case.rows(), estimator, options), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("estimator", estimator_names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 10_000), options=OPTIONS, power=st.sampled_from([2, 4, 30]))
def test_log_probabilities_however_small_give_finite_numbers_and_nothing_where_masked(
    estimator, dtype, lengths, seed, options, power
):
    case = Case(lengths, seed, dtype, spread=10.0**power)
    case.columns |= {name: case.columns[name].clamp(max=0.0) for name in ("old", "ref", "rollout", "train")}
    got = run(case, estimator, options)
    assert math.isfinite(got.loss)
    assert all(math.isfinite(value) for name, value in got.metrics.items() if name != "importance_ess")
    for values in (got.by_log_prob, got.by_entropy):
        assert torch.isfinite(values).all()
        assert (values[~case.mask] == 0).all()


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 10_000), clip=st.sampled_from([0.0, 0.2, 1.0]), per_token=st.booleans())
def test_the_critic_equals_the_plain_loops(lengths, seed, clip, per_token):
    case = Case(lengths, seed, torch.float64)
    got = case.value([range(len(lengths))], clip, per_token)
    assert_equal(got, plain_value(case.rows(), clip, per_token), rtol=1e-6, atol=1e-7)


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 10_000), per_token=st.booleans())
def test_the_supervised_loss_equals_the_plain_loops(lengths, seed, per_token):
    case = Case(lengths, seed, torch.float64)
    got = case.supervised([range(len(lengths))], per_token)
    assert_equal(got, plain_supervised(case.rows(), per_token), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("unbiased", [False, True])
def test_the_loops_own_derivative_of_the_kl(kind, unbiased):
    # by a central difference, so that the loops stand on their own
    for new, ref, old in ((-1.0, -1.4, -0.9), (-2.0, -0.5, -1.5), (-0.1, -0.2, -0.1)):
        h = 1e-6
        up, down = (token_kl(new + x, ref, old, kind, unbiased)[0] for x in (h, -h))
        assert token_kl(new, ref, old, kind, unbiased)[1] == pytest.approx((up - down) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("estimator", [name for name in estimator_names() if name not in ("cispo", "rloo")])
def test_the_loops_own_derivative_of_the_policy_loss(estimator):
    # for GSPO the mean moves; of CISPO the weight is a constant, which no difference shows
    options = LossOptions(eps_clip_high=0.28, eps_clip_c=1.5)
    for log_ratio in (-1.0, -0.1, 0.1, 0.3, 1.0):
        for a in (-1.5, 0.0, 1.5):
            h = 1e-6
            up, down = (token_loss(estimator, -1 + log_ratio + x, -1.0, a, log_ratio + x, options)[0] for x in (h, -h))
            slope = token_loss(estimator, -1 + log_ratio, -1.0, a, log_ratio, options)[1]
            assert slope == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-9)


def finite(values):
    return [value for value in values if math.isfinite(value)]


def assume_exact(case: Case) -> None:
    """Keep all log-ratios below 20 nats, from where on the library goes on linearly."""
    for name, column in case.columns.items():
        if name != "advantage":
            case.columns[name] = torch.clamp(column, case.new - 9.5, case.new + 9.5)


def on_an_edge(case: Case, options: LossOptions) -> bool:
    """Whether float32 decides a branch: a ratio at a clip, SAPO's gate at its bound, a mean at OPSM's threshold."""
    high = options.eps_clip if options.eps_clip_high is None else options.eps_clip_high
    edges = [math.log(1 - options.eps_clip), math.log(1 + high), math.log(options.eps_clip_c or 1), -options.opsm_delta]
    for row in case.rows():
        own = [token for token in row if token["mask"]]
        ratios = [token["new"] - token["old"] for token in own]
        near = [abs(x - edge) for x in (*ratios, sum(ratios) / max(len(own), 1)) for edge in edges]
        near += [abs(t["train"] - t["rollout"] - math.log(x)) for t in own for x in (options.tis_clip, 0.7)]
        for x in ratios:
            p = [1 / (1 + math.exp(-tau * math.expm1(x))) for tau in (options.sapo_tau_pos, options.sapo_tau_neg)]
            near += [abs(4 * q * (1 - q) - 0.9) for q in p]
        if min(near, default=1.0) < 1e-5:
            return True
    return False
