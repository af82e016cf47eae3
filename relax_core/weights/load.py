"""The tensors of an update on their way to several engines at once.

Guarantee: an engine gets buckets one after the other, each when it is filled, and a buffer is filled again when no
engine reads it any more. Nothing is in flight when ``connected`` is left, by an error or without.

Engines are prepared while the first bucket is made. On a GPU there are two buffers: the next bucket is made while
engines load the present one. On a CPU, where both would work on the same cores, there is one.
"""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from relax_core.engines.control import EngineControl
from relax_core.weights.bucket import (
    ALIGNMENT,
    NamedTensors,
    Slot,
    buckets,
    fill,
    flattened,
    pickled,
    pieces,
    shared_buffer,
    shared_limit,
    views,
    width_of,
)
from relax_core.weights.group import EngineGroup, GroupLink, in_thread

T = TypeVar("T")


@dataclass(frozen=True)
class Route:
    """How tensors get there.

    Attributes:
        bucket_bytes: size of a bucket; a larger tensor has a bucket of its own.
        tp_size: ranks of an engine.
        elsewhere: engines may be on other devices than the tensors.
        link: broadcast in its groups, rather than through memory that is mapped.
        seen: the version that each engine reported before the update.
    """

    bucket_bytes: int
    tp_size: int
    elsewhere: bool
    link: GroupLink | None
    seen: Mapping[str, str]


@dataclass(frozen=True)
class Loaded:
    """What was sent; ``engines`` in their order."""

    bytes: int
    buckets: int
    engines: list[float]
    setup: float


class _Mapped:
    """Buckets go as memory that the engines map: shared memory on a CPU, CUDA IPC on a GPU."""

    alignment, setup = ALIGNMENT, 0.0

    def __init__(self, route: Route, device: torch.device) -> None:
        self._route, self._device = route, device
        self.limit = route.bucket_bytes if device.type != "cpu" else shared_limit(route.bucket_bytes)

    def open(self, engine: EngineControl) -> None:
        """Nothing: a handle is all that an engine needs."""

    def buffer(self, size: int) -> torch.Tensor:
        """[size] uint8."""
        return shared_buffer(size, self._device)

    def send(self, engine: EngineControl, buffer: torch.Tensor, slots: list[Slot]) -> None:
        """Have an engine load a bucket, which is filled."""
        ranks = self._route.tp_size
        flat = ranks == 1 and not self._route.elsewhere
        # Ranks on other devices: SGLang moves named tensors to each, a flattened bucket it does not.
        bucket = flattened(buffer, slots) if flat else views(buffer, slots)
        # Each process that opens a handle takes one count of it: one pickle for each.
        engine.update_weights([pickled(bucket) for _ in range(ranks)], "flattened_bucket" if flat else None)


class _Broadcast:
    """Buckets are broadcast to the engines, each in a group of its own."""

    alignment = 1  # SGLang puts one tensor right behind the other

    def __init__(self, route: Route, link: GroupLink, device: torch.device) -> None:
        self._route, self._link, self._device = route, link, device
        self._groups: dict[str, EngineGroup] = {}
        self.limit, self.setup = route.bucket_bytes, 0.0

    def open(self, engine: EngineControl) -> None:
        """Make the engine's group, where there is none that can be used."""
        seen = self._route.seen[engine.url]
        group, seconds = self._link.ready(engine, seen, self._route.tp_size, self._device)
        self._groups[engine.url], self.setup = group, max(self.setup, seconds)

    def buffer(self, size: int) -> torch.Tensor:
        """[size] uint8."""
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def send(self, engine: EngineControl, buffer: torch.Tensor, slots: list[Slot]) -> None:
        """Have an engine load a bucket, which is filled."""
        try:
            self._groups[engine.url].send(buffer, slots, engine)
        except BaseException:
            self._link.lost(engine.url)
            raise


