"""Estimator registry, the demands as data, the GRPO advantage, and an estimator in one file."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from data.errors import UserError
from relax_core.algorithms import registry
from relax_core.algorithms.advantages import AdvantageInputs, AdvantageOptions, spread_over_tokens
from relax_core.algorithms.loss_parts import LossOptions
from relax_core.algorithms.losses import policy_loss
from relax_core.algorithms.registry import Demand, EstimatorSpec, estimator_names, get_estimator, register
from relax_core.algorithms.rewards import NORMALIZERS
from relax_core.config.options import OPTIONS


def test_grpo_is_registered_with_its_parts():
    grpo = get_estimator("grpo")
    assert "grpo" in estimator_names()
    assert (grpo.normalizer, grpo.needs_critic) == ("group_mean_std", False)
    assert grpo.load_advantages() is spread_over_tokens
    assert grpo.load_policy_loss() is policy_loss


def test_unknown_estimator_suggests_the_nearest():
    with pytest.raises(UserError, match="Did you mean grpo"):
        get_estimator("grpoo")


def test_a_name_is_registered_once(monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    spec = EstimatorSpec("sign", "Sign of the reward.", "none", "a.b:c", "relax_core.algorithms.losses:policy_loss")
    register(spec)
    assert get_estimator("sign") is spec
    assert estimator_names()[-1] == "sign"
    with pytest.raises(ValueError, match="twice"):
        register(spec)


def test_the_registry_imports_neither_torch_nor_numpy():
    code = "import sys, relax_core.algorithms.registry; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_grpo_advantage_is_the_reward_at_every_token_and_zero_without_a_score():
    inputs = AdvantageInputs(
        rewards=np.array([0.5, np.nan, -1.0, 2.0]),
        offsets=np.array([0, 2, 3, 3, 6]),
        loss_mask=np.array([1, 0, 1, 1, 1, 0], dtype=np.uint8),
    )
    got = get_estimator("grpo").load_advantages()(inputs)
    np.testing.assert_array_equal(got.advantages, np.array([0.5, 0.5, 0, 2, 2, 2], dtype=np.float32))
    assert got.advantages.dtype == np.float32
    np.testing.assert_array_equal(got.returns, got.advantages)


# -- specifications ----------------------------------------------------------------------------------------------------


def test_all_estimators_are_there_in_the_order_of_the_reference():
    assert estimator_names() == (
        "grpo", "gspo", "sapo", "cispo", "rloo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline",
    )  # fmt: skip


READ_BY_ALL = {
    "entropy_coef", "kl_loss_coef", "kl_loss_type", "use_unbiased_kl", "use_opsm", "opsm_delta", "use_tis", "tis_clip",
    "tis_clip_low", "get_mismatch_metrics", "calculate_per_token_loss",
}  # fmt: skip
"""Options of the objective itself: as those of one policy loss they would change nobody else's output."""


@pytest.mark.parametrize("name", estimator_names())
def test_a_specification_names_what_there_is(name):
    spec = get_estimator(name)
    assert callable(spec.load_advantages())
    assert callable(spec.load_policy_loss())
    assert {spec.normalizer, *spec.normalizers} <= set(NORMALIZERS)
    assert set(spec.loss_options) <= {field.name for field in dataclasses.fields(LossOptions)} - READ_BY_ALL
    assert set(spec.advantage_options) <= {field.name for field in dataclasses.fields(AdvantageOptions)}
    assert spec.summary.endswith(".")
    assert spec.source
    for demand in spec.all_demands:
        assert demand.option in OPTIONS
        assert {demand.when, demand.told_unless} <= {None, *OPTIONS}
        assert sum(bound is not None for bound in (demand.allowed, demand.at_least, demand.above)) == 1
        demand.reason.format(advantage_estimator=name)
    # one rule each, so that none hides another
    told = [(demand.option, demand.when) for demand in spec.all_demands]
    assert len(told) == len(set(told))


@pytest.mark.parametrize("options", [LossOptions(), AdvantageOptions()])
def test_defaults_are_those_of_the_command_line(options):
    assert {name: OPTIONS[name].default for name in vars(options)} == vars(options)


KEEPS = {
    "rloo": {"calculate_per_token_loss": True, "n_samples_per_prompt": 4},
    "reinforce_plus_plus": {"normalize_advantages": True, "kl_coef": 0.1},
    "reinforce_plus_plus_baseline": {
        "normalize_advantages": True, "n_samples_per_prompt": 4, "use_kl_loss": True, "kl_loss_type": "k2",
        "kl_loss_coef": 0.1,
    },
}  # fmt: skip
"""What the command line must say beside the defaults."""

BREAKS = {
    "grpo": {"kl_coef": 0.1},
    "gspo": {"kl_coef": 0.1},
    "sapo": {"kl_coef": 0.1},
    "cispo": {"kl_coef": 0.1},
    "ppo": {"fully_async": True},
    "rloo": {
        "n_samples_per_prompt": 1, "disable_rewards_normalization": True, "normalize_advantages": True,
        "calculate_per_token_loss": False, "kl_coef": 0.1, "fully_async": True, "max_staleness": 1,
        "num_steps_per_rollout": 2, "partial_rollout": True,
    },
    "reinforce_plus_plus": {
        "normalize_advantages": False, "calculate_per_token_loss": True, "kl_coef": 0.0, "kl_loss_type": "k3",
        "use_kl_loss": True, "fully_async": True, "context_parallel_size": 2,
    },
    "reinforce_plus_plus_baseline": {
        "normalize_advantages": False, "calculate_per_token_loss": True, "n_samples_per_prompt": 1,
        "disable_rewards_normalization": True, "custom_reward_post_process_path": "a.b", "kl_coef": 0.1,
        "use_kl_loss": False, "kl_loss_type": "k1", "kl_loss_coef": 0.0, "use_unbiased_kl": True, "fully_async": True,
        "context_parallel_size": 2,
    },
}  # fmt: skip
"""Values that are refused, one at a time."""


@pytest.mark.parametrize("name", estimator_names())
def test_demands_are_kept_by_a_right_command_line_and_each_is_broken_by_a_wrong_value(name):
    spec = get_estimator(name)
    right = {option: entry.default for option, entry in OPTIONS.items()} | KEEPS.get(name, {})
    assert spec.broken(right.__getitem__) == []
    wrong = BREAKS[name]
    for option, value in wrong.items():
        assert [demand.option for demand in spec.broken((right | {option: value}).__getitem__)] == [option]
    assert {demand.option for demand in spec.all_demands if demand.when != "colocate"} == set(wrong)


def test_a_demand_may_depend_on_another_option():
    right = {option: entry.default for option, entry in OPTIONS.items()}
    broken = get_estimator("ppo").broken
    assert broken(right.__getitem__) == []
    assert [demand.option for demand in broken((right | {"colocate": True}).__getitem__)] == ["use_rollout_logprobs"]


def test_kinds_of_demands():
    value = {"a": 2, "b": None}.__getitem__
    assert Demand("a", "", allowed=(1, 2)).holds(value)
    assert not Demand("a", "", allowed=(1,)).holds(value)
    assert Demand("a", "", at_least=2).holds(value)
    assert not Demand("a", "", above=2).holds(value)
    assert not Demand("b", "", at_least=0).holds(value)
