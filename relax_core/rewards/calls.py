"""Calls of reward functions: of one sample each, or of whole groups.

Guarantee: each sample gets the outcome of its own call, in the order given; coroutines run together, never more than
allowed; at the first error the others are cancelled and that error is raised, with function and sample or group.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from data.errors import UserError
from relax_core import aio
from relax_core.rewards.outcome import Outcome, outcome_of
from relax_core.rewards.types import RewardInput, RewardSpec

CONCURRENCY = 64
"""Most asynchronous calls in flight unless --reward-max-concurrency says otherwise."""


@dataclass(frozen=True)
class Call:
    """One call of a reward function.

    Attributes:
        spec: the function.
        samples: what it gets: one sample, or the list of a group.
        group_id: of the group; None: it gets one sample.
    """

    spec: RewardSpec
    samples: tuple[RewardInput, ...]
    group_id: str | None = None

    @property
    def what(self) -> str:
        """What it is about, for messages."""
        if self.group_id is None:
            return f"sample {self.samples[0].sample_id}"
        return f"the {len(self.samples)} samples of group {self.group_id}"

    def start(self) -> Any:
        """What the function returns: a value, or something to wait for."""
        argument: Any = self.samples[0] if self.group_id is None else list(self.samples)
        try:
            return self.spec.function(argument)
        except UserError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    async def wait(self, value: Any) -> Any:
        """The value that something to wait for ends with."""
        try:
            return await value
        except UserError:
            raise
        except Exception as error:
            raise self._failure(error) from error

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

    def _results(self, value: Any) -> list[Any]:
        if isinstance(value, str | dict) or not hasattr(value, "__iter__"):
            returned = f"a {type(value).__name__}, not a list,"
        elif len(results := list(value)) != len(self.samples):
            returned = f"{len(results)} results"
        else:
            return results
        raise UserError(
            f"The reward {self.spec.name} returned {returned} for {self.what}.",
            "With --group-rm it gets the list of a group's samples and returns one result for each, in their order.",
        )

    def _failure(self, error: Exception) -> UserError:
        lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
        return UserError(
            f"The reward {self.spec.name} failed on {self.what}: {type(error).__name__}: {error}.",
            "Correct the function, or let it return None where a sample cannot be scored, and run again: "
            "finished generations are kept.",
            "\n".join(lines[-6:]),
        )


def score_calls(calls: Sequence[Call], reward_key: str | None, concurrency: int = CONCURRENCY) -> list[list[Outcome]]:
    """The outcomes of each call, in the order given. Plain functions run here one after the other, coroutines together.

    Works in any thread, since it uses no signals, and beside a running event loop.

    Args:
        calls: to make.
        reward_key: key of the score where a function returns a dict.
        concurrency: most coroutines at once; the call of a group is one.

    Raises:
        UserError: a function failed, or returned something else than it should.
    """
    outcomes: dict[int, list[Outcome]] = {}
    for place, call in enumerate(calls):
        if not call.spec.is_async:
            value = call.start()
            if isinstance(value, Awaitable):  # a decorated coroutine function that does not look like one
                value = aio.run(call.wait(value))
            outcomes[place] = call.outcomes(value, reward_key)
    waiting = [place for place, call in enumerate(calls) if call.spec.is_async]
    if waiting:
        scored = aio.run(_together([calls[place] for place in waiting], reward_key, concurrency))
        outcomes |= zip(waiting, scored, strict=True)
    return [outcomes[place] for place in range(len(calls))]


def score_samples(
    samples: Sequence[tuple[RewardSpec, RewardInput]], reward_key: str | None, concurrency: int = CONCURRENCY
) -> list[Outcome]:
    """``score_calls`` with one call for each sample."""
    calls = [Call(spec, (sample,)) for spec, sample in samples]
    return [outcomes[0] for outcomes in score_calls(calls, reward_key, concurrency)]


async def _together(calls: Sequence[Call], reward_key: str | None, concurrency: int) -> list[list[Outcome]]:
    permits = asyncio.Semaphore(concurrency)

    async def one(call: Call) -> list[Outcome]:
        async with permits:
            value = await call.wait(call.start())
        return call.outcomes(value, reward_key)

    return await aio.gather(one(call) for call in calls)
