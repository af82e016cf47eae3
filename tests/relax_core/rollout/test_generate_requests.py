"""Generation over engines: order, limits, deaths, over memory and over HTTP in SGLang's JSON."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from data.errors import UserError
from data.prompts import Prompt
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.rollout.generate import Generated, generate, run_generation
from relax_core.rollout.requests import SampleRequest, group_requests
from relax_core.rollout.sampling import Sampling

SAMPLING = Sampling(max_new_tokens=8)


def make_requests(groups: int, samples: int = 1, prompt_length: int = 3) -> list[SampleRequest]:
    prompts = [
        Prompt(f"{row:08d}", f"p{row}", np.full(prompt_length, row, np.int32), None, {}) for row in range(groups)
    ]
    return group_requests(prompts, prefix="000000", samples=samples, run_seed=42, step=0, first_group=0)


def answer(input_ids: Any, seed: int) -> list[int]:
    """The tokens that every fake engine gives: they tell prompt and seed apart."""
    return [int(input_ids[0]), seed % 1000, seed % 7]


@dataclass
class MemoryEngine:
    """An engine in this process. ``behave`` runs before each answer and may wait or raise."""

    url: str
    behave: Callable[["MemoryEngine"], Awaitable[None]] | None = None
    finish_reason: str = "stop"
    weight_versions: tuple[str, ...] = ("3",)
    spans: tuple[tuple[str, int, int], ...] = ()

    def __post_init__(self) -> None:
        self.calls: list[tuple[list[int], dict[str, Any], str]] = []
        self.in_flight = self.most = 0

    async def generate(self, input_ids: Any, sampling_params: Any, rid: str) -> Any:
        self.calls.append(([int(i) for i in input_ids], dict(sampling_params), rid))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(0)
            if self.behave:
                await self.behave(self)
        finally:
            self.in_flight -= 1
        tokens = answer(input_ids, sampling_params["sampling_seed"])
        return SimpleNamespace(
            output_ids=np.array(tokens, np.int32),
            log_probs=np.full(len(tokens), -0.5, np.float32),
            finish_reason={"type": self.finish_reason},
            weight_versions=self.weight_versions,
            cached_tokens=1,
            spans=self.spans,
        )

    async def abort(self, rid: str) -> None:
        raise AssertionError("nothing is cut here")


def check(requests: list[SampleRequest], results: list[Generated]) -> None:
    """Each request has its own answer, in order."""
    assert [result.request.sample_id for result in results] == [request.sample_id for request in requests]
    for request, result in zip(requests, results, strict=True):
        assert result.output_ids.tolist() == answer(request.prompt.tokens, request.seed)
        assert (result.output_ids.dtype, result.log_probs.dtype) == (np.int32, np.float32)


def test_512_requests_finish_in_any_order_and_come_back_in_theirs():
    order = random.Random(0)

    async def wait(engine: MemoryEngine) -> None:
        await asyncio.sleep(order.random() / 50)

    requests = make_requests(64, 8)
    engines = [MemoryEngine(f"e{i}", wait) for i in range(3)]
    check(requests, asyncio.run(generate(requests, engines, SAMPLING, concurrency=20)))
    assert sum(len(engine.calls) for engine in engines) == 512
    assert all(engine.most <= 20 for engine in engines)
    assert all(len(engine.calls) > 100 for engine in engines)  # all take part


def test_requests_go_to_the_least_loaded_engine():
    # The slow engine holds its two permits until the end; the fast one answers all others.
    gate: asyncio.Event

    async def hold(engine: MemoryEngine) -> None:
        await gate.wait()

    async def open_at_the_end(engine: MemoryEngine) -> None:
        if len(engine.calls) == 8:
            gate.set()

    async def work() -> None:
        nonlocal gate
        gate = asyncio.Event()
        slow, fast = MemoryEngine("slow", hold), MemoryEngine("fast", open_at_the_end)
        requests = make_requests(10)
        check(requests, await generate(requests, [slow, fast], SAMPLING, concurrency=2))
        assert (len(slow.calls), len(fast.calls)) == (2, 8)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_what_an_engine_is_asked():
    engine = MemoryEngine("e")
    requests = make_requests(2, prompt_length=5)
    asyncio.run(generate(requests, [engine], SAMPLING, context=9, concurrency=4))
    for request, (input_ids, params, rid) in zip(requests, engine.calls, strict=True):
        assert input_ids == request.prompt.tokens.tolist()
        assert params == SAMPLING.params(request.seed, 4)  # the context of 9 leaves 4 after 5
        assert rid.startswith(request.sample_id + ".")


def test_request_ids_are_new_for_each_call():
    engine = MemoryEngine("e")
    for _ in range(2):
        asyncio.run(generate(make_requests(3), [engine], SAMPLING, concurrency=4))
    assert len({rid for _, _, rid in engine.calls}) == 6


def test_no_room_is_truncated_without_a_call():
    engine = MemoryEngine("e")
    requests = make_requests(2, prompt_length=9)
    results = asyncio.run(generate(requests, [engine], SAMPLING, context=9, concurrency=1))
    assert engine.calls == []
    for result in results:
        assert (result.status, result.finish_reason, result.weight_versions) == ("truncated", "length", ())
        assert len(result.output_ids) == len(result.log_probs) == 0


@pytest.mark.parametrize(
    ("reason", "status"),
    [("stop", "completed"), ("length", "truncated"), ("abort", "aborted"), ("something", "failed")],
)
def test_finish_reasons(reason, status):
    engine = MemoryEngine("e", finish_reason=reason)
    (result,) = asyncio.run(generate(make_requests(1), [engine], SAMPLING, concurrency=1))
    assert (result.status, result.finish_reason) == (status, reason)
    assert (result.weight_versions, result.cached_tokens) == ((3,), 1)


def test_an_engine_that_dies_gives_its_requests_to_the_others():
    async def die_at_ten(engine: MemoryEngine) -> None:
        await asyncio.sleep(0.001)
        if len(engine.calls) >= 10:
            raise EngineUnavailable("connection reset")

    async def wait(engine: MemoryEngine) -> None:
        await asyncio.sleep(0.001)

    requests = make_requests(100)
    dying, living = MemoryEngine("dying", die_at_ten), MemoryEngine("living", wait)
    check(requests, asyncio.run(generate(requests, [dying, living], SAMPLING, concurrency=5)))
    # What was lost was asked once more and nothing else was.
    asked = Counter(rid for engine in (dying, living) for _, _, rid in engine.calls)
    assert set(asked.values()) <= {1, 2}
    assert 10 <= len(dying.calls) <= 15  # no request goes to a dead engine


def test_without_a_living_engine_the_error_names_each():
    async def die(engine: MemoryEngine) -> None:
        raise EngineUnavailable(f"{engine.url} exploded")

    engines = [MemoryEngine("http://a:1", die), MemoryEngine("http://b:2", die)]
    with pytest.raises(UserError) as error:
        asyncio.run(asyncio.wait_for(generate(make_requests(200), engines, SAMPLING, concurrency=3), 30))
    assert "http://a:1" in error.value.problem
    assert "http://b:2" in error.value.problem
    assert "http://b:2 exploded" in error.value.details


def test_no_engines_at_all():
    with pytest.raises(UserError, match="no rollout engine"):
        asyncio.run(generate(make_requests(1), [], SAMPLING, concurrency=1))


def test_another_error_ends_the_generation_and_what_is_in_flight():
    cancelled = started = 0

    async def fail_once(engine: MemoryEngine) -> None:
        nonlocal cancelled, started
        started += 1
        if started == 4:
            raise UserError("the engine refused the request")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled += 1
            raise

    engine = MemoryEngine("e", fail_once)
    with pytest.raises(UserError, match="refused"):
        asyncio.run(generate(make_requests(50), [engine], SAMPLING, concurrency=4))
    assert engine.in_flight == 0
    assert cancelled == started - 1  # all but the one that failed
    assert started <= 8  # and hardly another was sent


def test_a_weight_version_that_is_no_number_is_an_error():
    engine = MemoryEngine("e", weight_versions=("default",))
    with pytest.raises(UserError, match="'default'"):
        asyncio.run(generate(make_requests(1), [engine], SAMPLING, concurrency=1))


def test_a_request_aborted_in_the_queue_was_made_by_no_weights(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "answer", lambda input_ids, seed: [])
    engine = MemoryEngine("e", finish_reason="abort", weight_versions=("",))
    (result,) = asyncio.run(generate(make_requests(1), [engine], SAMPLING, concurrency=1))
    assert (result.status, len(result.output_ids), result.weight_versions) == ("aborted", 0, ())


def test_weights_that_change_during_a_response_are_all_recorded():
    engine = MemoryEngine("e", weight_versions=("3", "4"), spans=(("3", 0, 1), ("4", 1, 3)))
    (result,) = asyncio.run(generate(make_requests(1), [engine], SAMPLING, concurrency=1))
    assert result.weight_versions == (3, 4)
    assert result.token_versions.tolist() == [3, 4, 4]


@pytest.mark.parametrize("spans", [(), (("3", 0, 1), ("4", 1, 2))])
def test_tokens_whose_weights_are_not_said_are_an_error(spans):
    engine = MemoryEngine("e", weight_versions=("3", "4"), spans=spans)
    with pytest.raises(UserError, match="weight"):
        asyncio.run(generate(make_requests(1), [engine], SAMPLING, concurrency=1))


def test_a_refused_request_names_its_sample_and_is_not_asked_again():
    async def refuse(engine: MemoryEngine) -> None:
        raise EngineRefused("too long")

    engines = [MemoryEngine("a", refuse), MemoryEngine("b", refuse)]
    with pytest.raises(EngineRefused, match=r"000000-0000-000 \(prompt 00000000\): too long"):
        asyncio.run(generate(make_requests(1), engines, SAMPLING, concurrency=1))
    assert len(engines[0].calls) + len(engines[1].calls) == 1


def test_double_ids_and_unbounded_responses_are_refused():
    with pytest.raises(ValueError, match="same sample_id"):
        asyncio.run(generate(make_requests(1) * 2, [MemoryEngine("e")], SAMPLING, concurrency=1))
    with pytest.raises(ValueError, match="bounds"):
        asyncio.run(generate(make_requests(1), [MemoryEngine("e")], Sampling(), concurrency=1))


def test_progress_counts_up_and_is_not_called_for_every_request():
    seen: list[tuple[int, int, int]] = []
    requests = make_requests(500)
    asyncio.run(
        generate(requests, [MemoryEngine("e")], SAMPLING, concurrency=50, progress=lambda *now: seen.append(now))
    )
    assert seen[0] == (0, 500, 0)
    assert seen[-1] == (500, 500, 1500)
    assert seen == sorted(seen)
    assert len(seen) < 100


def test_no_requests():
    assert asyncio.run(generate([], [MemoryEngine("e")], SAMPLING, concurrency=1)) == []


class HttpEngine:
    """SGLang's ``/generate`` as a small server; ``dies_after`` requests it stops answering for good."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.dies_after, self.bodies = dies_after, []

    async def start(self) -> str:
        app = web.Application()
        app.router.add_post("/generate", self.handle)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        await asyncio.sleep(random.random() / 100)
        if self.dies_after is not None and len(self.bodies) > self.dies_after:
            request.transport.abort()  # as a killed process does
            raise web.HTTPInternalServerError
        tokens = answer(body["input_ids"], body["sampling_params"]["sampling_seed"])
        meta = {
            "id": body["rid"],
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
            "weight_version": "0",
            "output_token_logprobs": [[-0.25, token, None] for token in tokens],
        }
        return web.json_response({"text": "", "output_ids": tokens, "meta_info": meta})


