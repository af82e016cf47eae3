"""The engines of one generation: which request goes where, and what happens when an engine dies.

Guarantee: no engine has more requests in flight than its permits; one that dies is asked no more, and its unfinished
requests go to the others; without a living engine the error names each engine and its reason.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.rollout.requests import SampleRequest


class Completion(Protocol):
    """What an engine answers; R response tokens."""

    @property
    def output_ids(self) -> NDArray[np.int32]: ...  # [R]
    @property
    def log_probs(self) -> NDArray[np.float32]: ...  # [R]
    @property
    def finish_reason(self) -> dict[str, Any]: ...  # {"type": ...}
    @property
    def weight_versions(self) -> tuple[str, ...]: ...
    @property
    def cached_tokens(self) -> int: ...


class Generator(Protocol):
    """An engine, as far as generation goes (see ``relax_core.engines.client.EngineClient``)."""

    url: str

    async def generate(self, input_ids: NDArray[np.int32], sampling_params: dict[str, Any], rid: str) -> Completion:
        """One response.

        Raises ``EngineUnavailable`` when the engine cannot be reached or has died, ``EngineRefused`` when the request
        is at fault.
        """


@dataclass(eq=False)
class _Slot:
    engine: Generator
    in_flight: int = 0


@dataclass
class Pool:
    """Permits for the engines that are alive; used in one event loop."""

    engines: Sequence[Generator]
    concurrency: int
    lost: dict[str, str] = field(default_factory=dict)
    tell: Callable[[str, str], None] | None = None
    """Gets the address of an engine that is lost, and the reason."""

    def __post_init__(self) -> None:
        self._alive = [_Slot(engine) for engine in self.engines]
        self._changed = asyncio.Condition()

    async def ask(
        self, request: SampleRequest, tokens: NDArray[np.int32], params: dict[str, Any], rid: str
    ) -> Completion:
        """Ask engines until one answers.

        Raises:
            UserError: no engine is left, or one refused the request.
        """
        while True:
            async with self.engine() as engine:
                try:
                    return await engine.generate(tokens, params, rid)
                except EngineUnavailable as error:
                    self.lose(engine, error)
                except EngineRefused as error:  # another engine would refuse it too
                    problem = f"Sample {request.sample_id} (prompt {request.prompt.prompt_id}): {error.problem}"
                    raise EngineRefused(problem, error.fix, error.details) from error

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Generator]:
        """The least loaded engine, as soon as one has a permit.

        Raises:
            UserError: none is alive.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alive or self._least().in_flight < self.concurrency)
            if not self._alive:
                raise self._none_left()
            slot = self._least()
            slot.in_flight += 1
        try:
            yield slot.engine
        finally:
            slot.in_flight -= 1
            async with self._changed:
                if self._alive:
                    self._changed.notify(1)  # one permit lets one waiter in
                else:
                    self._changed.notify_all()

    def lose(self, engine: Generator, error: Exception) -> None:
        """Take an engine out, with its permits."""
        self._alive = [slot for slot in self._alive if slot.engine is not engine]
        if self.tell is not None and engine.url not in self.lost:
            self.tell(engine.url, str(error))
        self.lost[engine.url] = str(error)

    def _least(self) -> _Slot:
        return min(self._alive, key=lambda slot: slot.in_flight)

    def _none_left(self) -> UserError:
        if not self.engines:
            return UserError("There is no rollout engine to generate with.", "Start one: see --resource.")
        return UserError(
            f"No rollout engine is left; lost: {', '.join(self.lost)}.",
            "Run the same command again: engines are started anew and finished steps are kept.",
            "\n".join(f"{url}: {reason}" for url, reason in self.lost.items()),
        )
