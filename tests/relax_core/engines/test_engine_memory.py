"""An engine gives up its device memory and takes it again: against a server that is as strict as SGLang, which dies of
a release while something runs and of taking what was not given up; and against SGLang itself, without a GPU."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from relax_core.engines.actor import PARTS, RELEASED, SGLangEngine
from relax_core.engines.client import EngineClient
from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineUnavailable
from relax_core.engines.spec import MEMORY_SAVER, WEIGHTS_BACKUP, EngineSpec
from relax_core.weights.transport import push_weights, stale_engines


class Server(ThreadingHTTPServer):
    """SGLang's memory as it is kept there: ``given`` are its ``offload_tags``."""

    daemon_threads = True

    def __init__(self) -> None:
        self.given: set[str] = set()
        self.calls: list[str] = []
        self.version, self.running = "3.abc", 0
        super().__init__(("127.0.0.1", 0), Handler)
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, {"weight_version": self.server.version})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        server, path = self.server, self.path.removeprefix("/").removesuffix("_memory_occupation")
        tags = body.get("tags") or []
        server.calls.append(" ".join([path, *tags]))
        if path == "flush_cache" and server.running:
            server.running -= 1  # another one has ended
            self._answer(400, {"message": "requests are running"})
            return
        if path == "update_weight_version":
            server.version = body["new_version"]
        elif path == "release":
            if server.running:
                self._answer(500, {"message": "server is not idle"})
                return
            server.given.update(tags)
        elif path == "resume":
            if not server.given.issuperset(tags):
                self._answer(500, {"message": f"KeyError: {tags}"})
                return
            server.given.difference_update(tags)
        self._answer(200, {})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Running:
    """The process of a server that is there already."""

    pid = 1

    def __init__(self, url: str) -> None:
        self.url, self.living = url, False

    def start(self) -> None:
        self.living = True

    def alive(self) -> bool:
        return self.living


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.shutdown()
    made.server_close()


def started(server: Server, *arguments: str) -> SGLangEngine:
    spec = EngineSpec(0, "cuda", "model", arguments, (), "log")
    engine = SGLangEngine(spec)
    process: Any = Running(server.url)
    engine._process = process
    engine.release()  # nothing runs yet: nothing to give up
    engine.start()
    return engine


def test_it_gives_up_and_takes_again_in_the_order_that_sglang_wants(server: Server) -> None:
    engine = started(server, MEMORY_SAVER)
    assert list(engine.release()) == ["abort", "flush", "version", "release"]  # and how long each took
    assert server.calls == ["abort_request", "flush_cache", "update_weight_version", "release kv_cache weights"]
    assert (server.version, server.given) == (RELEASED, {"weights", "kv_cache"})
    server.calls.clear()
    assert not engine.release()  # all is given up
    assert list(engine.resume(["weights"])) == ["resume"]
    engine.resume(["weights"])
    engine.resume()
    engine.resume()
    assert server.calls == ["resume weights", "resume kv_cache"]
    assert engine.fits(engine.spec)


def test_it_says_that_its_server_starts(server: Server) -> None:
    engine = started(server)
    assert engine.status()["url"] == server.url
    process: Any = engine._process
    process.living, said = False, []
    process.start = lambda: said.append(engine.status())
    engine.start()
    assert said == [{"busy_with": "start"}]
    assert engine.status()["url"] == server.url


def test_any_order_of_calls_is_right(server: Server) -> None:
    engine = started(server, MEMORY_SAVER)
    calls = [
        (engine.release, ["kv_cache"]),
        (engine.release, PARTS),
        (engine.resume, ["weights"]),
        (engine.resume, PARTS),
    ]
    for (first, one), (second, other) in itertools.product(calls, calls):
        first(one)
        second(other)
        assert engine.fits(engine.spec)
        held = set(PARTS) - server.given
        assert held >= set(other) if second == engine.resume else not held & set(other)


def test_the_cache_alone_leaves_the_weights_and_their_version(server: Server) -> None:
    started(server, MEMORY_SAVER).release(["kv_cache"])
    assert (server.given, server.version) == ({"kv_cache"}, "3.abc")


def test_an_engine_that_keeps_its_weights_keeps_their_version(server: Server) -> None:
    started(server, MEMORY_SAVER, WEIGHTS_BACKUP).release()
    assert (server.given, server.version) == ({"weights", "kv_cache"}, "3.abc")


def test_it_waits_until_nothing_runs(server: Server) -> None:
    engine = started(server, MEMORY_SAVER)
    server.running = 2
    engine.release(["kv_cache"])
    assert server.calls == ["abort_request", *["flush_cache"] * 3, "release kv_cache"]


def test_an_engine_without_the_memory_saver_keeps_everything(server: Server) -> None:
    engine = started(server)
    engine.release()
    engine.resume()
    assert not server.calls


def test_an_engine_that_failed_halfway_is_no_longer_what_it_should_be(server: Server) -> None:
    engine = started(server, MEMORY_SAVER)
    engine.release()
    server.given.clear()
    with pytest.raises(EngineUnavailable, match="KeyError"):
        engine.resume()
    assert not engine.fits(engine.spec)


def test_an_engine_that_is_giving_up_memory_is_still_what_it_should_be(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, begun, go_on = started(server, MEMORY_SAVER), Event(), Event()

    def flush_cache(control: EngineControl) -> None:
        begun.set()
        assert go_on.wait(60)

    monkeypatch.setattr(EngineControl, "flush_cache", flush_cache)
    with ThreadPoolExecutor(2) as pool:
        giving = pool.submit(engine.release, ["kv_cache"])
        assert begun.wait(60)
        fits = pool.submit(engine.fits, engine.spec)
        wait([fits], timeout=0.2)  # a wrong answer comes at once
        go_on.set()
        assert fits.result(60)
        giving.result(60)


@pytest.mark.sglang
@pytest.mark.timeout(400)
def test_sglang_ends_what_runs_and_generates_again_behind_a_push(sglang_engine: Any, monkeypatch: Any) -> None:
    engine = sglang_engine.engine
    spec = engine.spec
    monkeypatch.setattr(engine, "spec", dataclasses.replace(spec, arguments=(*spec.arguments, MEMORY_SAVER)))
    tensors = load_file(sglang_engine.folders[1] / "model.safetensors")
    push_weights(tensors.items(), [sglang_engine.url], "1.before", 1 << 20)
    greedy = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True}

    async def run() -> Any:
        async with EngineClient(sglang_engine.url) as client:
            prompt = np.array([1, 87, 85, 71])
            first = await client.generate(prompt, greedy)
            long = asyncio.create_task(client.generate(prompt, {**greedy, "max_new_tokens": 900}))
            await asyncio.sleep(0.3)
            await asyncio.to_thread(engine.release)
            cut = await long
            assert stale_engines([sglang_engine.url], "1.before")
            await asyncio.to_thread(engine.resume, ["weights"])
            await asyncio.to_thread(push_weights, tensors.items(), [sglang_engine.url], "1.behind", 1 << 20)
            await asyncio.to_thread(engine.resume)
            return first, cut, await client.generate(prompt, greedy)

    first, cut, again = asyncio.run(run())
    assert cut.finish_reason["type"] == "abort"
    assert again.output_ids.tolist() == first.output_ids.tolist()
    assert again.weight_version == "1.behind"
    with EngineControl(sglang_engine.url) as control:
        assert control.weight_version() == "1.behind"
