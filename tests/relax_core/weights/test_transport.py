"""Buckets, and the order of calls, against an engine that only remembers what it was sent."""

import base64
import json
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from data.errors import UserError
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.weights import bucket, group, load
from relax_core.weights.group import GroupLink
from relax_core.weights.transport import WeightsDiffer, check_equal, push_weights, stale_engines


class FakeEngine:
    """Speaks the routes of a weight update; ``old`` lacks the brackets, as SGLang 0.5.17 does."""

    def __init__(self, old: bool = False) -> None:
        self.version, self.calls, self.weights, self.open = "default", [], {}, False
        self.payloads, self.delay = 0, 0.0
        self.differs: list[str] = []  # what comparisons say in turn; "": all is equal
        self.old, self.fail_at, self.deaf = old, "", False
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            def do_GET(self) -> None:
                if self.path == "/model_info" and engine.old:
                    self.answer(404, {})
                else:
                    self.answer(200, {"weight_version": engine.version})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
                if engine.old and self.path in ("/begin_weight_update", "/end_weight_update"):
                    self.answer(404, {"detail": "Not Found"})
                    return
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
        if path == "/weights_checker" and body["action"] == "compare" and self.differs and self.differs.pop(0):
            return 400, {"message": "name=w differs"}
        if path == "/begin_weight_update":
            if self.open:
                return 400, {"message": "a weight-update session is already open"}
            self.open = True
        if path == "/end_weight_update":
            self.open = False
        if path == "/update_weights_from_tensor":
            self.payloads = len(body["serialized_named_tensors"])
            time.sleep(self.delay)
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
    monkeypatch.setattr(bucket, "shared_free", lambda: 60)
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


def test_an_engine_that_passes_the_comparison_goes_on_also_beside_one_that_does_not(engines):
    for engine, after in zip(engines, ["", "w"], strict=True):
        engine.version, engine.differs = "3", ["w", after]  # random numbers differ, then the weights do or not
    with pytest.raises(WeightsDiffer, match="of 1 of 2 engines"):
        check_equal(tensors().items(), [engine.url for engine in engines])
    assert [engine.version for engine in engines] == ["3", "unequal-3"]
    # a push leaves an engine alone that has the version: it must not stay paused
    assert engines[0].calls[-2:] == ["/continue_generation", "/update_weight_version"]
    assert "/continue_generation" not in engines[1].calls


@pytest.mark.parametrize("places", [1, 2])
def test_a_bucket_is_made_anew_only_when_no_engine_reads_it(engines, monkeypatch, places):
    # Two buffers, as on a GPU, in a memory that the engine reads late.
    monkeypatch.setattr(load, "_buffers", lambda device: places)
    monkeypatch.setattr(engines[0], "delay", 0.02)
    many = {str(i): torch.full((16,), float(i)) for i in range(8)}
    report = push_weights(many.items(), [e.url for e in engines], 3, 64)
    assert report.buckets == 8
    for engine in engines:
        assert {name: tensor[0].item() for name, tensor in engine.weights.items()} == {str(i): i for i in range(8)}


class Group:
    """Stands for a group of processes: loads at once into the engine whose connection it is given."""

    made: ClassVar[list["Group"]] = []
    targets: ClassVar[dict[str, FakeEngine]] = {}

    def __init__(self, engine: Any, tp_size: int, backend: str, device: torch.device) -> None:
        self.target, self.given_up, self.broken = self.targets[engine.url], False, False
        self.made.append(self)

    def send(self, buffer: torch.Tensor, slots: list[bucket.Slot], engine: Any) -> None:
        if self.broken:
            raise EngineUnavailable("lost")
        assert [slot.start for slot in slots] == [0, *(slot.end for slot in slots[:-1])]  # no gaps
        self.target.load(bucket.views(buffer, slots), None)

    def abandon(self) -> None:
        self.given_up = True


