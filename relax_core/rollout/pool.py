"""The engines of one generation: which request goes where, and what happens when an engine dies.

Guarantee: no engine has more requests in flight than its permits; one that is lost is asked no more, and its unfinished
requests go to the others; without a living engine new ones are asked for, and where none come the error names each
engine and its reason. A request that is told to end returns what it has, whether it is at an engine or waits.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from relax_core import aio
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.rollout.gate import Gate
from relax_core.rollout.pieces import Completion
from relax_core.rollout.requests import SampleRequest

MOST_LOSSES = 3
"""So often may all engines be lost before one answers a request: then something else than an engine is at fault."""


class Generator(Protocol):
    """An engine, as far as generation goes (see ``relax_core.engines.client.EngineClient``)."""

    url: str

    async def generate(self, input_ids: NDArray[np.int32], sampling_params: dict[str, Any], rid: str) -> Completion:
        """One response.

        Raises ``EngineUnavailable`` when the engine cannot be reached or has died, ``EngineRefused`` when the request
        is at fault.
        """

    async def abort(self, rid: str) -> None:
        """End a request: it returns what it has, with the finish reason ``abort``. Raises nothing."""


class Ended(Exception):
    """A request was told to end before an engine had anything of it."""


@dataclass(eq=False)
class _Slot:
    engine: Generator
    in_flight: int = 0
    lost: str = ""


@dataclass(eq=False)
class Call:
    """One request on its way. ``end`` may be called while ``Pool.ask`` runs with it.

    Attributes:
        rid: its id at the engine.
        interrupted: whether the gate was closed while it was at the engine.
        work: asks one engine.
    """

    rid: str
    interrupted: bool = False
    work: "asyncio.Task[Completion] | None" = None
    _slot: _Slot | None = None
    _sent: bool = False
    _ended: bool = False

    async def end(self) -> None:
        """Tell the engine to end it; where no engine has it yet, ``Pool.ask`` raises ``Ended``."""
        if self._sent and self._slot is not None:
            self._ended = True  # it goes to no other engine
            await self._slot.engine.abort(self.rid)
        else:
            self.give_up()

    def give_up(self) -> None:
        """``Pool.ask`` raises ``Ended``, whatever the engine does."""
        self._ended = True
        if self.work is not None:
            self.work.cancel()


@dataclass
class Pool:
    """Permits for the engines that are alive; used in one event loop.

    Attributes:
        engines: alive at first.
        concurrency: permits of each.
        gate: requests pass through it; None: nothing ever interrupts them.
        revive: gets new engines when none is left; raises ``UserError`` where there are none. At most one call at a
            time.
        tell: gets the address of an engine that is lost, and the reason.
        lost: addresses of lost engines, and why.
    """

    engines: Sequence[Generator]
    concurrency: int
    gate: Gate | None = None
    revive: Callable[[], Awaitable[Sequence[Generator]]] | None = None
    tell: Callable[[str, str], None] | None = None
    lost: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._alive = [_Slot(engine) for engine in self.engines]
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calls: set[Call] = set()
        self._reviving: asyncio.Task[None] | None = None
        self._losses = 0
        self._error: BaseException | None = None

    @property
    def urls(self) -> list[str]:
        """Addresses of the engines that are alive."""
        return [slot.engine.url for slot in self._alive]

    async def ask(
        self, request: SampleRequest, tokens: NDArray[np.int32], params: dict[str, Any], call: Call
    ) -> Completion:
        """Ask engines until one answers.

        Raises:
            UserError: no engine is left, or one refused the request.
            Ended: ``call`` was ended before an engine had it.
        """
        while True:
            if call._ended:
                raise Ended
            call.work = asyncio.create_task(self._once(tokens, params, call))
            self._calls.add(call)
            try:
                return await call.work
            except asyncio.CancelledError:
                if aio.cancelled():
                    raise
                # Else ``call`` was ended, or ``lose`` gave its engine up: it goes to another one.
            except EngineUnavailable as error:
                if call._slot is not None:
                    self._drop(call._slot, str(error))
            except EngineRefused as error:  # another engine would refuse it too
                problem = f"Sample {request.sample_id} (prompt {request.prompt.prompt_id}): {error.problem}"
                raise EngineRefused(problem, error.fix, error.details) from error
            finally:
                self._calls.discard(call)

    def close(self) -> None:
        """Wait for no new engines any more."""
        if self._reviving is not None:
            self._reviving.cancel()

    def lose(self, url: str, reason: str) -> None:
        """Take an engine out, with its permits; what is in flight at it goes to the others at once."""
        for slot in [slot for slot in self._alive if slot.engine.url == url]:
            self._drop(slot, reason)
            for call in self._calls:
                if call._slot is slot and call.work is not None:
                    call.work.cancel()

    def add(self, engines: Iterable[Generator]) -> None:
        """More engines; one whose address is known to be alive is left out."""
        known = set(self.urls)
        new = [_Slot(engine) for engine in engines if engine.url not in known]
        self._alive += new
        if new:
            self._error = None
        self._wake(len(new) * self.concurrency)

    async def _once(self, tokens: NDArray[np.int32], params: dict[str, Any], call: Call) -> Completion:
        call._slot, call._sent, call.interrupted = None, False, False
        slot = await self._permit()
        call._slot = slot
        try:
            if self.gate is None:
                call._sent = True
                completion = await slot.engine.generate(tokens, params, call.rid)
            else:
                async with self.gate.passage() as count:
                    call._sent = True
                    completion = await slot.engine.generate(tokens, params, call.rid)
                    call.interrupted = self.gate.count != count
            self._losses = 0
            return completion
        finally:
            slot.in_flight -= 1
            if not slot.lost:
                self._wake(1)  # one permit lets one waiter in

    async def _permit(self) -> _Slot:
        """The least loaded engine, as soon as one has a permit."""
        while True:
            if self._alive:
                slot = min(self._alive, key=lambda slot: slot.in_flight)
                if slot.in_flight < self.concurrency:
                    slot.in_flight += 1
                    return slot
            elif self._error is not None:
                raise self._error
            else:
                self._replace()
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake(1)  # the permit was meant for this one: the next takes it
                raise

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1

    def _drop(self, slot: _Slot, reason: str) -> None:
        if slot.lost:
            return  # several requests learn of it
        slot.lost = reason or "lost"
        self._alive.remove(slot)
        self.lost[slot.engine.url] = slot.lost
        if self.tell is not None:
            self.tell(slot.engine.url, slot.lost)
        if not self._alive:
            self._losses += 1
            self._wake(1)  # it looks for new engines

    def _replace(self) -> None:
        """Look for new engines, if nobody does."""
        if self._reviving is None:
            self._reviving = asyncio.create_task(self._new_engines())

    async def _new_engines(self) -> None:
        try:
            if self.revive is None or self._losses >= MOST_LOSSES:
                raise self._none_left()
            self.add(await self.revive())
            if not self._alive:
                raise self._none_left()
        except Exception as error:  # each request raises it
            self._error = error
        finally:
            self._reviving = None
            self._wake(len(self._waiting))

    def _none_left(self) -> UserError:
        if not self.lost:
            return UserError("There is no rollout engine to generate with.", "Start one: see --resource.")
        again = f" They were replaced {self._losses - 1} times, and none answered." if self._losses > 1 else ""
        return UserError(
            f"No rollout engine is left; lost: {', '.join(self.lost)}.{again}",
            "Run the same command again: engines are started anew and finished steps are kept.",
            "\n".join(f"{url}: {reason}" for url, reason in self.lost.items()),
        )
