"""Which groups a step takes where it begins more than it needs, and what becomes of the others.

A sampler in this process: a test says when which sample is finished.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from data.cursor import Cursor
from data.errors import UserError
from data.prompts import PromptDataset
from data.ragged import Ragged
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.rollout.buffer import Group
from relax_core.rollout.filters import Verdict
from relax_core.rollout.generated import Generated
from relax_core.rollout.groups import Selection, select
from relax_core.rollout.requests import SampleRequest, step_requests
from relax_core.rollout.source import NewGroups, Source


def prompts(count: int) -> PromptDataset:
    return PromptDataset(
        prompt_ids=[f"{row:08d}" for row in range(count)],
        texts=[f"p{row}" for row in range(count)],
        tokens=Ragged.from_list([[row] for row in range(count)], np.int32),
        labels=[None] * count,
        metadata=[{} for _ in range(count)],
        dropped=0,
        source="test",
    )


def config(samples: int = 2) -> RelaxConfig:
    return with_options(RelaxConfig(), {"n_samples_per_prompt": samples, "rollout_batch_size": 4})


def new_groups(samples: int = 2, count: int = 100, cursor: Cursor = Cursor()) -> NewGroups:  # noqa: B008
    return NewGroups(prompts(count), cursor, 3, config(samples))


def oldest(buffer: Any, count: int) -> tuple[list[str], list[str]]:
    return list(buffer)[:count], []


class Sampler:
    """Finishes samples by ``end``; what is cut has no tokens."""

    def __init__(self, ended: Callable[[SampleRequest], bool] = lambda request: False) -> None:
        self.ended = ended
        self.asked: list[str] = []
        self.cut_of: set[str] | None = None
        self._changed = asyncio.Event()
        self._spare: Callable[[SampleRequest], bool] | None = None

    async def sample(self, request: SampleRequest) -> Generated:
        self.asked.append(request.sample_id)
        while not self.ended(request):
            if self._spare is not None and not self._spare(request):
                return self.result(request, "aborted")
            await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(0)
        return self.result(request, "completed")

    async def cut(self, spare: Callable[[SampleRequest], bool]) -> None:
        self._spare = spare
        self.tell()

    def tell(self) -> None:
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()

    @staticmethod
    def result(request: SampleRequest, status: str) -> Generated:
        return Generated(request, np.empty(0, np.int32), np.empty(0, np.float32), status, "", ())


def numbers(groups: Any) -> list[int]:
    return [(one[0] if isinstance(one, tuple) else one).group_index for one in groups]


def run(work: Coroutine[Any, Any, Selection]) -> Selection:
    return asyncio.run(asyncio.wait_for(work, 20))


def in_groups(*indices: int) -> Callable[[SampleRequest], bool]:
    return lambda request: request.group_index in indices


def test_what_a_step_does_not_need_is_kept_and_nothing_is_lost() -> None:
    """T27: four are needed, six are finished."""
    source = Source([], new_groups(), oldest)
    found = run(select(source, Sampler(lambda request: True), 4, 6))
    assert numbers(found.accepted) == [0, 1, 2, 3]
    assert sorted(numbers(found.surplus)) == [4, 5]
    assert (found.stopped, found.dropped) == ([], [])


def test_the_first_that_are_finished_are_the_steps_and_the_others_are_stopped() -> None:
    sampler = Sampler(lambda request: request.group_index in (1, 4) or request.k == 0)
    found = run(select(Source([], new_groups(), oldest), sampler, 2, 5))
    assert numbers(found.accepted) == [1, 4]
    assert found.surplus == []
    assert [(group.group_index, sorted(ended)) for group, ended in found.stopped] == [
        (0, ["000003-0000-001"]),
        (2, ["000003-0002-001"]),
        (3, ["000003-0003-001"]),
    ]


def test_samples_that_may_not_be_stopped_are_waited_for() -> None:
    sampler = Sampler(in_groups(0))

    async def work() -> Selection:
        selecting = asyncio.create_task(
            select(Source([], new_groups(), oldest), sampler, 1, 3, spare=lambda request: request.group_index == 2)
        )
        while sampler._spare is None:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert not selecting.done()  # the third group is not stopped
        sampler.ended = in_groups(0, 2)
        sampler.tell()
        return await selecting

    found = run(work())
    assert (numbers(found.accepted), numbers(found.surplus), numbers(found.stopped)) == ([0], [2], [1])


def judge(kept: Callable[[int], bool]) -> Any:
    async def verdict(group: Group) -> Verdict:
        return Verdict(kept(group.group_index), f"reason {group.group_index % 2}")

    return verdict


def test_groups_that_the_filter_leaves_out_are_replaced_by_further_prompts() -> None:
    """Of the first three none is kept, of the next three the last two: the third portion gives the third one."""
    source, refills = Source([], new_groups(), oldest), []
    sampler = Sampler(lambda request: True)
    found = run(
        select(
            source,
            sampler,
            3,
            3,
            judge=judge(lambda number: number in (4, 5, 7, 8)),
            refilled=lambda found: refills.append(len(found.dropped)),
        )
    )
    assert source.drawn == 9
    assert numbers(found.accepted) == [4, 5, 7]
    assert Counter(reason for _, reason in found.dropped)["reason 0"] == 3  # 0, 2, 6
    begun = numbers([*found.accepted, *found.surplus, *found.stopped, *found.dropped])
    assert sorted(begun) == list(range(9))
    assert refills


def test_no_more_are_begun_while_enough_are_under_way() -> None:
    """Two are needed and four under way: one that is left out needs no further portion."""
    source = Source([], new_groups(), oldest)
    run(select(source, Sampler(lambda request: True), 2, 4, judge=judge(lambda number: number > 1)))
    assert source.drawn == 4


def test_an_error_ends_every_sample_that_is_under_way() -> None:
    sampler = Sampler(in_groups(0))

    async def fails(group: Group) -> Verdict:
        raise UserError("the filter failed.")

    async def work() -> Selection:
        try:
            return await select(Source([], new_groups(), oldest), sampler, 2, 4, judge=fails)
        finally:
            others = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
            assert others <= {"wait_for", work.__qualname__}

    with pytest.raises(UserError, match="the filter failed"):
        run(work())


def test_what_is_finished_already_is_not_asked_for() -> None:
    first = Group("old", 0, tuple(new_groups().take(1)[0].requests), frozenset({"000003-0000-000"}))
    whole = Group("older", 1, first.requests, frozenset(first.sample_ids))
    sampler = Sampler(lambda request: True)
    found = run(select(Source([first, whole], new_groups(), oldest), sampler, 2, 2))
    assert sampler.asked == ["000003-0000-001"]
    assert [group.group_id for group in found.accepted] == ["old", "older"]


def test_as_many_are_begun_as_an_earlier_driver_had_begun() -> None:
    source = Source([], new_groups(), oldest)
    run(select(source, Sampler(lambda request: True), 2, 2, at_least=5))
    assert source.drawn == 6


@pytest.mark.parametrize("count", [100, 3])
def test_new_groups_are_those_of_the_step_in_however_many_portions(count: int) -> None:
    """Three prompts: a prompt comes again in the step, and its samples get seeds of their own."""
    cursor = Cursor(0, 2, 2)
    whole, after = step_requests(prompts(count), cursor, 3, config())
    new = new_groups(count=count, cursor=cursor)
    portions = [*new.take(1), *new.take(2), *new.take(1)]
    asked = [request for group in portions for request in group.requests]
    assert [(one.sample_id, one.seed, one.index) for one in asked] == [
        (one.sample_id, one.seed, one.index) for one in whole
    ]
    assert (new.cursor, new.drawn) == (after, 4)
    assert len({request.seed for group in portions for request in group.requests}) == 8
    assert new.number("000003-0002") == 2
    assert new.number("000002-0002") is None


def test_the_buffer_comes_first_and_what_nobody_wants_is_told() -> None:
    groups = {name: Group(name, at, ()) for at, name in enumerate("abcd")}

    def choice(buffer: Any, count: int) -> tuple[list[str], list[str]]:
        return [name for name in ("c", "a") if name in buffer], ["b"] if "b" in buffer else []

    source = Source(groups.values(), new_groups(), choice)
    taken = source.take(3)
    assert [group.group_id for group in taken] == ["c", "a", "000003-0000"]
    assert [group.group_id for group in source.left] == ["d"]
    assert [group.group_id for group in source.discarded] == ["b"]
    assert [group.group_id for group in source.carried] == ["c", "a"]
    assert [group.group_id for group in source.take(1)] == ["000003-0001"]
