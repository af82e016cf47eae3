"""The groups of a step where more are begun than it needs (--over-sampling-batch-size, --dynamic-sampling-filter-path).

Guarantee: the first groups that are finished and pass the filter are the step's, as many as it needs, in the order of
their indices; every other group that was begun is told of as surplus, stopped or dropped: none is lost or told twice.
Samples that may not be stopped are waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from relax_core import aio
from relax_core.rollout.buffer import Group
from relax_core.rollout.filters import Verdict
from relax_core.rollout.generated import Generated
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.sample import Status
from relax_core.rollout.source import Source
from relax_core.waiting import told

_Task = TypeVar("_Task", bound="asyncio.Task[Any]")

Judge: TypeAlias = Callable[[Group], Awaitable[Verdict]]
"""Whether a finished group is the step's."""


class Sampler(Protocol):
    """A generation under way, see ``relax_core.rollout.generate.Generation``."""

    async def sample(self, request: SampleRequest) -> Generated: ...
    async def cut(self, spare: Callable[[SampleRequest], bool]) -> None: ...


@dataclass
class Selection:
    """What became of the groups that were begun.

    Attributes:
        accepted: the step's.
        surplus: finished ones that the step does not need.
        stopped: unfinished ones, and the ids of their samples that are.
        dropped: those that the filter did not keep, and its reasons.
    """

    accepted: list[Group] = field(default_factory=list)
    surplus: list[Group] = field(default_factory=list)
    stopped: list[tuple[Group, frozenset[str]]] = field(default_factory=list)
    dropped: list[tuple[Group, str | None]] = field(default_factory=list)


async def select(
    source: Source,
    sampler: Sampler,
    need: int,
    batch: int,
    *,
    at_least: int = 0,
    judge: Judge | None = None,
    spare: Callable[[SampleRequest], bool] = lambda request: False,
    finished: Callable[[Generated], None] = lambda result: None,
    accepted: Callable[[Group], None] = lambda group: None,
    begun: Callable[[Group], None] = lambda group: None,
    refilled: Callable[[Selection], None] = lambda selection: None,
) -> Selection:
    """Generate until enough groups are accepted, then stop the rest.

    Args:
        source: where groups come from.
        sampler: answers requests.
        need: groups of a step.
        batch: groups that are begun at a time, whenever fewer than ``need`` are accepted or under way.
        at_least: new groups that are begun at first, however few are needed.
        judge: None: every finished group is accepted.
        spare: whether a sample must not be stopped.
        finished: called with each result, as soon as it is there.
        accepted: called with each group that is the step's.
        begun: called with each group.
        refilled: called before further groups are begun.

    Returns:
        All groups that were begun, each once.
    """
    found = Selection()
    running: dict[asyncio.Task[list[Generated]], Group] = {}
    judged: dict[asyncio.Task[Verdict], Group] = {}
    try:
        while len(found.accepted) < need:
            while len(running) + len(judged) + len(found.accepted) < need or source.drawn < at_least:
                if running or judged or found.accepted or found.dropped:
                    refilled(found)
                for group in source.take(batch):
                    begun(group)
                    running[asyncio.create_task(_generate(sampler, group, finished))] = group
            done, _ = await asyncio.wait([*running, *judged], return_when=asyncio.FIRST_COMPLETED)
            for task, group in _in_order(running, done):
                task.result()
                del running[task]
                if judge is None:
                    _take(found, group, need, accepted)
                else:
                    judged[asyncio.create_task(_judge(judge, group))] = group
            for said, group in _in_order(judged, done):
                keep, reason = said.result()
                del judged[said]
                if keep:
                    _take(found, group, need, accepted)
                else:
                    found.dropped.append((group, reason))
        await sampler.cut(spare)
        with told("samples that go on to their end, or whose function does not return", "the end of the generation"):
            for generated, group in running.items():
                ended = frozenset(one.request.sample_id for one in await generated if one.status == Status.ABORTED)
                if ended:
                    found.stopped.append((group, ended))
                else:
                    found.surplus.append(group)
        found.surplus += judged.values()  # finished, and nobody has to know what the filter would say
    finally:
        left: list[asyncio.Task[Any]] = [*running, *judged]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    found.accepted.sort(key=lambda group: group.group_index)
    return found


async def _generate(sampler: Sampler, group: Group, finished: Callable[[Generated], None]) -> list[Generated]:
    """Results of those samples that are not finished."""

    async def one(request: SampleRequest) -> Generated:
        result = await sampler.sample(request)
        finished(result)
        return result

    return await aio.gather(one(request) for request in group.requests if request.sample_id not in group.finished)


async def _judge(judge: Judge, group: Group) -> Verdict:
    return await judge(group)


def _in_order(tasks: dict[_Task, Group], done: Collection[object]) -> list[tuple[_Task, Group]]:
    """Those that are done, by the indices of their groups."""
    return sorted(((task, group) for task, group in tasks.items() if task in done), key=lambda one: one[1].group_index)


def _take(found: Selection, group: Group, need: int, accepted: Callable[[Group], None]) -> None:
    if len(found.accepted) < need:
        found.accepted.append(group)
        accepted(group)
    else:
        found.surplus.append(group)
