"""Scores of samples while others are still generated.

Guarantee: whoever hands samples over never waits, and no error of a reward reaches it; each sample is called once, a
group when it is complete, and never more coroutines run than --reward-max-concurrency. What is found is known by the
content that was scored and by the sources and options that scored it, so that a table is the same with and without a
stream. A call that hangs holds up none that comes after it. After ``close`` nothing is left running.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import pyarrow as pa

from data.errors import UserError
from relax_core import aio
from relax_core.config.sections import RelaxConfig
from relax_core.proxy import proxied
from relax_core.rewards.calls import Call
from relax_core.rewards.choice import RewardChoice, custom_reward, reward_router, scorer
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.pools import CallPool, Pools, Services
from relax_core.rewards.rows import content_key, route_of, rows_of
from relax_core.rewards.scored import ScoredCalls
from relax_core.rewards.sources import scoring_hash
from relax_core.rewards.types import RewardInput

log = logging.getLogger(__name__)

PLAIN_WAVES, COROUTINE_WAVES = 8, 2
"""Waves that run at once however few calls wait. Beside more of them 2, 4, 8, ... calls have to wait, so that neither a
call that hangs stops the others nor each call becomes a wave, for coroutines a process, of its own."""

CLOSE_SECONDS = 10.0
"""How long ``close`` waits for what it has ended; a built-in reward in the middle of its few milliseconds ends by
itself."""

Keyed: TypeAlias = tuple[bytes, Call]
Outcomes: TypeAlias = Mapping[bytes, Sequence[Outcome]]
TableOf: TypeAlias = Callable[[Sequence[Any]], pa.Table]
Watcher: TypeAlias = Callable[[Sequence[str], Sequence[Outcome] | BaseException], None]
"""Is told ids of samples and their outcomes as they come; or, once, the error after which none come."""


@dataclass(frozen=True)
class Found:
    """What a stream has found.

    Attributes:
        outcomes: ``content_key`` of a call to the outcomes of its samples.
        early: keys of those that were there before anybody waited for them.
        kept: outcomes of calls that had theirs when another call of their wave failed.
    """

    outcomes: Outcomes
    early: frozenset[bytes]
    kept: ScoredCalls


@dataclass
class Lane:
    """Calls of one kind that wait, and how many of them may begin.

    Args:
        most: calls that may run at once.
        waves: see ``PLAIN_WAVES``.
    """

    most: int
    waves: int
    waiting: list[Keyed] = field(default_factory=list)
    running: int = 0
    in_flight: int = 0

    def next_wave(self, last: bool) -> tuple[list[Keyed], int] | None:
        """Calls to begin with, and how many of them may run at once; None where they had better wait.

        A wave takes a quarter of ``most`` at most, which is all that its slowest call can keep from others, and four
        calls for each that may run at once.

        Args:
            last: no further calls will come.
        """
        needed = 1 if last else 2 ** max(0, self.running - self.waves + 1)
        share = min(len(self.waiting), math.ceil(self.most / 4))
        if len(self.waiting) < needed or self.in_flight + share > self.most:
            return None
        calls, self.waiting = self.waiting[: 4 * share], self.waiting[4 * share :]
        self.running += 1
        self.in_flight += share
        return calls, share

    def ended(self, share: int) -> None:
        """A wave is over."""
        self.running -= 1
        self.in_flight -= share


class RewardStream:
    """Takes finished samples from one thread and scores them in others.

    Args:
        choice: which rewards.
        config: resolved.
        pools: processes of reward functions; ``close`` ends them where a call is under way.
        services: what rewards may ask.
        table: makes of what is handed over the rows of schema ``ROLLOUT`` that will be stored; called in a thread.
        scored: has the outcomes that an earlier process had, and gets those of this one, by ``scoring_hash``.
        shared: other steps score in the same processes, which ``close`` leaves alone then: calls of plain functions
            that are under way end by themselves, at their time limit at the latest, and nobody gets their scores.
    """

    def __init__(
        self,
        choice: RewardChoice,
        config: RelaxConfig,
        pools: Pools,
        services: Services,
        table: TableOf,
        scored: Callable[[str], ScoredCalls] = lambda scoring: ScoredCalls(),
        shared: bool = False,
    ) -> None:
        self._shared = shared
        self._choice, self._config, self._pools, self._services, self._table = choice, config, pools, services, table
        self._open = scored
        self._arrived: deque[Any] = deque()
        self._mail: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closed = threading.Event()
        self._canceller = aio.Canceller()
        self._waves: list[threading.Thread] = []
        # below: only the stream's own thread changes these
        self._scoring = ""
        self._failed = self._last = False
        self._error: BaseException | None = None
        self._watcher: Watcher | None = None
        self._found: dict[bytes, list[Outcome]] = {}
        self._early: frozenset[bytes] = frozenset()
        self._kept = ScoredCalls()
        self._groups: dict[str, list[RewardInput | None]] = {}
        self._plain = Lane(1 << 30, PLAIN_WAVES)  # processes limit them
        self._coroutines = Lane(config.reward.reward_max_concurrency, COROUTINE_WAVES)
        self._thread = threading.Thread(target=self._serve, name="reward-stream", daemon=True)
        self._thread.start()

    def __enter__(self) -> "RewardStream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, finished: Any) -> None:
        """Hand a finished sample over; costs microseconds, and never fails."""
        self._arrived.append(finished)
        self._mail.put(self._take)

    def watch(self, tell: Watcher) -> None:
        """Tell somebody of what is handed over from now on; in the stream's thread, so it must be quick."""
        self._mail.put(partial(self._watched_by, tell))

    def finish(self, scoring: str) -> Found:
        """Wait until all that was handed over is scored, and end the stream.

        Args:
            scoring: ``scoring_hash`` of whoever wants to use the scores.

        Returns:
            What was found; nothing where other sources or options were used.
        """
        self._mail.put(self._end)
        self._thread.join()
        self._kept.end(keep=False)  # whoever waits takes it over
        if self._scoring != scoring:
            return Found({}, frozenset(), ScoredCalls())
        return Found(self._found, self._early, self._kept)

    def close(self) -> None:
        """End the calls that are under way, and make no further ones; after ``finish`` there are none."""
        if not (self._thread.is_alive() or self._busy()):
            return
        self._closed.set()
        self._mail.put(lambda: None)
        self._canceller.cancel()
        until = time.monotonic() + CLOSE_SECONDS
        self._thread.join(CLOSE_SECONDS)
        for wave in [] if self._shared else self._waves:
            while wave.is_alive() and time.monotonic() < until:
                self._pools.close()  # again and again: a wave may just have been about to ask for them
                wave.join(0.05)
        self._kept.end(keep=True)

    # In the stream's own thread

    def _serve(self) -> None:
        self._guarded(self._prepare)
        while not (self._closed.is_set() or (self._last and not self._busy())):
            self._guarded(self._mail.get())

    def _watched_by(self, tell: Watcher) -> None:
        self._watcher = tell
        if self._error is not None:
            tell([], self._error)

    def _busy(self) -> bool:
        return any(lane.running or lane.waiting for lane in (self._plain, self._coroutines))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._fail(error)

    def _prepare(self) -> None:
        self._custom = custom_reward(self._choice, self._config)
        self._router = reward_router(self._choice, self._config, self._services)
        self._scoring = scoring_hash(self._choice, self._config)
        self._kept = self._open(self._scoring)
        self._scorer = replace(scorer(self._choice, self._config, self._pool), kept=self._kept)

    def _fail(self, error: BaseException) -> None:
        """Call no more. Whoever scores the table calls again, and meets the error where it can be told."""
        self._plain.waiting, self._coroutines.waiting = [], []
        if not (self._failed or self._closed.is_set()):
            problem = error.problem if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            log.warning("%s Generation goes on and is kept; no further sample is scored until it ends.", problem)
        if not self._failed and self._watcher is not None:
            self._watcher([], error)
        self._failed, self._error = True, self._error or error

    def _take(self) -> None:
        """Plan the calls of all that has arrived, and begin with them."""
        finished = [self._arrived.popleft() for _ in range(len(self._arrived))]
        if not finished or self._failed:
            return
        for call in self._calls(finished):
            of_its_own = call.spec.is_async or call.spec.split is not None  # a sum may have parts that are coroutines
            lane = self._coroutines if of_its_own else self._plain
            lane.waiting.append((content_key(call), call))
        self._begin()

    def _calls(self, finished: Sequence[Any]) -> list[Call]:
        custom, calls = self._custom, []
        for row in rows_of(self._table(finished), custom):
            route = route_of(row, custom, self._router)
            if not (custom and custom.of_group):
                calls += [] if route is None else [Call(route.spec, (row.sample,))]
                continue
            group = self._groups.setdefault(row.group_id, [])
            group.append(row.sample if route else None)
            if len(group) == self._choice.group_size:
                samples = sorted(filter(None, self._groups.pop(row.group_id)), key=lambda sample: sample.index)
                calls += [Call(custom, tuple(samples), row.group_id)] if samples else []
        return calls

    def _begin(self) -> None:
        for lane in (self._plain, self._coroutines):
            while (wave := lane.next_wave(self._last)) is not None:
                self._waves = [thread for thread in self._waves if thread.is_alive()]
                thread = threading.Thread(target=self._wave, args=(lane, *wave), name="reward-wave", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads: this wave will never say that it has ended
                    lane.ended(wave[1])
                    raise
                self._waves.append(thread)

    def _ended(self, lane: Lane, share: int, wave: Sequence[Keyed], result: Any) -> None:
        lane.ended(share)
        if isinstance(result, BaseException):
            self._fail(result)
        else:
            self._found.update(zip([key for key, _ in wave], result, strict=True))
            if self._watcher is not None:
                ids = [sample.sample_id for _, call in wave for sample in call.samples]
                self._watcher(ids, [one for outcomes in result for one in outcomes])
        self._begin()

    def _end(self) -> None:
        self._last, self._early = True, frozenset(self._found)
        self._take()
        self._begin()

    # In the thread of a wave

    def _wave(self, lane: Lane, wave: Sequence[Keyed], share: int) -> None:
        result: Any
        try:
            with proxied(self._config.debug.http_proxy), self._canceller.reaching():
                result = replace(self._scorer, concurrency=share)([call for _, call in wave])
        except BaseException as error:  # also the end of coroutines
            result = error
        self._mail.put(partial(self._ended, lane, share, wave, result))

    def _pool(self) -> CallPool:
        if self._closed.is_set():
            raise RuntimeError("the stream is closed")
        return self._pools.get(self._services)
