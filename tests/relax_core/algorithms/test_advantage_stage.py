"""The whole advantage stage of every estimator against plain loops: estimator, distillation, standardising."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plain_objective import plain_advantages

from relax_core.algorithms.advantages import AdvantageInputs, AdvantageOptions, compute_advantages
from relax_core.algorithms.registry import estimator_names, get_estimator

NUMBER = st.floats(-4, 0, width=32)
TOKEN = st.fixed_dictionaries(
    {"mask": st.booleans(), "value": st.floats(-3, 3, width=32), "old": NUMBER, "ref": NUMBER, "teacher": NUMBER}
)
SAMPLES = st.lists(
    st.tuples(st.floats(-2, 2, width=32) | st.just(float("nan")), st.lists(TOKEN, max_size=9)), min_size=1, max_size=6
)


@pytest.mark.parametrize("estimator", estimator_names())
@settings(max_examples=60, deadline=None)
@given(
    samples=SAMPLES,
    gamma=st.sampled_from([1.0, 0.9, 0.0]),
    lambd=st.sampled_from([1.0, 0.95, 0.0]),
    kl=st.sampled_from([(0.0, "k1"), (0.2, "k1"), (0.2, "k2"), (0.2, "k3")]),
    opd_coef=st.sampled_from([None, 0.5, 1.0]),
    normalize=st.booleans(),
)
def test_equals_the_plain_loops_with_nan_where_masked(estimator, samples, gamma, lambd, kl, opd_coef, normalize):
    rows, rewards = [row for _, row in samples], [reward for reward, _ in samples]
    options = {"gamma": gamma, "lambd": lambd}
    want = plain_advantages(
        rows, rewards, estimator, **options, kl_coef=kl[0], kl_kind=kl[1], opd_coef=opd_coef, normalize=normalize
    )
    flat = [token for row in rows for token in row]
    mask = np.array([token["mask"] for token in flat], dtype=np.uint8)
    columns = {
        name: np.array([token[name] if token["mask"] else np.nan for token in flat], dtype=np.float32)
        for name in ("value", "old", "ref", "teacher")
    }
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
    inputs = AdvantageInputs(
        np.array(rewards, dtype=np.float64), offsets, mask,
        AdvantageOptions(kl_coef=kl[0], kl_loss_type=kl[1], **options),
        columns["value"], columns["old"], columns["ref"],
    )  # fmt: skip
    got = compute_advantages(
        get_estimator(estimator), inputs, teacher_log_probs=None if opd_coef is None else columns["teacher"],
        opd_kl_coef=opd_coef or 1.0, normalize=normalize,
    )  # fmt: skip
    if normalize:  # a spread of mere rounding is divided by next to nothing
        plain = plain_advantages(
            rows, rewards, estimator, **options, kl_coef=kl[0], kl_kind=kl[1], opd_coef=opd_coef, normalize=False
        )[0]
        kept = np.array(plain)[mask != 0]
        assume(kept.size < 2 or np.ptp(kept) == 0 or np.ptp(kept) > 1e-2)
    np.testing.assert_allclose(got.advantages, want[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(got.returns, want[1], rtol=2e-5, atol=2e-5)
