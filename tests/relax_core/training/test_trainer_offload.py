"""A trainer that leaves its device between all calls trains as one that never does, bit by bit, and empties it.

Storages are emptied and filled on a CPU as on a GPU, so the test is real without one.
"""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from tiny import make_tiny
from training_batches import write_batches

from relax_core.training import host_memory
from relax_core.training.host_memory import HostMemory, Lane
from relax_core.training.offload import Offload

CHECKS = "relax_core.training.offload_checks"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    work = tmp_path_factory.mktemp("offload")
    write_batches(str(work))
    return {"model": str(make_tiny(work / "model", tie=True)), "work": str(work)}


@pytest.mark.megatron
def test_offloading_between_all_calls_changes_no_bit_and_leaves_nothing(place: dict[str, Any]) -> None:
    found = run_ranks(1, f"{CHECKS}:everything", place)[0]
    for kind in ("float32", "sharded", "bfloat16", "bfloat16 whole"):
        assert found[kind]["same"], kind
        # states of random numbers, 5,056 bytes each, and the frequencies of the rotary embedding
        assert max(found[kind]["left"]) < 20_000, found[kind]
        assert min(found[kind]["freed"]) > 400_000


@pytest.mark.megatron
def test_several_ranks_offload_too(place: dict[str, Any]) -> None:
    assert run_ranks(2, f"{CHECKS}:two_ranks", place) == [True, True]


def test_tensors_that_share_a_storage_leave_once_and_larger_ones_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_memory, "CHUNK_BYTES", 64)
    whole, gradient, alone = torch.arange(40, dtype=torch.float32), torch.ones(5), torch.arange(3)
    parts = [whole[:10], whole[10:]]
    moved = Offload(torch.device("cpu"))
    # 40 x 4 + 3 x 8 bytes are kept, 5 x 4 are emptied; the view among the emptied ones belongs to what is kept
    assert moved.leave(parts, [alone, whole[1:2]], [gradient, whole[3:5]]) == 160 + 24 + 20
    assert [tensor.untyped_storage().nbytes() for tensor in (whole, gradient, alone)] == [0, 0, 0]
    assert moved.come_back() == 204
    moved.complete()
    assert torch.equal(parts[1], torch.arange(10.0, 40.0))
    assert torch.equal(alone, torch.arange(3))
    assert torch.equal(gradient, torch.zeros(5))


def test_host_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "CHUNK_BYTES", 8)
    host = HostMemory(pinned=False)
    first = [len(piece) for piece in host.take(20)]
    assert first == [8, 8, 4]
    places = [piece.data_ptr() for piece in host.take(4)]
    host.rewind()
    assert [piece.data_ptr() for piece in host.take(20)][2] + 4 == places[0]


def test_memory_that_was_reserved_is_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "CHUNK_BYTES", 8)
    host = HostMemory(pinned=False)
    host.reserve(20)
    host._wait()
    chunks = [chunk.data_ptr() for chunk in host._chunks]
    assert len(chunks) == 3
    assert [piece.data_ptr() for piece in host.take(24)] == chunks
    assert len(host.take(1)) == 1  # more than was reserved


