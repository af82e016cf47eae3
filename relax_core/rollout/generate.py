"""Many requests over several engines.

Guarantee: every request gives exactly one result, matched by its id, in the order of the requests; an engine that dies
costs time and no sample, since its unfinished requests go to the others; without a living engine the error names each
engine and its reason. No engine ever has more requests in flight than asked for.
"""

import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from relax_core import aio
from relax_core.engines.client import EngineClient
from relax_core.rollout.pool import Completion, Generator, Pool
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.sample import STATUS_OF, Status
from relax_core.rollout.sampling import Sampling, response_budget
from relax_core.weights.label import version_of

ProgressCallback: TypeAlias = Callable[[int, int, int], None]
"""Called with (finished requests, all requests, response tokens so far)."""

PROGRESS_INTERVAL_S = 0.25


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
        cached_tokens: tokens sent to the engine that its prefix cache held.
        asked_tokens: tokens sent to the engine; None: those of the prompt.
        own: what a function of the user decided; None: nothing.
    """

    request: SampleRequest
    output_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    status: str
    finish_reason: str
    weight_versions: tuple[int, ...]
    cached_tokens: int = 0
    asked_tokens: int | None = None
    own: "Own | None" = None


@dataclass(frozen=True)
class Own:
    """What a function of the user says of its sample beside the response; R response tokens.

    Attributes:
        prompt_ids: [P] the prompt before the response.
        loss_mask: [R] uint8, 1: trained on.
        response: text of the response; None: the tokens', decoded.
        label: JSON text; None: no label.
        metadata: JSON text of an object.
        remove_sample: not trained on.
        teacher_log_probs: [R] float32; None: the function gives none.
    """

    prompt_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    response: str | None
    label: str | None
    metadata: str
    remove_sample: bool
    teacher_log_probs: NDArray[np.float32] | None = None


Ask: TypeAlias = Callable[[NDArray[np.int32], dict[str, Any]], Awaitable[Completion]]
"""Sends tokens and SGLang's sampling parameters to an engine."""

Answer: TypeAlias = Callable[[SampleRequest, dict[str, Any], Ask], Awaitable[Generated]]
"""Makes the result of a request, out of its sampling parameters and a way to the engines."""


def run_generation(
    requests: Sequence[SampleRequest],
    urls: Sequence[str],
    sampling: Sampling,
    *,
    context: int | None = None,
    concurrency: int,
    progress: ProgressCallback | None = None,
    answer: Answer | None = None,
    finished: Callable[[Generated], None] | None = None,
    lost: Callable[[str, str], None] | None = None,
) -> list[Generated]:
    """``generate`` for callers without an event loop, from any thread, with a client for each engine URL."""

    async def work() -> list[Generated]:
        async with AsyncExitStack() as stack:
            clients = [EngineClient(url, connections=concurrency) for url in urls]
            engines = [await stack.enter_async_context(client) for client in clients]
            return await generate(
                requests,
                engines,
                sampling,
                context=context,
                concurrency=concurrency,
                progress=progress,
                answer=answer,
                finished=finished,
                lost=lost,
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
    answer: Answer | None = None,
    finished: Callable[[Generated], None] | None = None,
    lost: Callable[[str, str], None] | None = None,
) -> list[Generated]:
    """Answer all requests.

    Args:
        requests: with different ids.
        engines: each request goes to the one with the fewest requests in flight.
        sampling: options for all of them.
        context: most tokens of prompt and response together; None when ``sampling.max_new_tokens`` alone bounds them.
        concurrency: most requests in flight at one engine.
        progress: called at the start, at most four times a second, and at the end.
        answer: makes a result in place of one request to an engine (see ``relax_core.rollout.custom``).
        finished: called with each result, as soon as it is there; must be quick.
        lost: called with the address of an engine that is lost, and the reason.

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
    pool = Pool(engines, concurrency, tell=lost)
    report = _Report(len(requests), progress)
    # Ids are new for every call: an engine may still be busy with the same samples for a driver that was killed.
    call = uuid.uuid4().hex[:8]
    make = answer or _one_completion

    async def one(request: SampleRequest) -> Generated:
        prompt_length = len(request.prompt.tokens)
        limit = context if context is not None else prompt_length + (sampling.max_new_tokens or 0)
        budget = response_budget(prompt_length, sampling.max_new_tokens, limit)
        if budget == 0:
            nothing = np.empty(0, np.int32), np.empty(0, np.float32)
            result = Generated(request, *nothing, status="truncated", finish_reason="length", weight_versions=())
        else:
            numbers = itertools.count()

            async def ask(tokens: NDArray[np.int32], params: dict[str, Any]) -> Completion:
                return await pool.ask(request, tokens, params, f"{request.sample_id}.{call}.{next(numbers)}")

            result = await make(request, sampling.params(request.seed, budget), ask)
        report.finished(result)
        if finished is not None:
            finished(result)
        return result

    report.tell()
    results = await aio.gather(one(request) for request in requests)
    report.tell()
    return results


async def _one_completion(request: SampleRequest, params: dict[str, Any], ask: Ask) -> Generated:
    """The response to the prompt as one completion."""
    completion = await ask(request.prompt.tokens, params)
    output_ids, log_probs = checked_tokens(completion, request)
    reason = str(completion.finish_reason.get("type"))
    return Generated(
        request,
        output_ids,
        log_probs,
        status=STATUS_OF.get(reason, Status.FAILED),
        finish_reason=reason,
        weight_versions=checked_versions(completion, request),
        cached_tokens=completion.cached_tokens,
    )


def checked_tokens(completion: Completion, request: SampleRequest) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """[R] tokens and [R] log-probs of a completion.

    Raises:
        UserError: their numbers differ.
    """
    output_ids = np.asarray(completion.output_ids, np.int32)
    log_probs = np.asarray(completion.log_probs, np.float32)
    if output_ids.shape != log_probs.shape:
        raise UserError(
            f"The engine answered sample {request.sample_id} with {len(output_ids)} tokens "
            f"and {len(log_probs)} log-probs.",
            "This is a fault of the engine: see its log.",
        )
    return output_ids, log_probs


def checked_versions(completion: Completion, request: SampleRequest) -> tuple[int, ...]:
    """Versions of the weights that made a completion, in order; none where it has no tokens.

    Raises:
        UserError: weights of another run.
    """
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
