"""Orders of samples, by hand."""

from pathlib import Path
from typing import Any

import pytest
from handmade_run import IDS, STEP, write_run

from data.errors import UserError
from relax_core.show.reading import Sample, read_step
from relax_core.show.samples import TRIMMED, best_and_worst, chosen, ends, facts, in_order, trimmed


def sample(name: str, reward: float | None = None, length: int = 1, **values: Any) -> Sample:
    """Sample ``b2`` is the second of group ``b``."""
    return Sample(
        name, name[0], f"prompt {name}", "text", None, 1, length, "completed", "stop", [0], False, 0, reward, **values
    )


def names(samples: list[Sample]) -> str:
    return " ".join(one.sample_id for one in samples)


def test_samples_without_a_value_come_last_in_both_directions() -> None:
    samples = [sample("a1"), sample("a2", 0.0), sample("b1", -1.0), sample("b2", 2.0)]
    assert names(in_order(samples, "reward")) == "b2 a2 b1 a1"
    assert names(in_order(samples, "reward", ascending=True)) == "b1 a2 b2 a1"


def test_of_equal_samples_the_one_with_the_larger_advantage_comes_first_then_the_smaller_id() -> None:
    samples = [
        sample("a2", 1.0),
        sample("a1", 1.0),
        sample("b1", 1.0, advantage=-0.5),
        sample("b2", 1.0, advantage=0.1),
    ]
    assert names(in_order(samples, "reward")) == "b1 b2 a1 a2"


def test_samples_are_sorted_by_length_and_by_their_largest_gap() -> None:
    samples = [sample("a1", length=5, gap_max=0.1), sample("a2", length=7), sample("b1", length=6, gap_max=0.3)]
    assert names(in_order(samples, "length")) == "a2 b1 a1"
    assert names(in_order(samples, "gap")) == "b1 a1 a2"


def test_both_ends_share_no_sample_and_show_one_of_each_group_first() -> None:
    samples = [sample("a1", 1.0), sample("a2", 1.0), sample("b1", 1.0), sample("b2", 0.0), sample("c1")]
    # a1, a2 and b1 are equal: one of a, one of b, then the second of a
    best, worst = ends(samples, "reward", 2)
    assert (names(best), names(worst)) == ("a1 b1", "b2 a2")
    best, worst = ends(samples, "reward", 9)
    assert (names(best), names(worst)) == ("a1 b1 a2 b2", "")


def test_the_best_and_the_worst_of_a_step_are_brief(tmp_path: Path) -> None:
    best, worst = best_and_worst(write_run(tmp_path), STEP, 1)
    assert [(one["sample_id"], one["reward"]) for one in best] == [(IDS[0], 1.0)]
    assert [(one["sample_id"], one["reward"]) for one in worst] == [(IDS[1], 0.0)]
    assert list(best[0]) == ["sample_id", "prompt", "response", "reward", "label", "length"]


def test_long_texts_lose_their_middle() -> None:
    text = "a" * 300 + "b" * 300
    short = trimmed(text)
    assert len(short) == TRIMMED
    assert short.startswith("aaa")
    assert short.endswith("bbb")
    assert trimmed("short") == "short"


def test_samples_are_chosen_by_id_group_and_words_of_the_prompt() -> None:
    samples = [sample("a1"), sample("a2"), sample("b1")]
    assert names(chosen(samples, sample="a2")) == "a2"
    assert names(chosen(samples, group="a")) == "a1 a2"
    assert names(chosen(samples, prompt="PROMPT B")) == "b1"
    with pytest.raises(UserError, match="--group z: none of the 3 samples") as error:
        chosen(samples, group="z")
    assert "a1" in error.value.fix


def test_facts_count_groups_whose_rewards_differ_and_samples_without_a_score(tmp_path: Path) -> None:
    found = facts(read_step(write_run(tmp_path), STEP).samples)
    # rewards 1, 0, none, 0.5: mean 0.5; the second group has one score alone; the gaps of a step: see handmade_run
    assert found["reward"] == "0.500"
    assert found["groups mixed"] == "1 of 2"
    assert found["without a score"] == "1"
    assert found["truncated"] == "25%"
    assert found["gap"].endswith("max 0.2")
    assert facts([]) == {"samples": "0"}
