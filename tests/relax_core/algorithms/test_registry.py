"""Estimator registry, the demands as data, the GRPO advantage, and an estimator in one file."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data.errors import UserError
from relax_core.algorithms import estimators, registry
from relax_core.algorithms.advantages import (
    AdvantageInputs,
    AdvantageOptions,
    Advantages,
    compute_advantages,
    spread_over_tokens,
)
from relax_core.algorithms.assemble import PolicyObjective
from relax_core.algorithms.loss_parts import LossOptions, Tokens
from relax_core.algorithms.losses import policy_loss
from relax_core.algorithms.reduce import StepSize, step_weights
from relax_core.algorithms.registry import Demand, EstimatorSpec, estimator_names, get_estimator, register
from relax_core.algorithms.rewards import NORMALIZERS, normalize_rewards
from relax_core.algorithms.sequences import Sequences
from relax_core.config.options import OPTIONS


def test_grpo_is_registered_with_its_parts():
    grpo = get_estimator("grpo")
    assert "grpo" in estimator_names()
    assert (grpo.normalizer, grpo.needs_critic) == ("group_mean_std", False)
    assert grpo.load_policy_loss() is policy_loss


def test_unknown_estimator_suggests_the_nearest():
    with pytest.raises(UserError, match="Did you mean grpo"):
        get_estimator("grpoo")


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


# -- specifications ----------------------------------------------------------------------------------------------------


def test_all_estimators_are_there_in_the_order_of_the_reference():
    assert estimator_names() == (
        "grpo", "gspo", "sapo", "cispo", "rloo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline",
    )  # fmt: skip


@pytest.mark.parametrize("name", estimator_names())
def test_a_specification_names_what_there_is(name):
    spec = get_estimator(name)
    assert callable(spec.load_policy_loss())
    assert {spec.normalizer, *spec.normalizers} <= set(NORMALIZERS)
    assert set(spec.loss_options) <= {field.name for field in dataclasses.fields(LossOptions)}
    assert set(spec.advantage_options) <= {field.name for field in dataclasses.fields(AdvantageOptions)}
    assert spec.summary.endswith(".")
    assert spec.source
    for demand in spec.all_demands:
        assert demand.option in OPTIONS
        assert demand.when is None or demand.when in OPTIONS
        assert sum(bound is not None for bound in (demand.allowed, demand.at_least, demand.above)) == 1
        demand.reason.format(advantage_estimator=name)


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


# -- an estimator in one file ------------------------------------------------------------------------------------------

ONE_FILE = '''
"""Sign of the centred reward, and a loss that squares the log-ratio."""

import numpy as np

from relax_core.algorithms.advantages import AdvantageInputs, Advantages, spread_over_tokens
from relax_core.algorithms.registry import Demand, EstimatorSpec, register


def advantages(inputs: AdvantageInputs) -> Advantages:
    spread = spread_over_tokens(inputs).advantages
    return Advantages(np.sign(spread), spread)


def loss(log_probs, old_log_probs, advantages, *, mask, eps_clip, sequences):
    from relax_core.algorithms.losses import PolicyLoss

    gap = (log_probs - old_log_probs) * mask
    return PolicyLoss(-advantages * gap + eps_clip * gap**2 * len(sequences), gap.detach() > eps_clip, -gap.detach())


register(
    EstimatorSpec(
        name="sign_of_reward",
        summary="Sign of the centred reward.",
        normalizer="group_mean",
        advantages=advantages,
        policy_loss=f"{__name__}:loss",
        loss_options=("eps_clip",),
        sequence_loss=True,
        demands=(Demand("partial_rollout", "cannot be used with it.", allowed=(False,)),),
    )
)
'''


def test_one_new_file_is_an_estimator_from_its_name_to_its_gradient(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    monkeypatch.setattr(estimators, "__path__", [*estimators.__path__, str(tmp_path)])
    (tmp_path / "sign.py").write_text(ONE_FILE)
    try:
        estimators.discover()
        assert estimator_names()[-1] == "sign_of_reward"
        spec = get_estimator("sign_of_reward")
        # rewards 3 and 1: centred 1 and -1
        rewards = normalize_rewards(np.array([3.0, 1.0]), ["g", "g"], kind=spec.normalizer)
        inputs = AdvantageInputs(rewards, np.array([0, 1, 2]), np.ones(2, dtype=np.uint8))
        result = compute_advantages(spec, inputs)
        assert result.advantages.tolist() == [1, -1]
        new, mask, offsets = torch.tensor([-1.0, -2.0], requires_grad=True), torch.ones(2), torch.tensor([0, 1, 2])
        size = StepSize(2, 2)
        tokens = Tokens(
            new, torch.from_numpy(result.advantages), mask, step_weights(mask, offsets, size, per_token=False),
            Sequences(offsets), old_log_probs=torch.tensor([-1.5, -1.5]),
        )  # fmt: skip
        parts = PolicyObjective(spec, LossOptions(eps_clip=0.1), size)(tokens)
        # gaps 0.5, -0.5: ((-0.5 + 0.05) + (-0.5 + 0.05)) / 2; gradient (-A + 0.4 gap) / 2
        parts.loss.backward()
        assert parts.loss.item() == pytest.approx(-0.45)
        torch.testing.assert_close(new.grad, torch.tensor([-0.4, 0.4]))
        demanded = {demand.option for demand in spec.all_demands}
        assert demanded == {"kl_coef", "disable_rewards_normalization", "partial_rollout"}
    finally:
        sys.modules.pop("relax_core.algorithms.estimators.sign", None)