@pytest.fixture
def link(engines, monkeypatch) -> GroupLink:
    monkeypatch.setattr(group, "EngineGroup", Group)
    monkeypatch.setattr(Group, "made", [])
    monkeypatch.setattr(Group, "targets", {engine.url: engine for engine in engines})
    return GroupLink("gloo")


@pytest.mark.parametrize("bucket_bytes", [1, 64, 10**6])
def test_every_engine_gets_every_tensor_by_a_group(engines, link, bucket_bytes):
    report = push_weights(tensors().items(), [e.url for e in engines], 3, bucket_bytes, link=link)
    for engine in engines:
        assert {name: tensor.dtype for name, tensor in engine.weights.items()} == {
            name: tensor.dtype for name, tensor in tensors().items()
        }
        assert all(torch.equal(engine.weights[name], tensor) for name, tensor in tensors().items())
        assert engine.version == "3"
        assert "/update_weights_from_tensor" not in engine.calls
    # Without gaps c, of 8 bytes, would begin at 94, or at 10: it begins another bucket. Of 64: 84 | 10 | 8 | 96 bytes.
    assert report.buckets == {1: 4, 64: 4, 10**6: 2}[bucket_bytes]
    assert report.setup > 0


def test_a_group_is_kept_for_the_next_push_while_the_engine_is_the_same(engines, link):
    urls = [engine.url for engine in engines]
    push_weights(tensors().items(), urls, 1, 10**6, link=link)
    assert push_weights(tensors().items(), urls, 2, 10**6, link=link).setup == 0
    engines[1].version = "default"  # what a server says that was started anew
    assert push_weights(tensors().items(), urls, 3, 10**6, link=link).setup > 0
    first, second, third = Group.made
    assert (first.target, second.target, third.target) == (*engines, engines[1])
    assert (first.given_up, second.given_up, third.given_up) == (False, True, False)


def test_the_group_of_an_engine_that_is_gone_is_given_up_by_the_next_push(engines, link):
    push_weights(tensors().items(), [engine.url for engine in engines], 1, 10**6, link=link)
    push_weights(tensors().items(), [engines[0].url], 2, 10**6, link=link)  # the other one ended
    first, second = Group.made
    assert (first.given_up, second.given_up) == (False, True)


def test_groups_that_are_made_at_once_leave_torch_no_entry():
    class Tags(dict[str, list[Any]]):
        """Another thread enters its group while this one looks for its own."""

        def values(self) -> Any:
            for known in super().values():
                self["ptd:other"] = []
                yield known

    mine = object()
    tags = Tags({"": [mine], "ptd:mine": [mine]})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            group.c10d,
            "_world",
            SimpleNamespace(pg_map={}, pg_names={}, pg_backend_config={}, pg_to_tag={}, tags_to_pg=tags),
        )
        group._forget(mine)
    assert {tag: known for tag, known in tags.items() if tag != "ptd:other"} == {"": []}


def test_a_group_that_broke_is_replaced_by_the_push_that_follows(engines, link):
    urls = [engine.url for engine in engines]
    push_weights(tensors().items(), urls, 1, 10**6, link=link)
    Group.made[0].broken = True
    with pytest.raises(EngineUnavailable, match="lost"):
        push_weights(tensors().items(), urls, 2, 10**6, link=link)
    assert [engine.version for engine in engines] == ["updating-2", "updating-2"]
    push_weights(tensors().items(), urls, 2, 10**6, link=link)
    assert [engine.version for engine in engines] == ["2", "2"]
    assert Group.made[0].given_up
    assert len(Group.made) == 4  # the other engine reported no version that came through its group: another one too


def test_what_the_engine_says_is_told_when_both_ends_of_a_group_fail():
    ends = [Future(), Future()]
    ends[0].set_exception(RuntimeError("Connection closed by peer"))
    ends[1].set_exception(EngineRefused("engine 0 refused: no room"))
    with pytest.raises(EngineUnavailable, match="no room"):
        group.settle(ends, 1.0, "late")
    with pytest.raises(EngineUnavailable, match=r"late within 0\.01 s"):
        group.settle([Future()], 0.01, "late")