def load(
    tensors: NamedTensors,
    engines: "Engines",
    route: Route,
    prepare: Callable[[EngineControl], None] = lambda engine: None,
) -> Loaded:
    """Send all tensors to all engines, in the brackets that this SGLang wants.

    Args:
        prepare: what is done with each engine before it gets any.

    Raises:
        EngineUnavailable, EngineRefused: an engine failed.
        UserError: the shared memory is too small.
    """
    stream = pieces(tensors)
    first = next(stream, None)
    if first is None:
        raise ValueError("no tensors to push")
    device = first.values.device
    carrier = _Mapped(route, device) if route.link is None else _Broadcast(route, route.link, device)
    bracketed = set[str]()

    def open_update(engine: EngineControl) -> None:
        prepare(engine)
        carrier.open(engine)
        if engine.begin_weight_update():
            bracketed.add(engine.url)

    def close_update(engine: EngineControl) -> None:
        if engine.url in bracketed:
            engine.end_weight_update()

    def send(buffer: torch.Tensor, slots: list[Slot]) -> list[float]:
        return engines.each(functools.partial(_timed, functools.partial(carrier.send, buffer=buffer, slots=slots)))

    before: Future[Any] = engines.start(lambda: engines.each(open_update))
    buffers = [torch.empty(0, dtype=torch.uint8)] * _buffers(device)
    sent: list[Future[list[float]]] = []
    total = 0
    for group in buckets(itertools.chain([first], stream), carrier.limit, carrier.alignment):
        if len(buffers) == 1:
            before.result()  # the engines read the only buffer
        place, width = len(sent) % len(buffers), width_of(group, carrier.alignment)
        if buffers[place].nbytes < width:
            buffers[place] = torch.empty(0, dtype=torch.uint8)  # first: old and new at once might not fit
            # A little larger than this bucket, as the next ones are about as large: it serves nearly all.
            buffers[place] = carrier.buffer(max(width, min(carrier.limit, width + width // 8)))
        slots = fill(buffers[place], group, carrier.alignment)
        total += sum(piece.values.nbytes for piece in group)
        del group  # the trainer's tensors, before the next ones are made
        _arrive(device)
        before.result()
        before = engines.start(functools.partial(send, buffers[place], slots))
        sent.append(before)
    before.result()
    engines.each(close_update)
    seconds = [sum(bucket.result()[i] for bucket in sent) for i in range(len(engines.all))]
    return Loaded(total, len(sent), seconds, carrier.setup)


def _buffers(device: torch.device) -> int:
    """Of how many buckets there are at a time."""
    return 1 if device.type == "cpu" else 2


def _timed(call: Callable[[EngineControl], Any], engine: EngineControl) -> float:
    start = time.perf_counter()
    call(engine)
    return time.perf_counter() - start


def _arrive(device: torch.device) -> None:
    """Wait until a bucket is filled: another process, or another stream, reads it."""
    if device.type == "cuda":
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        event.synchronize()


class Engines:
    """Open connections to engines, and the calls that go to all of them."""

    def __init__(self, engines: list[EngineControl]) -> None:
        self.all = engines
        self._pool = ThreadPoolExecutor(max(1, len(engines)), thread_name_prefix="weights")
        self._started: list[Future[Any]] = []

    def each(self, call: Callable[[EngineControl], T]) -> list[T]:
        """Call all engines at once; results in order. All are waited for, then the first error is raised."""
        if len(self.all) == 1:
            return [call(self.all[0])]
        futures = [self._pool.submit(call, engine) for engine in self.all]
        wait(futures)
        return [future.result() for future in futures]

    def start(self, call: Callable[[], T]) -> "Future[T]":
        """Call in the background."""
        future: Future[T] = in_thread(call)
        self._started.append(future)
        return future

    def close(self) -> None:
        """Wait for what was started: nothing is in flight afterwards, and no engine reads a buffer."""
        wait(self._started)
        self._pool.shutdown()


@contextlib.contextmanager
def connected(urls: Sequence[str]) -> Iterator[Engines]:
    """Connections to the engines at these addresses."""
    with contextlib.ExitStack() as stack:
        engines = Engines([stack.enter_context(EngineControl(url)) for url in urls])
        stack.callback(engines.close)  # before the connections are
        yield engines
