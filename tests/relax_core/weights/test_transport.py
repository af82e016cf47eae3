"""Buckets, and the order of calls, against an engine that only remembers what it was sent."""

import base64
import itertools
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.weights import transport
from relax_core.weights.transport import buckets, check_equal, push_weights, stale_engines


class FakeEngine:
    """Speaks the routes of a weight update; ``old`` lacks the brackets, as SGLang 0.5.17 does."""

    def __init__(self, old: bool = False) -> None:
        self.version, self.calls, self.weights, self.open = "default", [], {}, False
        self.payloads = 0
        self.old, self.fail_at, self.deaf = old, "", False
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            def do_GET(self) -> None:
                if self.path == "/openapi.json":
                    brackets = {} if engine.old else {"/begin_weight_update": {}, "/end_weight_update": {}}
                    self.answer(200, {"paths": {"/update_weights_from_tensor": {}, **brackets}})
                elif self.path == "/model_info" and engine.old:
                    self.answer(404, {})
                else:
                    self.answer(200, {"weight_version": engine.version})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
                engine.calls.append(self.path)
                if self.path == engine.fail_at:
                    self.answer(400, {"success": False, "message": "no thanks"})
                    return
                self.answer(*engine.handle(self.path, body))

            def answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def handle(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/update_weight_version" and not self.deaf:
            self.version = body["new_version"]
        if path == "/begin_weight_update":
            if self.open:
                return 400, {"message": "a weight-update session is already open"}
            self.open = True
        if path == "/end_weight_update":
            self.open = False
        if path == "/update_weights_from_tensor":
            self.payloads = len(body["serialized_named_tensors"])
            for text in body["serialized_named_tensors"]:
                self.load(pickle.loads(base64.b64decode(text)), body["load_format"])
        return 200, {"success": True}

    def load(self, bucket: Any, load_format: str | None) -> None:
        if load_format == "flattened_bucket":
            flat = bucket["flattened_tensor"]
            bucket = [
                (m.name, flat[m.start_idx : m.end_idx].view(m.dtype).reshape(m.shape)) for m in bucket["metadata"]
            ]
        self.weights |= {name: tensor.clone() for name, tensor in bucket}


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    made = [FakeEngine(), FakeEngine(old=True)]
    yield made
    for engine in made:
        engine.server.shutdown()
        engine.server.server_close()


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(7, 3, generator=generator),
        "b": torch.randn(5, generator=generator).to(torch.bfloat16),
        "c": torch.tensor(2.5, dtype=torch.float64),
        "d": torch.randn(4, 6, generator=generator).T,  # not contiguous
    }


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("bucket_bytes", [1, 64, 10**6])
def test_every_engine_gets_every_tensor(engines, bucket_bytes, tp_size):
    report = push_weights(tensors().items(), [e.url for e in engines], 3, bucket_bytes, tp_size)
    for engine in engines:
        assert engine.weights.keys() == tensors().keys()
        for name, tensor in tensors().items():
            assert torch.equal(engine.weights[name], tensor)
            assert engine.weights[name].dtype == tensor.dtype
        assert engine.version == "3"
        assert engine.payloads == tp_size  # one for each rank
    assert report.bytes == 7 * 3 * 4 + 5 * 2 + 8 + 24 * 4
    assert report.buckets == {1: 4, 64: 3, 10**6: 1}[bucket_bytes]  # of 64: 84 | 10 + 8 | 96 bytes
    assert set(report.engines) == {e.url for e in engines}


def test_generation_stops_before_and_goes_on_after_the_update(engines):
    push_weights(tensors().items(), [e.url for e in engines], 3, 10**6)
    new, old = (engine.calls for engine in engines)
    assert new == [
        "/update_weight_version",
        "/pause_generation",
        "/flush_cache",
        "/begin_weight_update",
        "/update_weights_from_tensor",
        "/end_weight_update",
        "/continue_generation",
        "/update_weight_version",
    ]
    assert old == [call for call in new if "_weight_update" not in call]


def test_only_engines_without_the_version_are_updated(engines):
    engines[0].version = "3"
    assert stale_engines([e.url for e in engines], 3) == [engines[1].url]
    report = push_weights(tensors().items(), [e.url for e in engines], 3, 10**6)
    assert engines[0].calls == []
    assert report.engines[engines[0].url] == 0 < report.engines[engines[1].url]


def test_a_push_that_broke_off_leaves_no_numeric_version_and_is_repeated(engines):
    engine = engines[0]
    engine.fail_at = "/update_weights_from_tensor"
    with pytest.raises(EngineRefused, match="no thanks"):
        push_weights(tensors().items(), [engine.url], 3, 10**6)
    assert engine.version == "updating-3"
    assert engine.open
    engine.fail_at = ""
    push_weights(tensors().items(), [engine.url], 3, 10**6)
    assert engine.version == "3"
    assert not engine.open


def test_a_version_that_does_not_stick_is_an_error(engines):
    engines[0].deaf = True
    with pytest.raises(EngineUnavailable, match="reports 'default'"):
        push_weights(tensors().items(), [engines[0].url], 3, 10**6)


def test_a_tensor_that_shared_memory_cannot_hold_is_an_error_not_a_crash(engines, monkeypatch):
    monkeypatch.setattr(transport, "_shared_free", lambda: 60)
    with pytest.raises(UserError, match="shm-size"):
        push_weights(tensors().items(), [engines[0].url], 3, 10**6)
    assert engines[0].version == "updating-3"


def test_the_sharing_strategy_of_the_process_is_left_alone(engines):
    before = torch.multiprocessing.get_sharing_strategy()
    push_weights(tensors().items(), [engines[0].url], 3, 10**6)
    assert torch.multiprocessing.get_sharing_strategy() == before


def test_a_comparison_that_cannot_fail_proves_nothing(engines):
    # This engine says yes to everything, also when its weights are random numbers.
    with pytest.raises(EngineUnavailable, match="finds no difference"):
        check_equal(tensors().items(), [engines[0].url])
    assert engines[0].version == "checking"


@given(sizes=st.lists(st.integers(0, 50)), limit=st.integers(1, 400))
def test_buckets_keep_order_and_size(sizes, limit):
    named = [(str(i), torch.zeros(size)) for i, size in enumerate(sizes)]
    groups = list(buckets(named, limit))
    assert [pair[0] for group in groups for pair in group] == [name for name, _ in named]
    padded = [[-(-tensor.nbytes // 16) * 16 for _, tensor in group] for group in groups]
    assert all(group for group in groups)
    assert all(sum(group) <= limit or len(group) == 1 for group in padded)
    # no two neighbours would have fitted together
    assert all(sum(a) + b[0] > limit for a, b in itertools.pairwise(padded))


def test_buckets_are_made_as_they_are_wanted():
    made = []

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for i in range(10):
            made.append(i)
            yield str(i), torch.zeros(4)

    next(buckets(stream(), 32))
    assert len(made) == 3  # two in the bucket and the one that did not fit
