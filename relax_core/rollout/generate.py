"""Many requests over several engines.

Guarantee: every request gives exactly one result, matched by its id, in the order of the requests; an engine that dies
costs time and no sample, since its unfinished requests go to the others; without a living engine the error names each
engine and its reason. No engine ever has more requests in flight than asked for.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from relax_core import aio
from relax_core.rollout.gate import Gate
from relax_core.rollout.generated import Answer, Generated
from relax_core.rollout.generation import Generation
from relax_core.rollout.pieces import StopTokenizer
from relax_core.rollout.pool import Generator
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.sampling import Sampling

__all__ = ["Generated", "Generation", "ProgressCallback", "generate", "run_generation"]

ProgressCallback: TypeAlias = Callable[[int, int, int], None]
"""Called with (finished requests, all requests, response tokens so far)."""

PROGRESS_INTERVAL_S = 0.25


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
    gate: Gate | None = None,
    revive: Callable[[], Sequence[str]] | None = None,
    tokenizer: StopTokenizer | None = None,
    opened: Callable[[Generation], None] | None = None,
) -> list[Generated]:
    """``generate`` for callers without an event loop, from any thread, with a client for each engine URL."""
    return aio.run(
        generate(
            requests,
            urls,
            sampling,
            context=context,
            concurrency=concurrency,
            progress=progress,
            answer=answer,
            finished=finished,
            lost=lost,
            gate=gate,
            revive=revive,
            tokenizer=tokenizer,
            opened=opened,
        )
    )


async def generate(
    requests: Sequence[SampleRequest],
    engines: Sequence[str | Generator],
    sampling: Sampling,
    *,
    context: int | None = None,
    concurrency: int,
    progress: ProgressCallback | None = None,
    answer: Answer | None = None,
    finished: Callable[[Generated], None] | None = None,
    lost: Callable[[str, str], None] | None = None,
    gate: Gate | None = None,
    revive: Callable[[], Sequence[str]] | None = None,
    tokenizer: StopTokenizer | None = None,
    opened: Callable[[Generation], None] | None = None,
) -> list[Generated]:
    """Answer all requests.

    Args:
        requests: with different ids.
        engines, sampling, context, concurrency, answer, gate, revive, lost, tokenizer: see ``Generation``.
        progress: called at the start, at most four times a second, and at the end.
        finished: called with each result, as soon as it is there; must be quick.
        opened: gets the generation, to lose and add engines from other threads.

    Returns:
        Results in the order of ``requests``.

    Raises:
        UserError: no engine is left, or an engine refused a request.
        ValueError: requests share an id, or nothing bounds the responses.
    """
    if len({request.sample_id for request in requests}) != len(requests):
        raise ValueError("two requests have the same sample_id")
    generation = Generation(
        engines,
        sampling,
        context=context,
        concurrency=concurrency,
        answer=answer,
        gate=gate,
        revive=revive,
        lost=lost,
        tokenizer=tokenizer,
    )
    report = Report(len(requests), progress)

    async def one(request: SampleRequest) -> Generated:
        result = await generation.sample(request)
        report.finished(result)
        if finished is not None:
            finished(result)
        return result

    async with generation:
        if opened is not None:
            opened(generation)
        report.tell()
        results = await aio.gather(one(request) for request in requests)
        report.tell()
    return results


class Report:
    """Counts what is finished and tells it, not too often."""

    def __init__(self, total: int, callback: ProgressCallback | None) -> None:
        self._total, self._callback = total, callback
        self._done = self._tokens = 0
        self._told = 0.0

    def more(self, count: int) -> None:
        """So many further requests are made."""
        self._total += count

    def finished(self, result: Generated) -> None:
        self._done += 1
        self._tokens += len(result.output_ids)
        if time.monotonic() - self._told >= PROGRESS_INTERVAL_S:
            self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
        if self._callback is not None:
            self._callback(self._done, self._total, self._tokens)
