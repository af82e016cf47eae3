"""The client against a small server that answers what it is told to."""

import asyncio
import copy
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from relax_core.engines.client import EngineClient, _read, _written, parse_completion
from relax_core.engines.errors import EngineRefused, EngineUnavailable

ANSWER = {
    "text": "",
    "output_ids": [5, 6],
    "meta_info": {
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 3,
        "cached_tokens": 1,
        "weight_version": "8",
        "weight_versions": [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 2}],
        "output_token_logprobs": [[-0.5, 5, None], [-1.5, 6, None]],
    },
}


def changed(**fields: Any) -> dict[str, Any]:
    """The answer with fields of its meta_info replaced; None removes one."""
    answer = copy.deepcopy(ANSWER)
    for name, value in fields.items():
        answer["meta_info"][name] = value
    return answer


def serve(handler: Callable[[web.Request], Awaitable[web.StreamResponse]], calls: int = 1) -> list[Any]:
    """Results, or errors, of ``calls`` concurrent requests to a server with this handler."""

    async def run() -> list[Any]:
        app = web.Application()
        app.router.add_post("/generate", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with EngineClient(f"http://127.0.0.1:{port}", "engine 4", read_timeout=5) as client:
            requests = [client.generate(np.arange(3), {"max_new_tokens": 2}, rid=f"r{i}") for i in range(calls)]
            done = await asyncio.gather(*requests, return_exceptions=True)
        await runner.cleanup()
        return done

    return asyncio.run(run())


def test_a_completion_holds_what_the_engine_said():
    done = parse_completion(ANSWER, "engine 4")
    assert (done.output_ids.dtype, done.log_probs.dtype) == (np.int32, np.float32)
    assert done.output_ids.tolist() == [5, 6]
    assert done.log_probs.tolist() == [-0.5, -1.5]
    assert done.finish_reason == {"type": "length", "length": 2}
    assert (done.weight_version, done.weight_versions) == ("8", ("7", "8"))
    assert (done.prompt_tokens, done.cached_tokens) == (3, 1)
    assert done.spans == (("7", 0, 1), ("8", 1, 2))


def test_older_engines_say_less():
    answer = changed(weight_versions=None, cached_tokens=None, finish_reason="stop")
    del answer["output_ids"]
    done = parse_completion(answer, "engine 4")
    assert done.output_ids.tolist() == [5, 6]
    assert (done.weight_versions, done.spans) == (("8",), ())
    assert done.finish_reason == {"type": "stop"}


def test_an_aborted_request_without_tokens_is_an_empty_completion_that_says_abort():
    answer = {"meta_info": {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}}
    done = parse_completion(answer, "engine 4")
    assert (len(done.output_ids), len(done.log_probs), done.finish_reason["type"]) == (0, 0, "abort")


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {"meta_info": {}},
        changed(output_token_logprobs=[[-0.5, 5, None]]),  # one log-prob for two tokens
        changed(output_token_logprobs=[[-0.5, 5, None], [-1.5, 9, None]]),  # of another token
        changed(output_token_logprobs="?"),
    ],
)
def test_an_answer_that_makes_no_sense_names_the_engine(answer):
    with pytest.raises(EngineUnavailable, match="engine 4"):
        parse_completion(answer, "engine 4")


def test_an_abort_for_a_bad_request_is_a_refusal():
    answer = changed(finish_reason={"type": "abort", "status_code": 400, "message": "too long"})
    with pytest.raises(EngineRefused, match="too long"):
        parse_completion(answer, "engine 4")


def test_many_requests_run_at_once_and_each_has_a_seed():
    bodies: list[dict[str, Any]] = []
    everyone = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        if len(bodies) == 300:
            everyone.set()
        await everyone.wait()  # would hang if the client queued requests
        return web.json_response(ANSWER)

    done = serve(handler, calls=300)
    assert all(completion.output_ids.tolist() == [5, 6] for completion in done)
    assert len({body["sampling_params"]["sampling_seed"] for body in bodies}) == 300
    assert bodies[0]["input_ids"] == [0, 1, 2]
    assert bodies[0]["return_logprob"] is True
    assert {body["rid"] for body in bodies} == {f"r{i}" for i in range(300)}


def test_a_refusal_carries_the_engines_words():
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "the prompt is longer than the context"}}, status=400)

    (error,) = serve(handler)
    assert isinstance(error, EngineRefused)
    assert "longer than the context" in str(error)


def test_a_broken_engine_is_unavailable():
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="oops", status=500)

    (error,) = serve(handler)
    assert isinstance(error, EngineUnavailable)


def test_an_engine_that_dies_meanwhile_is_named_and_not_asked_again():
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    (error,) = serve(handler)
    assert isinstance(error, EngineUnavailable)
    assert "engine 4" in str(error)
    assert calls == 1


def test_a_request_is_ended_by_its_id_though_all_connections_are_taken():
    ended: list[str] = []
    told = asyncio.Event()

    async def generate(request: web.Request) -> web.Response:
        await told.wait()
        return web.json_response(ANSWER)

    async def abort(request: web.Request) -> web.Response:
        ended.append((await request.json())["rid"])
        told.set()
        return web.Response()

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/generate", generate)
        app.router.add_post("/abort_request", abort)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with EngineClient(url, connections=2) as client:
            requests = [asyncio.create_task(client.generate(np.arange(3), {}, rid=f"r{i}")) for i in range(2)]
            await asyncio.sleep(0.05)
            await client.abort("r1")
            await asyncio.gather(*requests)
        await runner.cleanup()
        async with EngineClient(url) as client:
            await client.abort("r1")  # nobody is there: no error

    asyncio.run(asyncio.wait_for(run(), 30))
    assert ended == ["r1"]


def test_nobody_there_is_unavailable(unused_port, monkeypatch):
    async def at_once(seconds: float) -> None:
        return None

    monkeypatch.setattr("relax_core.engines.client.asyncio.sleep", at_once)
    client = EngineClient(f"http://127.0.0.1:{unused_port}", "engine 4")

    async def run() -> None:
        async with client:
            await client.generate(np.arange(3), {})

    with pytest.raises(EngineUnavailable, match="engine 4"):
        asyncio.run(run())


def test_a_request_is_the_json_that_the_standard_library_writes():
    # every kind of array, and what only that library writes: NaN, and keys that are numbers
    odd = {"temperature": float("nan"), "logit_bias": {3: 1.5}, "stop": ["\ud83d", "é"]}
    for tokens in ([0, 7, 2**31 - 1], [], [3]):
        for kind in (np.int32, np.int64):
            body = {"input_ids": np.array(tokens * 2, kind)[::2], "sampling_params": odd, "rid": "a"}
            text = _written(body).decode()
            assert json.dumps(json.loads(text)) == json.dumps(
                {"sampling_params": odd, "rid": "a", "input_ids": body["input_ids"].tolist()}
            )
    assert _written({"input_ids": [1, 2], "rid": None}) == b'{"input_ids": [1, 2], "rid": null}'


def test_an_answer_may_be_empty_or_hold_what_is_no_number():
    assert _read(b"") is None
    assert _read(b" \n") is None
    assert _read(b'{"a": [1.5, null]}') == {"a": [1.5, None]}
    assert math.isnan(_read(b'{"a": NaN}')["a"])
    with pytest.raises(ValueError):
        _read(b'{"a": ')


def test_a_log_prob_that_is_no_number_stays_one():
    done = parse_completion(changed(output_token_logprobs=[[None, 5, None], [-1.5, 6, None]]), "engine 4")
    assert math.isnan(done.log_probs[0])
    assert done.log_probs[1] == -1.5