def over_http(servers: list[HttpEngine], work: Callable[[list[str]], Any]) -> Any:
    """Run ``work(urls)`` in a thread while the servers answer."""

    async def main() -> Any:
        urls = [await server.start() for server in servers]
        try:
            return await asyncio.to_thread(work, urls)
        finally:
            for server in servers:
                await server.runner.cleanup()

    return asyncio.run(main())


def test_512_requests_over_http_from_a_plain_thread():
    requests = make_requests(64, 8)
    servers = [HttpEngine(), HttpEngine()]
    results = over_http(servers, lambda urls: run_generation(requests, urls, SAMPLING, context=64, concurrency=64))
    check(requests, results)
    assert all(result.log_probs.tolist() == [-0.25] * 3 for result in results)
    body = servers[0].bodies[0]
    assert body["return_logprob"] is True
    assert body["sampling_params"]["no_stop_trim"] is True


def test_an_http_engine_that_is_killed_midway_loses_no_sample():
    requests = make_requests(60)
    servers = [HttpEngine(dies_after=10), HttpEngine()]
    results = over_http(servers, lambda urls: run_generation(requests, urls, SAMPLING, concurrency=4))
    check(requests, results)


def test_http_engines_that_are_all_gone_are_named():
    servers = [HttpEngine(dies_after=5)]

    def work(urls: list[str]) -> str:
        with pytest.raises(UserError) as error:
            run_generation(make_requests(20), urls, SAMPLING, concurrency=4)
        assert urls[0] in str(error.value)
        return "seen"

    assert over_http(servers, work) == "seen"


def test_run_generation_works_inside_a_running_loop():
    requests = make_requests(4)
    server = HttpEngine()

    def work(urls: list[str]) -> list[Generated]:
        async def inner() -> list[Generated]:
            return run_generation(requests, urls, SAMPLING, concurrency=4)

        return asyncio.run(inner())

    check(requests, over_http([server], work))
