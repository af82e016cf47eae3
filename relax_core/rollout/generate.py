"""Many requests over several engines.

Guarantee: every request gives exactly one result, matched by its id, in the order of the requests; an engine that dies
costs time and no sample, since its unfinished requests go to the others; without a living engine the error names each
engine and its reason. No engine ever has more requests in flight than asked for.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from relax_core import aio
from relax_core.engines.client import EngineClient
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.sampling import Sampling, response_budget
from relax_core.weights.label import version_of

ProgressCallback: TypeAlias = Callable[[int, int, int], None]
"""Called with (finished requests, all requests, response tokens so far)."""

PROGRESS_INTERVAL_S = 0.25
STATUS_OF = {"stop": "completed", "length": "truncated", "abort": "aborted"}


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


@dataclass(frozen=True)
class Generated:
    """A request and its response of R tokens.

    Attributes:
        request: what was asked.
        output_ids: [R] int32.
        log_probs: [R] float32, log-probs of the sampled tokens as the engine computed them.
        status: ``completed``, ``truncated``, ``aborted`` or ``failed``.
        finish_reason: the engine's word, ``length`` for a response that had no room.
        weight_versions: versions of the weights that made it, in order; none for a response without tokens.
        cached_tokens: prompt tokens that the engine's prefix cache held.
    """

    request: SampleRequest
    output_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    status: str
    finish_reason: str
    weight_versions: tuple[int, ...]
    cached_tokens: int = 0


def run_generation(
    requests: Sequence[SampleRequest],
    urls: Sequence[str],
    sampling: Sampling,
    *,
    context: int | None = None,
    concurrency: int,
    progress: ProgressCallback | None = None,
) -> list[Generated]:
    """``generate`` for callers without an event loop, from any thread, with a client for each engine URL."""

    async def work() -> list[Generated]:
        async with AsyncExitStack() as stack:
            clients = [EngineClient(url, connections=concurrency) for url in urls]
            engines = [await stack.enter_async_context(client) for client in clients]
            return await generate(
                requests, engines, sampling, context=context, concurrency=concurrency, progress=progress
            )

    return aio.run(work())


async def generate(
    requests: Sequence[SampleRequest],
    engines: Sequence[Generator],
    sampling: Sampling,
    *,
    context: int | None = None,
    concurrency: int,
    progress: ProgressCallback | None = None,
) -> list[Generated]:
    """Answer all requests.

    Args:
        requests: with different ids.
        engines: each request goes to the one with the fewest requests in flight.
        sampling: options for all of them.
        context: most tokens of prompt and response together; None when ``sampling.max_new_tokens`` alone bounds them.
        concurrency: most requests in flight at one engine.
        progress: called at the start, at most four times a second, and at the end.

    Returns:
        Results in the order of ``requests``.

    Raises:
        UserError: no engine is left, or an engine refused a request.
        ValueError: requests share an id, or nothing bounds the responses.
    """
    if len({request.sample_id for request in requests}) != len(requests):
        raise ValueError("two requests have the same sample_id")
    if context is None and sampling.max_new_tokens is None:
        raise ValueError("neither a context nor max_new_tokens bounds the responses")
    pool = _Pool(engines, concurrency)
    report = _Report(len(requests), progress)
    # Ids are new for every call: an engine may still be busy with the same samples for a driver that was killed.
    call = uuid.uuid4().hex[:8]

    async def one(request: SampleRequest) -> Generated:
        prompt_length = len(request.prompt.tokens)
        limit = context if context is not None else prompt_length + (sampling.max_new_tokens or 0)
        budget = response_budget(prompt_length, sampling.max_new_tokens, limit)
        if budget == 0:
            nothing = np.empty(0, np.int32), np.empty(0, np.float32)
            result = Generated(request, *nothing, status="truncated", finish_reason="length", weight_versions=())
        else:
            params = sampling.params(request.seed, budget)
            result = _generated(request, await _ask(pool, request, params, f"{request.sample_id}.{call}"))
        report.finished(result)
        return result

    report.tell()
    results = await aio.gather(one(request) for request in requests)
    report.tell()
    return results


async def _ask(pool: "_Pool", request: SampleRequest, params: dict[str, Any], rid: str) -> Completion:
    """Ask engines until one answers."""
    while True:
        async with pool.engine() as engine:
            try:
                return await engine.generate(request.prompt.tokens, params, rid)
            except EngineUnavailable as error:
                pool.lose(engine, error)
            except EngineRefused as error:  # another engine would refuse it too
                problem = f"Sample {request.sample_id} (prompt {request.prompt.prompt_id}): {error.problem}"
                raise EngineRefused(problem, error.fix, error.details) from error


def _generated(request: SampleRequest, completion: Completion) -> Generated:
    output_ids = np.asarray(completion.output_ids, np.int32)
    log_probs = np.asarray(completion.log_probs, np.float32)
    if output_ids.shape != log_probs.shape:
        raise UserError(
            f"The engine answered sample {request.sample_id} with {len(output_ids)} tokens "
            f"and {len(log_probs)} log-probs.",
            "This is a fault of the engine: see its log.",
        )
    reason = str(completion.finish_reason.get("type"))
    return Generated(
        request,
        output_ids,
        log_probs,
        status=STATUS_OF.get(reason, "failed"),
        finish_reason=reason,
        weight_versions=_versions(completion, request),
        cached_tokens=completion.cached_tokens,
    )


def _versions(completion: Completion, request: SampleRequest) -> tuple[int, ...]:
    if not len(completion.output_ids):
        return ()  # made by no weights, e.g. aborted while it was queued
    versions = [version_of(label) for label in completion.weight_versions]
    if None in versions:
        raise UserError(
            f"The engine answered sample {request.sample_id} with the weight versions "
            f"{', '.join(map(repr, completion.weight_versions))}, which are no numbers.",
            "Weights must come from this run: let it sync them, or start the engine with --weight-version 0.",
        )
    return tuple(version for version in versions if version is not None)


@dataclass(eq=False)
class _Slot:
    engine: Generator
    in_flight: int = 0


@dataclass
class _Pool:
    """Permits for the engines that are alive; used in one event loop."""

    engines: Sequence[Generator]
    concurrency: int
    lost: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._alive = [_Slot(engine) for engine in self.engines]
        self._changed = asyncio.Condition()

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


class _Report:
    """Counts what is finished and tells it, not too often."""

    def __init__(self, total: int, callback: ProgressCallback | None) -> None:
        self._total, self._callback = total, callback
        self._done = self._tokens = 0
        self._told = 0.0

    def finished(self, result: Generated) -> None:
        self._done += 1
        self._tokens += len(result.output_ids)
        if time.monotonic() - self._told >= PROGRESS_INTERVAL_S:
            self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
        if self._callback is not None:
            self._callback(self._done, self._total, self._tokens)
