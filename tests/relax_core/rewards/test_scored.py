"""Outcomes of a scoring that is cut off, kept in the run directory."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from data.store import RunStore
from relax_core.rewards import scored
from relax_core.rewards.calls import Call
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.scored import ScoredCalls, ScoreParts, calls_of_step
from relax_core.rewards.types import RewardInput, RewardSpec

SPEC = RewardSpec("judge", lambda sample: 1.0, False, "", "")
SCORING = "0123456789abcdef" * 4


def call(number: int, key: str | None = None, response: str = "r") -> Call:
    return Call(SPEC, (RewardInput(f"s-{number}", "p", response),), key=key)


def scores(kept: ScoredCalls, made: Call, *outcomes: Outcome) -> None:
    assert kept.find(made) is None
    kept.keep(made, list(outcomes))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(str(tmp_path))


def wait_for_parts(store: RunStore, count: int) -> list[str]:
    until = time.monotonic() + 20
    while len(names := store.ls(f"steps/000003/reward.parts/{SCORING[:16]}")) < count:
        assert time.monotonic() < until
        time.sleep(0.01)
    return names


def test_what_is_durable_comes_back_as_it_was(store: RunStore) -> None:
    """All that an outcome may hold: a number that no decimal of few digits has, NaN, none, and texts."""
    outcomes = [
        Outcome(
            1 / 3, -0.0, {"judge/why": "«yes»", "n": 2.0, "bad": None}, seconds=0.25, texts={"judge_output": "a\n"}
        ),
        Outcome(None, None, error="the reward returned no score", kind="no_score"),
    ]
    nan = Outcome(math.nan, math.nan, error="the reward returned NaN", kind="nan")
    first = calls_of_step(store, 3, SCORING)
    scores(first, call(0), *outcomes)
    scores(first, call(1, key="part"), nan)
    first.end(keep=True)

    second = calls_of_step(store, 3, SCORING)
    found = second.find(call(0))
    assert found == outcomes
    assert str(found[0].raw) == "-0.0"
    assert [math.isnan(outcome.score or 0) for outcome in second.find(call(1, key="part")) or []] == [True]
    assert len(second.reused) == 2


def test_an_outcome_is_another_ones_for_other_content_key_scoring_and_step(store: RunStore) -> None:
    first = calls_of_step(store, 3, SCORING)
    scores(first, call(0), Outcome(1.0))
    first.end(keep=True)
    again = calls_of_step(store, 3, SCORING)
    assert again.find(call(0)) == [Outcome(1.0)]
    assert again.find(call(0, response="other")) is None
    assert again.find(call(0, key="other")) is None
    assert again.find(call(1)) is None
    assert calls_of_step(store, 3, SCORING[1:]).find(call(0)) is None
    assert calls_of_step(store, 4, SCORING).find(call(0)) is None
    assert len(again.reused) == 1


def test_outcomes_are_durable_while_others_are_made_and_a_short_scoring_writes_nothing(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calls_of_step(store, 3, SCORING) as short:  # far less than KEEP_SECONDS
        scores(short, call(0), Outcome(1.0))
    assert store.ls("steps") == []
    monkeypatch.setattr(scored, "KEEP_SECONDS", 0.05)
    with calls_of_step(store, 3, SCORING) as kept:
        scores(kept, call(0), Outcome(1.0))
        wait_for_parts(store, 1)
        scores(kept, call(1), Outcome(2.0))
        wait_for_parts(store, 2)
        scores(kept, call(2), Outcome(kind="failed"))
        beside = calls_of_step(store, 3, SCORING)  # what a driver after a kill at this moment has
        assert [beside.find(call(n)) for n in range(3)] == [[Outcome(1.0)], [Outcome(2.0)], None]
    ScoreParts(store, 3).delete()
    assert store.ls("steps/000003") == []


def test_what_another_one_has_not_written_yet_is_written_by_the_one_that_takes_it(store: RunStore) -> None:
    stream = calls_of_step(store, 3, SCORING)
    scores(stream, call(0), Outcome(1.0))
    stream.end(keep=False)
    stage = calls_of_step(store, 3, SCORING)
    stage.take(stream)
    stage.end(keep=True)
    assert calls_of_step(store, 3, SCORING).find(call(0)) == [Outcome(1.0)]


def test_what_the_same_process_has_made_is_not_counted_as_reused(store: RunStore) -> None:
    """A stream has made s-0 and written it down before the stage looked."""
    stream = calls_of_step(store, 3, SCORING)
    scores(stream, call(0), Outcome(1.0))
    stream.end(keep=True)
    stage = calls_of_step(store, 3, SCORING)
    stage.take(stream)
    assert stage.find(call(0)) == [Outcome(1.0)]
    assert stage.reused == set()


def test_a_part_that_is_damaged_or_another_table_costs_only_itself(
    store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        kept = calls_of_step(store, 3, SCORING)
        scores(kept, call(number), Outcome(float(number)))
        kept.end(keep=True)
    folder = f"steps/000003/reward.parts/{SCORING[:16]}"
    names = store.ls(folder)
    store.write_bytes(f"{folder}/{names[0]}", store.read_bytes(f"{folder}/{names[0]}")[:40])
    store.write_table(f"{folder}/{names[1]}", store.read_table(f"{folder}/{names[1]}").drop(["key"]))
    again = calls_of_step(store, 3, SCORING)
    assert sum(again.find(call(number)) is not None for number in range(3)) == 1
    assert caplog.text.count("is of no use") == 2


def test_storage_that_takes_nothing_fails_no_scoring(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise UserError("The disk is full.")

    monkeypatch.setattr(RunStore, "write_table", full)
    kept = calls_of_step(store, 3, SCORING)
    scores(kept, call(0), Outcome(1.0))
    kept.end(keep=True)
    assert kept.find(call(0)) == [Outcome(1.0)]
