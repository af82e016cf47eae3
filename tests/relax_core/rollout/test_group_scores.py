"""Scores of groups while others are generated, for a filter that waits for them."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from results import made, requests, rows

from data.errors import UserError
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.functions import UserFunction
from relax_core.rewards.choice import training_choice
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.pools import Pools
from relax_core.rewards.stream import RewardStream
from relax_core.rollout.buffer import Group, new_groups
from relax_core.rollout.filters import Verdict, dynamic_filter
from relax_core.rollout.sample import samples_of
from relax_core.rollout.scores import GroupScores, unscored

SPREAD = "relax_core.rollout.filters.check_reward_nonzero_std"


class Stream:
    """Remembers what it gets."""

    def __init__(self) -> None:
        self.added: list[list[str]] = []

    def add(self, rows: pa.Table) -> None:
        self.added.append(rows["sample_id"].to_pylist())


@pytest.fixture
def settings() -> RelaxConfig:
    return with_options(RelaxConfig(), {"dynamic_sampling_filter_path": SPREAD, "n_samples_per_prompt": 2})


@pytest.fixture
def group() -> Group:
    return new_groups(requests(1))[0]


def function(settings: RelaxConfig) -> UserFunction:
    found = dynamic_filter(settings)
    assert found is not None
    return found


def finished(group: Group, *statuses: str) -> pa.Table:
    statuses = statuses or ("completed",) * len(group.requests)
    return rows(*(made(one, [1], status) for one, status in zip(group.requests, statuses, strict=True)))


def scores(*values: float | None) -> list[Outcome]:
    return [Outcome(value) for value in values]


@pytest.mark.parametrize(("values", "said"), [((0.0, 1.0), (True, None)), ((0.5, 0.5), (False, "zero_std_0.5"))])
def test_a_verdict_comes_when_all_samples_have_rows_and_scores(
    settings: RelaxConfig, group: Group, values: Any, said: Any
) -> None:
    stream = Stream()
    waiting = GroupScores(stream.add, settings, function(settings))
    whole = finished(group)

    async def work() -> Verdict:
        verdict = asyncio.create_task(waiting.verdict(group))
        await asyncio.sleep(0.01)
        # from other threads, the scores of the first sample before the row of the second
        for call in (
            lambda: waiting.arrived(whole.slice(0, 1)),
            lambda: waiting.scored([group.sample_ids[0]], scores(values[0])),
            lambda: waiting.arrived(whole.slice(1, 1)),
        ):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
        await asyncio.sleep(0.01)
        assert not verdict.done()
        threading.Thread(target=lambda: waiting.scored([group.sample_ids[1]], scores(values[1]))).start()
        return await asyncio.wait_for(verdict, 10)

    assert asyncio.run(work()) == said
    assert sorted(stream.added) == [[name] for name in group.sample_ids]


def test_nothing_is_scored_that_nobody_asked_for_and_nothing_twice(settings: RelaxConfig) -> None:
    stream, (first, second) = Stream(), new_groups(requests(2))
    waiting = GroupScores(stream.add, settings, None)
    waiting.arrived(finished(first))
    waiting.arrived(finished(second))
    assert stream.added == []
    waiting.want(first.sample_ids)
    waiting.want(first.sample_ids)
    assert stream.added == [first.sample_ids]


def test_a_failed_sample_is_not_waited_for(settings: RelaxConfig, group: Group) -> None:
    """Its score is missing; one score has no spread."""
    waiting = GroupScores(Stream().add, settings, function(settings))
    waiting.arrived(finished(group, "completed", "aborted"))
    waiting.scored([group.sample_ids[0]], scores(1.0))
    assert asyncio.run(asyncio.wait_for(waiting.verdict(group), 10)) == (False, "zero_std_1.0")


def test_an_error_of_a_reward_is_the_error_of_who_waits(settings: RelaxConfig, group: Group) -> None:
    waiting = GroupScores(Stream().add, settings, function(settings))

    async def work() -> Verdict:
        verdict = asyncio.create_task(waiting.verdict(group))
        await asyncio.sleep(0.01)
        threading.Thread(target=lambda: waiting.scored([], UserError("the reward failed."))).start()
        return await asyncio.wait_for(verdict, 10)

    with pytest.raises(UserError, match="the reward failed"):
        asyncio.run(work())


def test_samples_of_a_buffer_have_no_scores_and_say_how_often_they_were_stopped(group: Group) -> None:
    whole = finished(group, "completed", "aborted")
    found = [(sample.reward, sample.abort_count) for sample in samples_of(whole, unscored(whole))]
    assert found == [(None, 0), (None, 1)]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("def reward(sample):\n    return float(sample.index)\ndef fails(sample):\n    return 1 / 0\n")
    return path


@pytest.mark.parametrize("name", ["reward", "fails"])
def test_a_stream_tells_whoever_watches_it(settings: RelaxConfig, group: Group, mine: Path, name: str) -> None:
    settings = with_options(settings, {"custom_rm_path": f"{mine}:{name}"})
    with (
        Pools(settings) as pools,
        RewardStream(training_choice(settings), settings, pools, {}, pa.concat_tables) as stream,
    ):
        waiting = GroupScores(stream.add, settings, function(settings))
        stream.watch(waiting.scored)
        waiting.arrived(finished(group))
        verdict = asyncio.wait_for(waiting.verdict(group), 30)
        if name == "reward":
            assert asyncio.run(verdict) == (True, None)
        else:
            with pytest.raises(UserError, match=r"mine.py:fails failed on sample 000005-0000-00\d: ZeroDivisionError"):
                asyncio.run(verdict)
