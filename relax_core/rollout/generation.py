"""Samples of engines that may be interrupted, lost, replaced and added while they work.

Guarantee: each request gives exactly one result. One that was interrupted for new weights goes on from what it has, at
any engine, and every token knows its weights; one that is cut returns what it has. Nothing waits for an engine that was
given up.
"""

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from relax_core.engines.client import EngineClient
from relax_core.rollout.gate import INTERRUPT_SECONDS, Gate
from relax_core.rollout.generated import Answer, Generated
from relax_core.rollout.pieces import Merged, Pieces, StopTokenizer, in_order, reduced
from relax_core.rollout.pool import Call, Ended, Generator, Pool
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.sample import STATUS_OF, Status
from relax_core.rollout.sampling import Sampling, response_budget

END_SECONDS = 60.0
"""An engine that has not ended a cut request after so long is not waited for: the tokens of that piece are lost."""

_ASKS_AFTER_CUT = 100
"""A function that asks so often after it was told that its sample is cut would never return."""


class Generation:
    """Makes samples until it is left; an async context manager, for one event loop.

    Args:
        engines: addresses, or engines; each request goes to the one with the fewest requests in flight.
        sampling: options for all requests.
        context: most tokens of prompt and response together; None when ``sampling.max_new_tokens`` alone bounds them.
        concurrency: most requests in flight at one engine.
        answer: makes a result in place of one request to an engine (see ``relax_core.rollout.custom``).
        gate: the run's; requests that end because it was closed go on. None: weights never change meanwhile.
        revive: addresses of engines that are ready for requests; called in a thread when no engine is left. It raises
            ``UserError`` where there are none.
        lost: called with the address of an engine that is lost, and the reason.
        tokenizer: finds stop strings that lie across an interruption; without it such a string ends no response.

    Raises:
        ValueError: nothing bounds the responses.
    """

    def __init__(
        self,
        engines: Sequence[str | Generator],
        sampling: Sampling,
        *,
        context: int | None = None,
        concurrency: int,
        answer: Answer | None = None,
        gate: Gate | None = None,
        revive: Callable[[], Sequence[str]] | None = None,
        lost: Callable[[str, str], None] | None = None,
        tokenizer: StopTokenizer | None = None,
    ) -> None:
        if context is None and sampling.max_new_tokens is None:
            raise ValueError("neither a context nor max_new_tokens bounds the responses")
        self._sampling, self._context, self._concurrency = sampling, context, concurrency
        self._answer, self._tokenizer, self._revive = answer, tokenizer, revive
        # Ids are new for every generation: an engine may still be busy with the same samples for a driver that died.
        self._name = uuid.uuid4().hex[:8]
        self._clients: list[EngineClient] = []
        self._calls: dict[Call, SampleRequest] = {}
        self._spare: Callable[[SampleRequest], bool] | None = None
        self._asked_after_cut: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool = Pool(
            [self._connect(engine) if isinstance(engine, str) else engine for engine in engines],
            concurrency,
            gate=gate,
            revive=self._revived if revive is not None else None,
            tell=lost,
        )

    async def __aenter__(self) -> "Generation":
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop = None
        self._pool.close()
        for client in self._clients:
            await client.close()

    async def sample(self, request: SampleRequest) -> Generated:
        """The response to a request, from what exists of it.

        Raises:
            UserError: no engine is left and no new one comes, or an engine refused the request.
        """
        progress, prompt_length = request.progress, len(request.prompt.tokens)
        longest = self._sampling.max_new_tokens
        limit = self._context if self._context is not None else prompt_length + (longest or 0)
        budget = response_budget(prompt_length, longest, limit)
        produced = 0 if progress is None else len(progress.output_ids)
        if budget <= produced or self._is_cut(request):
            reason = "length" if budget <= produced else "abort"
            result = joined(request, Pieces(request.sample_id, {}).merged(reason))
        else:
            params, numbers = self._sampling.params(request.seed, budget), itertools.count()
            if self._answer is not None:

                async def ask(tokens: NDArray[np.int32], params: dict[str, Any]) -> Merged:
                    return await self._ask(request, tokens, params, numbers)

                result = await self._answer(request, params, ask)
            elif progress is None:
                result = joined(request, await self._ask(request, request.prompt.tokens, params, numbers))
            else:
                tokens, params = np.concatenate([request.prompt.tokens, progress.output_ids]), reduced(params, produced)
                result = joined(request, await self._ask(request, tokens, params, numbers, progress.output_ids))
        aborted = (0 if progress is None else progress.abort_count) + (result.status == Status.ABORTED)
        return replace(result, abort_count=aborted)

    async def cut(self, spare: Callable[[SampleRequest], bool] = lambda request: False) -> None:
        """End every request, now and from now on, except those that are spared: they give what they have, with the
        status ``aborted``. Returns when none of them is at an engine.

        Args:
            spare: says of a request whether it goes on to its end.
        """
        self._spare = spare
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_SECONDS
        while calls := [call for call, request in self._calls.items() if not spare(request)]:
            if loop.time() > deadline:
                for call in calls:
                    call.give_up()
            else:
                await asyncio.gather(*(call.end() for call in calls))
            await asyncio.wait([call.work for call in calls if call.work is not None], timeout=INTERRUPT_SECONDS)
            await asyncio.sleep(0)  # who waits for them runs first

    def lose(self, url: str, reason: str) -> None:
        """Give an engine up: what is in flight at it goes to others at once. From any thread."""
        self._post(lambda: self._pool.lose(url.rstrip("/"), reason))

    def add(self, urls: Iterable[str]) -> None:
        """Use more engines; those that it uses already stay as they are. From any thread."""
        new = [url.rstrip("/") for url in urls]
        self._post(lambda: self._pool.add(self._connect(url) for url in new if url not in self._pool.urls))

    def _post(self, work: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(work)

    def _connect(self, url: str) -> EngineClient:
        client = EngineClient(url, connections=self._concurrency)
        self._clients.append(client)
        return client

    async def _revived(self) -> list[Generator]:
        assert self._revive is not None
        return [self._connect(url) for url in await asyncio.to_thread(self._revive)]

    def _is_cut(self, request: SampleRequest) -> bool:
        return self._spare is not None and not self._spare(request)

    async def _ask(
        self,
        request: SampleRequest,
        tokens: NDArray[np.int32],
        params: dict[str, Any],
        numbers: Iterator[int],
        before: NDArray[np.int32] | None = None,
    ) -> Merged:
        """One response to tokens, asked again as often as it is interrupted. ``before``: see ``Pieces``."""
        pieces = Pieces(request.sample_id, params, self._tokenizer, before)
        while not self._is_cut(request):
            # Of one width: SGLang takes an id for all requests whose ids begin with it.
            call = Call(f"{request.sample_id}.{self._name}.{next(numbers):06d}")
            asked = pieces.tokens(tokens)
            self._calls[call] = request
            try:
                completion = await self._pool.ask(request, asked, pieces.params(), call)
            except Ended:
                break
            finally:
                del self._calls[call]
            reason = pieces.add(completion, len(asked))
            if reason != "abort" or not call.interrupted:
                return pieces.merged()
            if pieces.full:
                return pieces.merged("length")
            pieces.interrupted += 1
        self._asked_after_cut[request.sample_id] += 1
        if self._asked_after_cut[request.sample_id] > _ASKS_AFTER_CUT:
            raise UserError(
                f"The function that generates sample {request.sample_id} goes on asking after the sample was ended.",
                "Return the sample where the finish reason of a response is 'abort'.",
            )
        await asyncio.sleep(0)
        return pieces.merged("abort")


def joined(request: SampleRequest, merged: Merged) -> Generated:
    """The result of a request: what existed of the response, and what was generated after it."""
    reason, before = str(merged.finish_reason.get("type")), request.progress
    output_ids, log_probs, versions = merged.output_ids, merged.log_probs, merged.token_versions
    mask = np.ones(len(output_ids), np.uint8)
    if before is not None:
        output_ids = np.concatenate([before.output_ids, output_ids])
        log_probs = np.concatenate([before.log_probs, log_probs])
        versions = np.concatenate([before.token_versions, versions])
        mask = np.concatenate([before.loss_mask, mask])
    return Generated(
        request,
        output_ids,
        log_probs,
        status=STATUS_OF.get(reason, Status.FAILED),
        finish_reason=reason,
        weight_versions=tuple(version for version in in_order(versions) if version >= 0),
        cached_tokens=merged.cached_tokens,
        asked_tokens=merged.asked_tokens,
        token_versions=versions,
        loss_mask=mask,
        interrupted=merged.interrupted,
    )
