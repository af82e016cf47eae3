"""Estimator registry and the GRPO advantage."""

import subprocess
import sys

import numpy as np
import pytest

from data.errors import UserError
from relax_core.algorithms import registry
from relax_core.algorithms.advantages import AdvantageInputs, Advantages, spread_over_tokens
from relax_core.algorithms.losses import policy_loss
from relax_core.algorithms.registry import EstimatorSpec, estimator_names, get_estimator, register


def test_grpo_is_registered_with_its_parts():
    grpo = get_estimator("grpo")
    assert "grpo" in estimator_names()
    assert (grpo.normalizer, grpo.needs_critic) == ("group_mean_std", False)
    assert grpo.load_policy_loss() is policy_loss


def test_unknown_estimator_suggests_the_nearest():
    with pytest.raises(UserError, match="Did you mean grpo"):
        get_estimator("gpro")


def test_an_estimator_is_added_with_one_specification(monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))

    def sign(inputs: AdvantageInputs) -> Advantages:
        spread = spread_over_tokens(inputs)
        return Advantages(np.sign(spread.advantages), spread.returns)

    spec = EstimatorSpec("sign", "Sign of the reward.", "none", sign, "relax_core.algorithms.losses:policy_loss")
    register(spec)
    assert get_estimator("sign") is spec
    assert estimator_names()[-1] == "sign"
    with pytest.raises(ValueError, match="twice"):
        register(spec)


def test_the_registry_does_not_import_torch():
    code = "import sys, relax_core.algorithms.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_grpo_advantage_is_the_reward_at_every_token_and_zero_without_a_score():
    inputs = AdvantageInputs(
        rewards=np.array([0.5, np.nan, -1.0, 2.0]),
        offsets=np.array([0, 2, 3, 3, 6]),
        loss_mask=np.array([1, 0, 1, 1, 1, 0], dtype=np.uint8),
    )
    got = get_estimator("grpo").advantages(inputs)
    np.testing.assert_array_equal(got.advantages, np.array([0.5, 0.5, 0, 2, 2, 2], dtype=np.float32))
    assert got.advantages.dtype == np.float32
    np.testing.assert_array_equal(got.returns, got.advantages)
