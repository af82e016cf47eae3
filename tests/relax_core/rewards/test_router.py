"""Which reward scores a sample: what is said, what a label tells, what stands in, what is counted."""

import json
import logging
import re
from typing import Any

import pyarrow as pa
import pytest
from effect_probes import rollout_table
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rewards import registry, router
from relax_core.rewards.router import Router
from relax_core.rewards.score import score_table
from relax_core.rewards.types import RewardInput, RewardSpec
from relax_core.tracking.metrics import step_metrics


def spec(name: str, pattern: str | None = None, score: float = 1.0) -> RewardSpec:
    def matches(label: Any) -> bool:
        return re.fullmatch(str(pattern), label) is not None  # a TypeError for what is no text

    return RewardSpec(name, lambda sample: score, False, "", name, matches=None if pattern is None else matches)


REWARDS = {
    one.name: one
    for one in (
        spec("digits", r"\d+"),
        spec("letter", r"<answer>[A-D]</answer>"),
        spec("short", r".{1,2}", 0.5),
        spec("plain", score=0.25),
    )
}


@pytest.fixture(autouse=True)
def rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "builtin_rewards", lambda: REWARDS)
    monkeypatch.setattr(router, "_warned", set())


def way(of: Router, label: Any = None, **metadata: Any) -> tuple[str, str, str | None]:
    """Name of the reward, decision, reason."""
    found = of.route("s", metadata, label)
    return found.spec.name, found.decision, found.reason


def test_what_the_row_says_wins_then_what_the_run_says() -> None:
    assert way(Router("plain"), rm_type="digits") == ("digits", "explicit", None)
    assert way(Router("plain")) == ("plain", "explicit", None)
    assert way(Router("plain"), rm_type="") == ("plain", "explicit", None)


def test_a_box_goes_before_any_name() -> None:
    boxed = Router(None).route("s", {"rm_type": "boxed_plain"}, None)
    assert (boxed.spec.name, boxed.decision) == ("boxed_plain", "explicit")
    seen: list[str] = []
    REWARDS["seen"] = RewardSpec("seen", lambda sample: seen.append(sample.response), False, "", "")
    try:
        spec = Router("boxed_seen").route("s", {}, None).spec
        spec.function(RewardInput("s", "", r"\boxed{1} then \boxed{2}"))
    finally:
        del REWARDS["seen"]
    assert seen == ["2"]


def test_a_label_tells_where_exactly_one_reward_has_such_labels() -> None:
    infers = Router(None, infer=True)
    assert way(infers, "123") == ("digits", "inferred", None)
    assert way(infers, "<answer>B</answer>") == ("letter", "inferred", None)
    for label in ("12", "words and more", "", None, 5, ["123"], {"a": 1}):  # two match 12, none the others
        with pytest.raises(UserError, match=r"Sample s has no reward: .*and its label tells none"):
            infers.route("s", {}, label)
    with pytest.raises(UserError, match=r"--rm-type is set\."):
        Router(None).route("s", {}, "123")


def test_what_is_said_wins_over_the_label_and_the_conflict_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    infers = Router("letter", infer=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert way(infers, "123") == ("letter", "explicit", "conflict:letter/digits")
    assert infers.counts == {"conflict:letter/digits": 3}
    assert len(caplog.records) == 1
    assert "reward_router/conflict:letter/digits" in caplog.text
    assert way(infers, "<answer>A</answer>") == ("letter", "explicit", None)
    assert way(infers, "12") == ("letter", "explicit", None)  # ambiguous: no conflict
    assert way(infers, "123", rm_type="boxed_digits") == ("boxed_digits", "explicit", None)
    assert way(Router("letter"), "123") == ("letter", "explicit", None)


@pytest.mark.parametrize(("name", "score"), [("zero", 0.0), ("plain", 0.25)])
def test_the_fallback_stands_in_for_missing_and_unknown_types(
    name: str, score: float, caplog: pytest.LogCaptureFixture
) -> None:
    falls = Router(None, infer=True, fallback=name)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert way(falls) == (name, "fallback", "no_type")
            assert way(falls, rm_type="none-such") == (name, "fallback", "unknown_type:none-such")
    assert way(falls, "123") == ("digits", "inferred", None)
    assert falls.counts == {"no_type": 2, "unknown_type:none-such": 2}
    assert len(caplog.records) == 2  # once for each reason
    assert falls.route("s", {}, None).spec.function(RewardInput("s", "", "")) == score


def test_without_a_fallback_an_unknown_type_is_an_error_and_an_unknown_fallback_is_one_at_once() -> None:
    with pytest.raises(UserError, match=r"no reward named 'digts'.*Did you mean 'digits'"):
        Router(None).route("s", {"rm_type": "digts"}, None)
    with pytest.raises(UserError, match="no reward named 'none-such'"):
        Router(None, fallback="none-such")


def test_zero_has_the_key_of_the_score() -> None:
    zero = Router(None, fallback="zero", reward_key="score").route("s", {}, None).spec
    assert zero.function(RewardInput("s", "", "")) == {"score": 0.0}


def test_rewards_get_the_options_that_they_take() -> None:
    REWARDS["taking"] = RewardSpec("taking", lambda sample, lr: lr, False, "", "", options=("lr",))
    try:
        table = score_table(rollout_table(), with_options(RelaxConfig(), {"rm_type": "taking", "lr": 0.5}))
    finally:
        del REWARDS["taking"]
    assert table["reward"].to_pylist() == [0.5] * 4


@given(label=st.one_of(st.text(), st.integers(), st.none(), st.lists(st.integers(), max_size=2)))
def test_no_label_breaks_the_inference(label: Any) -> None:
    found = Router(None, infer=True, fallback="zero").route("s", {}, label)
    matching = [name for name, one in REWARDS.items() if isinstance(label, str) and one.matches and one.matches(label)]
    assert found.decision == ("inferred" if len(matching) == 1 else "fallback")


def test_decisions_and_reasons_are_in_the_table_and_the_metrics() -> None:
    rollout = rollout_table()
    rows = [{"rm_type": "plain"}, {"rm_type": "none-such"}, {}, {"rm_type": "letter"}]
    labels = pa.array([None, None, None, '"123"'], pa.string())
    for name, column in (("metadata", pa.array(map(json.dumps, rows))), ("label", labels)):
        rollout = rollout.set_column(rollout.schema.get_field_index(name), rollout.schema.field(name), column)
    options = {"rm_type_infer": True, "rm_type_fallback": "zero"}
    table = score_table(rollout, with_options(RelaxConfig(), options))
    assert table["rm_type"].to_pylist() == ["plain", "zero", "zero", "letter"]
    assert table["decision"].to_pylist() == ["explicit", "fallback", "fallback", "explicit"]
    reasons = [None, "unknown_type:none-such", "no_type", "conflict:letter/digits"]
    assert table["decision_reason"].to_pylist() == reasons
    metrics = step_metrics(rollout, table)
    assert {name: value for name, value in metrics.items() if name.startswith("reward_")} == {
        "reward_outcome/scored": 4,
        "reward_outcome/no_score": 0,
        "reward_outcome/nan": 0,
        "reward_outcome/failed": 0,
        **{f"reward_router/{reason}": 1 for reason in reasons[1:]},
    }
