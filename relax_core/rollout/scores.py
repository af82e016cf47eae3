"""Scores of groups while others are generated, and what a filter says of them.

Guarantee: each sample is handed over for scoring once, and only those that somebody asked for; the scores are those
that the reward stage finds again. A reward that fails is the error of whoever waits for it. Rows and scores may come
from any thread.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

from data.schema import REWARD
from relax_core.config.sections import RelaxConfig
from relax_core.functions import UserFunction
from relax_core.rewards.outcome import Outcome
from relax_core.rollout.buffer import Group
from relax_core.rollout.filters import Verdict, verdict
from relax_core.rollout.sample import Status, samples_of

_SCORED = (Status.COMPLETED, Status.TRUNCATED)


class GroupScores:
    """Between a collector, which makes rows, and a stream of rewards.

    Args:
        add: takes rows of schema ``ROLLOUT`` to score them.
        config: resolved.
        function: see ``relax_core.rollout.filters.dynamic_filter``; None: nobody waits for scores.
    """

    def __init__(self, add: Callable[[pa.Table], None], config: RelaxConfig, function: UserFunction | None) -> None:
        self._add, self._config, self._function = add, config, function
        self._rows: dict[str, pa.Table] = {}
        self._wanted: set[str] = set()
        self._scores: dict[str, float | None] = {}
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def arrived(self, rows: pa.Table) -> None:
        """Rows of finished samples."""
        names = rows["sample_id"].to_pylist()
        with self._lock:
            self._rows |= {name: rows.slice(place, 1) for place, name in enumerate(names)}
            self._hand_over(self._wanted.intersection(names))
        self._wake()

    def want(self, sample_ids: Collection[str]) -> None:
        """Score these, now or when they arrive."""
        with self._lock:
            new = set(sample_ids) - self._wanted
            self._wanted |= new
            self._hand_over(new & self._rows.keys())

    def _hand_over(self, names: Collection[str]) -> None:
        if names:
            self._add(pa.concat_tables([self._rows[name] for name in sorted(names)]))

    def scored(self, sample_ids: Sequence[str], outcomes: Sequence[Outcome] | BaseException) -> None:
        """What a stream has found, or why it will find nothing more."""
        with self._lock:
            if isinstance(outcomes, BaseException):
                self._error = outcomes
            else:
                self._scores |= {name: one.score for name, one in zip(sample_ids, outcomes, strict=True)}
        self._wake()

    async def verdict(self, group: Group) -> Verdict:
        """What the filter says of a finished group, as soon as its samples are scored.

        Raises:
            UserError: a reward or the filter failed.
        """
        assert self._function is not None
        names = group.sample_ids
        self.want(names)
        while True:
            changed = self._next_change()  # before the look, so that nothing comes between
            if self._complete(names):
                break
            await changed.wait()
        with self._lock:
            rows = pa.concat_tables([self._rows[name] for name in names])
            scores = [self._scores.get(name) for name in names]
        reward = pa.table(
            {
                "sample_id": rows["sample_id"],
                "reward": pa.array(scores, REWARD.field("reward").type),
                "raw_reward": pa.array(scores, REWARD.field("raw_reward").type),
            }
        )
        return verdict(self._function, self._config, samples_of(rows, reward))

    def _complete(self, names: Sequence[str]) -> bool:
        with self._lock:
            if self._error is not None:
                raise self._error
            return all(name in self._rows and (name in self._scores or not self._has_score(name)) for name in names)

    def _has_score(self, name: str) -> bool:
        return self._rows[name]["status"][0].as_py() in _SCORED

    def _next_change(self) -> asyncio.Event:
        event = asyncio.Event()
        with self._lock:
            self._waiting.append((asyncio.get_running_loop(), event))
        return event

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


def unscored(rows: pa.Table) -> pa.Table:
    """The columns of schema ``REWARD`` that samples need, without scores."""
    nothing = pa.nulls(rows.num_rows, REWARD.field("reward").type)
    return pa.table({"sample_id": rows["sample_id"], "reward": nothing, "raw_reward": nothing})
