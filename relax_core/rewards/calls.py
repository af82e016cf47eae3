"""Calls of reward functions: of one sample each, or of whole groups.

Guarantee: each sample gets the outcome of its own call, in the order given; coroutines run together, never more than
allowed; a function of the user, or one that may hang, runs in a process that can be ended. With the policy
``fail`` the first error ends the others and is raised, with function and sample or group; a time limit or a crash never
raises. A sum of rewards is no call of its own: each of its parts is one like any other.
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from data.errors import UserError
from relax_core import aio
from relax_core.rewards.adapters import EXPECTED
from relax_core.rewards.messages import Asked, Batch, Failed, FunctionName, Lost, Task
from relax_core.rewards.outcome import Outcome, error_text, outcome_of, valid_text
from relax_core.rewards.types import UNDECIDED, RewardInput, RewardSpec

if TYPE_CHECKING:
    from relax_core.rewards.messages import Result, Tell
    from relax_core.rewards.pools import CallPool
    from relax_core.rewards.scored import ScoredCalls
    from relax_core.rewards.sums import Sum

CONCURRENCY = 64
"""Most asynchronous calls in flight unless --reward-max-concurrency says otherwise."""

Policy = Literal["fail", "zero", "no_score"]
"""What a function's error does: it ends the step, or the sample has the score 0, or none."""


@dataclass(frozen=True)
class Call:
    """One call of a reward function.

    Attributes:
        spec: the function.
        samples: what it gets: one sample, or the list of a group.
        group_id: of the group; None: it gets one sample.
        key: of the score in a dict, in place of --reward-key: of a part of a sum.
    """

    spec: RewardSpec
    samples: tuple[RewardInput, ...]
    group_id: str | None = None
    key: str | None = None

    @property
    def what(self) -> str:
        """What it is about, for messages."""
        if self.group_id is None:
            return f"sample {self.samples[0].sample_id}"
        return f"the {len(self.samples)} samples of group {self.group_id}"

    def start(self, function: Callable[[Any], Any] | None = None) -> Any:
        """What the function returns: a value, or something to wait for.

        Args:
            function: in place of the spec's.
        """
        argument: Any = self.samples[0] if self.group_id is None else list(self.samples)
        try:
            return (function or self.spec.function)(argument)
        except UserError:
            raise
        except Exception as error:
            raise self.failure(error) from error

    async def wait(self, value: Any) -> Any:
        """The value that something to wait for ends with."""
        try:
            return await value
        except UserError:
            raise
        except Exception as error:
            raise self.failure(error) from error

    def finish(self, value: Any) -> Any:
        """``wait`` for a value that may be one to wait for: a decorated coroutine function does not look like one."""
        return aio.run(self.wait(value)) if isinstance(value, Awaitable) else value

    def outcomes(self, value: Any, reward_key: str | None) -> list[Outcome]:
        """One outcome for each sample.

        Raises:
            UserError: not as many results as samples, or one that is no reward.
        """
        results = [value] if self.group_id is None else self._results(value)
        return [
            outcome_of(self.spec, sample, result, reward_key)
            for sample, result in zip(self.samples, results, strict=True)
        ]

    def failed(self, reason: str, score: float | None) -> list[Outcome]:
        """The outcomes of a call that failed."""
        return [Outcome(score, score, error=reason, kind="failed") for _ in self.samples]

    def _results(self, value: Any) -> list[Any]:
        if isinstance(value, str | dict) or not hasattr(value, "__iter__"):
            returned = f"a {type(value).__name__}, not a list,"
        elif len(results := list(value)) != len(self.samples):
            returned = f"{len(results)} results"
        else:
            return results
        raise UserError(
            f"The reward {self.spec.name} returned {returned} for {self.what}.",
            EXPECTED[self.spec.convention],
        )

    def failure(self, error: Exception) -> UserError:
        """What is raised in place of a function's own error."""
        lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
        return UserError(
            f"The reward {self.spec.name} failed on {self.what}: {type(error).__name__}: {error_text(error)}.",
            "Correct the function, or let it return None where a sample cannot be scored, and run again: "
            "finished generations are kept.",
            valid_text("\n".join(lines[-6:])),
        )