def test_a_state_that_is_alone_in_its_memory_comes_back_beside_others_and_one_with_views_where_it_was() -> None:
    state = {"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.bfloat16), "c": torch.arange(6)}
    a, b, c = state.values()
    view, storage = c[2:4], c.untyped_storage()
    moved = Offload(torch.device("cpu"))
    for _ in range(2):
        # 12 + 8 + 48 bytes; then a and b at 0 and 512 of a storage of 1,024
        assert moved.leave([], state.values(), []) in (68, 1024 + 48)
        moved.come_back()
        assert (a.untyped_storage().nbytes(), b.storage_offset() * 2) == (1024, 512)
        assert a.untyped_storage()._cdata == b.untyped_storage()._cdata
        assert c.untyped_storage()._cdata == storage._cdata
        moved.complete()
        assert torch.equal(a, torch.arange(3.0))
        assert torch.equal(b, torch.ones(2, 2, dtype=torch.bfloat16))
        assert torch.equal(view, torch.tensor([2, 3]))
    moved.changed()
    a.add_(1)  # beside each other, and still apart
    c.zero_()
    moved.leave([], state.values(), [])
    moved.come_back()
    moved.complete()
    assert (a.tolist(), b.sum().item(), view.tolist()) == ([1.0, 2.0, 3.0], 4.0, [0, 0])


def test_a_way_back_that_failed_halfway_leaves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, weights, state = Offload(torch.device("cpu")), torch.ones(4), torch.arange(3.0)
    view = state[1:]
    assert moved.leave([weights], [state], []) == 16 + 12

    def fails(copies: object) -> None:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(moved._lane, "begin_back", fails)
        with pytest.raises(torch.OutOfMemoryError):
            moved.come_back()
    assert moved.away
    assert moved.leave([weights], [state], []) == 16 + 12
    assert weights.untyped_storage().nbytes() == 0
    moved.come_back()
    moved.complete()
    assert (weights.tolist(), view.tolist()) == ([1.0] * 4, [1.0, 2.0])


def test_what_is_replaced_while_it_is_there_does_not_live_on() -> None:
    moved, state = Offload(torch.device("cpu")), [torch.ones(4), torch.ones(4)]
    moved.leave([], state, [])
    moved.come_back()
    moved.complete()
    gone = weakref.ref(state[0].untyped_storage())
    moved.changed()
    state = [torch.zeros(4), torch.zeros(4)]
    gc.collect()
    assert gone() is None
    moved.leave([], state, [])
    moved.come_back()
    moved.complete()
    assert state[0].tolist() == [0.0] * 4


def test_a_copy_that_fails_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, state = Offload(torch.device("cpu")), [torch.ones(4), torch.ones(4)]

    def fails() -> torch.Tensor:
        raise MemoryError("no host memory")

    with monkeypatch.context() as broken:
        broken.setattr(moved._host, "_grow", fails)
        with pytest.raises(MemoryError):
            moved.leave([], state, [])
    assert state[0].tolist() == [1.0] * 4
    assert not moved.away
    assert moved.leave([], state, []) == 32
    moved.come_back()
    with monkeypatch.context() as broken:  # the way back breaks off at the last moment
        broken.setattr(host_memory, "_now", lambda copies: fails())
        with pytest.raises(MemoryError):
            moved.complete()
    moved.complete()
    assert state[1].tolist() == [1.0] * 4


class Streams:
    """In place of CUDA's streams and events: what is done, in order, by the stream that was current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.now = ["main"]
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.of("lane"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.of(self.now[-1]))
        monkeypatch.setattr(torch.cuda, "stream", self.inside)
        monkeypatch.setattr(
            torch.cuda,
            "Event",
            lambda enable_timing: SimpleNamespace(
                record=lambda: self.done.append(f"{self.now[-1]} records"), elapsed_time=lambda end: 250.0
            ),
        )

    def of(self, name: str) -> Any:
        def wait_stream(other: Any) -> None:
            self.done.append(f"{name} waits for {other.name}")

        def synchronize() -> None:
            self.done.append(f"the host waits for {name}")

        return SimpleNamespace(name=name, device="cuda:0", wait_stream=wait_stream, synchronize=synchronize)

    @contextmanager
    def inside(self, stream: Any) -> Iterator[None]:
        self.now.append(stream.name)
        yield
        self.now.pop()


class Place(list[int]):
    """A tensor that says when something is copied into it."""

    def __init__(self, streams: Streams, size: int) -> None:
        super().__init__([0] * size)
        self.streams = streams

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> None:
        self.streams.done.append(f"{self.streams.now[-1]} copies {len(source)}{'' if non_blocking else ', waiting'}")


def test_on_a_gpu_copies_run_beside_what_is_computed_and_behind_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    lane, source = Lane(torch.device("cuda")), torch.zeros(3, dtype=torch.uint8)
    place: Any = Place(streams, 3)
    lane.begin_out([(place, source)])
    copied = ["lane waits for main", "lane records", "lane copies 3", "lane records"]
    assert streams.done == copied
    streams.done.clear()
    lane.wait()
    assert streams.done == ["main waits for lane", "the host waits for lane"]
    assert (lane.out.bytes, lane.out.seconds) == (3, 0.25)
    streams.done.clear()
    lane.begin_back([(place, source)])
    assert streams.done == copied
    streams.done.clear()
    lane.join()
    assert streams.done == ["main waits for lane"]  # and the host goes on
    assert lane.back.seconds == 0  # not known yet
    lane.wait()
    assert lane.back.seconds == 0.25
