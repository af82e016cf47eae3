"""The built-in rewards by name."""

import pytest

from data.errors import UserError
from relax_core.rewards import registry
from relax_core.rewards.types import RewardInput


def test_builtin_rewards_have_help_and_a_source_hash():
    specs = registry.builtin_rewards()
    assert {"exact_number", "gsm8k", "gsm8k_flexible", "random", "dummy"} <= set(specs)
    for spec in specs.values():
        assert spec.doc
        assert len(spec.source_hash) == 64
        assert not spec.custom


def test_an_unknown_name_says_which_is_nearest():
    with pytest.raises(UserError, match=r"'gsm8'.*Did you mean 'gsm8k'"):
        registry.get("gsm8")


def test_a_name_like_no_other_lists_the_names():
    with pytest.raises(UserError, match=r"exact_number, .*gsm8k"):
        registry.get("zzz")


def test_a_name_cannot_be_taken_twice():
    with pytest.raises(ValueError, match="already defined"):
        registry.register("gsm8k")(lambda sample: 0.0)


def test_random_is_fixed_by_the_sample_and_fair_over_many():
    function = registry.get("random").function
    scores = [function(RewardInput(f"s-{i}", "", "")) for i in range(1000)]
    assert scores == [function(RewardInput(f"s-{i}", "", "")) for i in range(1000)]
    assert set(scores) == {0.0, 1.0}
    assert 400 < sum(scores) < 600  # 6 standard deviations of a fair coin


def test_dummy_is_zero():
    assert registry.get("dummy").function(RewardInput("s", "", "")) == 0.0
