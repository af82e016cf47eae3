"""mix: a weighted sum that keeps its parts."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.rewards import registry
from relax_core.rewards.parts import TERMS, read_parts
from relax_core.rewards.types import UNDECIDED, RewardInput, RewardSpec

MIX = registry.get("mix")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Adds a reward to the registry."""
    known = registry.builtin_rewards()

    def add(name: str, function: Any, **fields: Any) -> None:
        known[name] = RewardSpec(name, function, fields.pop("is_async", False), "", "", **fields)

    monkeypatch.setattr(registry, "builtin_rewards", lambda: known)
    read_parts_cache_clear()
    yield add
    read_parts_cache_clear()


def read_parts_cache_clear() -> None:
    from relax_core.rewards import parts

    parts._read.cache_clear()


def sample(response: str = "#### 42", length: int = 10, **metadata: Any) -> RewardInput:
    return RewardInput("s-1", "p", response, "42", metadata, response_length=length)


def mixed(mix: Any, given_sample: RewardInput | None = None) -> Any:
    return MIX.function(given_sample or sample(), reward_mix=mix)


def test_the_sum_comes_first_and_every_part_is_kept() -> None:
    mix = {"gsm8k": 1, "format": 0.1, "overlong": {"weight": 0.5, "max": 12, "buffer": 4}}
    value = mixed(mix)
    assert list(value.items()) == [("score", 0.75), ("gsm8k", 1.0), ("format", 0.0), ("overlong", -0.5)]


def test_a_rows_own_mix_wins() -> None:
    assert mixed({"gsm8k": 1}, sample(reward_mix={"gsm8k": 3}))["score"] == 3.0


def test_a_part_with_several_values_keeps_the_others_under_its_name() -> None:
    instructions = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    value = mixed({"ifbench": {"weight": 2, "key": "followed"}}, sample("a, b", **instructions))
    assert value == {"score": 0.0, "ifbench/score": 0.0, "ifbench/punctuation:no_comma": 0.0, "ifbench": 0.0}


def test_a_part_without_a_score_makes_the_sum_no_score(own: Any) -> None:
    own("silent", lambda sample: None)
    assert mixed({"gsm8k": 1, "silent": 0}) == {"score": None, "gsm8k": 1.0, "silent": None}


def test_what_a_part_raises_is_raised() -> None:
    with pytest.raises(UserError, match=r"s-1 is not a number"):
        mixed({"gsm8k": 1}, RewardInput("s-1", "p", "x", "no number"))


def test_a_part_that_may_hang_leaves_the_sum_to_the_full_function(own: Any) -> None:
    own("slow", lambda sample: 1.0, isolated=True)
    own("sure", lambda sample: 1.0, isolated=True, quick=lambda sample: 1.0)
    own("unsure", lambda sample: 1.0, isolated=True, quick=lambda sample: UNDECIDED)
    assert MIX.quick is not None
    assert MIX.isolated
    for name, at_once in (("slow", False), ("sure", True), ("unsure", False)):
        assert (MIX.quick(sample(), reward_mix={"gsm8k": 1, name: 1}) is not UNDECIDED) == at_once
        assert mixed({"gsm8k": 1, name: 1})["score"] == 2.0


def test_a_part_that_waits_is_waited_for(own: Any) -> None:
    async def later(sample: RewardInput) -> float:
        return 0.5

    own("later", later, is_async=True)
    assert MIX.quick is not None
    assert MIX.quick(sample(), reward_mix={"gsm8k": 1, "later": 1}) is UNDECIDED
    assert asyncio.run(mixed({"gsm8k": 1, "later": 1})) == {"score": 1.5, "gsm8k": 1.0, "later": 0.5}


def test_a_part_that_takes_options_gets_them(own: Any) -> None:
    own("asked", lambda sample, rm_url: float(len(rm_url)), options=("rm_url",))
    assert MIX.function(sample(), reward_mix={"asked": 1}, rm_url="abc")["score"] == 3.0
    own("other", lambda sample, more: 1.0, options=("more",))
    with pytest.raises(UserError, match="cannot have the part other, which needs more"):
        mixed({"other": 1})


WEIGHTS = st.floats(-10, 10).filter(bool)


@given(WEIGHTS, WEIGHTS, st.text(alphabet=st.sampled_from("<think>/#42 \n")))
def test_the_sum_is_linear_and_the_quick_one_is_the_same(one: float, two: float, response: str) -> None:
    value = mixed({"gsm8k": one, "format": two}, sample(response))
    assert value["score"] == pytest.approx(one * value["gsm8k"] + two * value["format"])
    assert MIX.quick is not None
    assert MIX.quick(sample(response), reward_mix={"gsm8k": one, "format": two}) == value


@given(st.text(), st.integers(1, 99))
def test_terms_take_any_response_and_stay_bounded(response: str, length: int) -> None:
    settings = {
        "overlong": {"max": 50, "buffer": 10},
        "length": {"target": 5, "width": 3},
        "language": {"language": "en"},
        "format": {},
        "repetition": {},
    }
    assert set(settings) == set(TERMS)
    value = mixed(settings, sample(response, length))
    assert all(-1.0 <= value[name] <= 1.0 for name in settings)


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        (None, "must name the parts"),
        ([], "must name the parts"),
        ({"gsm8k": object()}, "must be JSON"),
        ({"nothing": 1}, "'nothing', which is no reward and no shaping term"),
        ({"gsm8k": {"key": 1}}, "a reward has weight and key"),
        ({"gsm8k": True}, "weight True, which must be a number"),
        ({"format": {"answer": 1}}, "answer 1, which must be true or false"),
        ({"repetition": {"n": 1.5}}, "n 1.5, which must be a whole number, 1 or more"),
        ({"length": {"target": 1}}, "no 'width'"),
    ],
)
def test_a_mistake_in_the_parts_is_named(mix: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_parts(mix)


def test_nothing_to_add_up_is_an_error_with_the_sample() -> None:
    with pytest.raises(UserError, match=r"s-1 has the reward mix, and nothing says.*--reward-mix"):
        mixed(None)