@dataclass(frozen=True)
class Scorer:
    """How calls are made.

    Args:
        reward_key: key of the score where a function returns a dict.
        concurrency: most coroutines at once; the call of a group is one.
        seconds: time limit of a call that is no plain built-in.
        policy: what an error does.
        pool: gives the processes when the first call needs one.
        kept: has the outcomes of an earlier try, and gets those of this one.
    """

    reward_key: str | None = None
    concurrency: int = CONCURRENCY
    seconds: float = 60.0
    policy: Policy = "fail"
    pool: "Callable[[], CallPool] | None" = None
    kept: "ScoredCalls | None" = None

    def __call__(self, calls: Sequence[Call]) -> list[list[Outcome]]:
        """The outcomes of each call, in the order given.

        Works in any thread, since it uses no signals, and beside a running event loop.

        Raises:
            UserError: a function failed, or returned something else than it should, and the policy is ``fail``.
        """
        sums = {place: self._begun(call) for place, call in enumerate(calls) if call.spec.split is not None}
        made: list[Call] = []
        for place, call in enumerate(calls):
            begun = sums.get(place)
            made += [call] if begun is None else [] if isinstance(begun, list) else begun.calls.values()
        found = iter(self._made(made))
        return [
            next(found) if place not in sums else self._summed(call, sums[place], found)
            for place, call in enumerate(calls)
        ]

    def _made(self, calls: Sequence[Call]) -> list[list[Outcome]]:
        outcomes: list[list[Outcome] | None] = [None] * len(calls)
        together: list[int] = []
        batch: list[int] = []
        apart: list[int] = []
        for place, call in enumerate(calls):
            found = None if call.spec.is_async else self._at_once(call)
            if found is None and self.kept is not None:
                found = self.kept.find(call)
            if found is not None:
                outcomes[place] = found
            elif call.spec.is_async:
                (batch if call.spec.custom and self.pool is not None else together).append(place)
            else:
                apart.append(place)
        for places, make in ((apart, self._apart), (batch, self._in_one_process), (together, self._together)):
            if places:
                for place, found in zip(places, make([calls[place] for place in places]), strict=True):
                    outcomes[place] = found
        return outcomes  # type: ignore[return-value]

    def _begun(self, call: Call) -> "Sum | list[Outcome]":
        """A sum, whose parts are called beside the other calls; its outcome where it has no parts."""
        begin = time.perf_counter()
        try:
            begun: Sum = call.start(call.spec.split)
        except UserError as error:
            return self._error(call, error)
        for place, raised in begun.raised().items():
            [begun.found[place]] = self._error(call, raised)
        begun.seconds = time.perf_counter() - begin
        return begun

    def _summed(self, call: Call, begun: "Sum | list[Outcome]", found: Iterator[list[Outcome]]) -> list[Outcome]:
        if isinstance(begun, list):
            return begun
        for place in begun.calls:
            [begun.found[place]] = next(found)
        try:
            return [begun.outcome(call.spec, self.reward_key)]
        except UserError as error:
            return self._error(call, error)

    def _at_once(self, call: Call) -> list[Outcome] | None:
        """The outcomes of a call that this process may make; None where it takes another one."""
        spec = call.spec
        quick = spec.quick if call.group_id is None else None
        if quick is None and self.pool is not None and (spec.custom or spec.isolated):
            return None
        begin = time.perf_counter()
        try:
            value = call.start(quick)
            if value is UNDECIDED:
                if self.pool is not None:
                    return None
                value = call.start()
            return timed(call.outcomes(call.finish(value), self._key(call)), begin)
        except UserError as error:
            return self._error(call, error)

    def _apart(self, calls: Sequence[Call]) -> list[list[Outcome]]:
        assert self.pool is not None
        tasks, seconds = [], []
        for call in calls:
            tasks.append(Task(FunctionName.of(call.spec), call.samples, call.group_id, self._key(call)))
            seconds.append(min(self.seconds, call.spec.seconds or self.seconds))
        return self._all_taken(calls, self.pool().run(tasks, seconds, self.policy == "fail", self._keeper(calls)))

    def _in_one_process(self, calls: Sequence[Call]) -> list[list[Outcome]]:
        assert self.pool is not None
        [function] = {FunctionName.of(call.spec) for call in calls}  # --custom-rm-path names one
        asked = tuple(Asked(call.samples, call.group_id) for call in calls)
        batch = Batch(function, asked, self.reward_key, self.concurrency, self.seconds, self.policy == "fail")
        return self._all_taken(calls, self.pool().run_batch(batch, self._keeper(calls)))

    def _all_taken(self, calls: Sequence[Call], results: "Sequence[Result]") -> list[list[Outcome]]:
        if self.policy == "fail":
            for result in results:  # those that it has cancelled are no outcomes
                if isinstance(result, Failed):
                    raise result.error()
        return [self._taken(call, result) for call, result in zip(calls, results, strict=True)]

    def _taken(self, call: Call, result: "Result") -> list[Outcome]:
        if isinstance(result, Failed):
            return self._error(call, result.error())
        return self._lost(call, result.reason) if isinstance(result, Lost) else result

    def _keeper(self, calls: Sequence[Call]) -> "Tell":
        """Keeps the outcomes of calls in processes as they come."""

        def tell(place: int, result: "Result") -> None:
            if isinstance(result, list):
                self._keep(calls[place], result)

        return tell

    def _keep(self, call: Call, outcomes: list[Outcome]) -> list[Outcome]:
        if self.kept is not None:
            self.kept.keep(call, outcomes)
        return outcomes

    def _key(self, call: Call) -> str | None:
        return self.reward_key if call.key is None else call.key

    def _lost(self, call: Call, reason: str) -> list[Outcome]:
        score = 0.0 if self.policy == "zero" else call.spec.late
        return call.failed(reason, score)

    def _error(self, call: Call, error: UserError) -> list[Outcome]:
        if self.policy == "fail":
            raise error
        return call.failed(error.problem, 0.0 if self.policy == "zero" else None)

    def _together(self, calls: Sequence[Call]) -> list[list[Outcome]]:
        return aio.run(self._all(calls))

    async def _all(self, calls: Sequence[Call]) -> list[list[Outcome]]:
        permits = asyncio.Semaphore(self.concurrency)

        async def one(call: Call) -> list[Outcome]:
            async with permits:
                begin = time.perf_counter()
                try:
                    async with asyncio.timeout(None if call.spec.patient else self.seconds):
                        value = await call.wait(call.start())
                    return self._keep(call, timed(call.outcomes(value, self._key(call)), begin))
                except TimeoutError:
                    return self._lost(call, f"it took longer than {self.seconds:g} s")
                except UserError as error:
                    return self._error(call, error)

        return await aio.gather(one(call) for call in calls)


def timed(outcomes: list[Outcome], begin: float) -> list[Outcome]:
    """The outcomes with the seconds since ``begin`` (``time.perf_counter()``)."""
    seconds = time.perf_counter() - begin
    return [replace(outcome, seconds=seconds) for outcome in outcomes]
