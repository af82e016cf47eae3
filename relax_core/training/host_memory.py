"""Host memory for a trainer's tensors, and the way there and back beside what is computed.

Guarantee: host memory is taken once and used again; what ``reserve`` takes in the background is waited for before it is
used. Copies of a ``Lane`` come in the order in which they are begun. On a GPU they run on a stream of their own; on a
CPU they are made when a mistake would show: those to the host at once, those from there at the last moment, over what
is no number.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 28
"""Host memory is taken in pieces of this size: torch rounds pinned memory up to a power of two, which this is."""

Copy = tuple[Tensor, Tensor]
"""Where to, and from where: [bytes] uint8 both."""


class HostMemory:
    """Host memory that grows and is used again from its beginning.

    Args:
        pinned: fit for copies beside the computation; taking such memory costs seconds.
    """

    def __init__(self, pinned: bool) -> None:
        self._chunks: list[Tensor] = []
        self._pinned, self._used = pinned, 0
        self._reserving: threading.Thread | None = None

    def reserve(self, size: int) -> None:
        """Begin to take ``size`` bytes in the background. Where they cannot be had, ``take`` will say so."""
        wanted = -(-size // CHUNK_BYTES)

        def fill() -> None:
            try:
                while len(self._chunks) < wanted:
                    self._grow()
            except (RuntimeError, MemoryError):
                return

        self._wait()
        self._reserving = threading.Thread(target=fill, name="host memory", daemon=True)
        self._reserving.start()

    def rewind(self) -> None:
        """The next ``take`` is the first one again."""
        self._used = 0

    def take(self, size: int) -> list[Tensor]:
        """[bytes] uint8 pieces that are ``size`` together."""
        self._wait()
        pieces = []
        while size:
            number, start = divmod(self._used, CHUNK_BYTES)
            if number == len(self._chunks):
                self._grow()
            pieces.append(self._chunks[number][start : start + min(size, CHUNK_BYTES - start)])
            self._used += len(pieces[-1])
            size -= len(pieces[-1])
        return pieces

    def _grow(self) -> None:
        self._chunks.append(torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=self._pinned))

    def _wait(self) -> None:
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None


@dataclass
class Timed:
    """How long copies took on their stream.

    Attributes:
        bytes: of all of them.
        seconds: 0 until it is known.
    """

    bytes: int = 0
    seconds: float = 0.0


class Lane:
    """Copies beside the computation of one device."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ends: list[tuple[Timed, torch.cuda.Event, torch.cuda.Event]] = []
        self._late: list[Copy] = []
        self.out, self.back = Timed(), Timed()

    def begin_out(self, copies: Sequence[Copy]) -> None:
        """Begin copies to the host of what is computed so far. Nobody may change it until ``wait``."""
        self.out = Timed(sum(len(to) for to, _ in copies))
        self._begin(self.out, copies)

    def begin_back(self, copies: Sequence[Copy]) -> None:
        """Begin copies from the host. Nobody may read or write them until ``join``."""
        self.back = Timed(sum(len(to) for to, _ in copies))
        if self._stream is not None:
            self._begin(self.back, copies)
            return
        for to, _ in copies:
            to.fill_(255)  # no number, as float32 and in both half formats
        self._late += copies

    def join(self) -> None:
        """What is computed from now on finds all copies made. The host goes on."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            return
        if self._late:
            self.back.seconds = _now(self._late)
            self._late = []

    def wait(self) -> None:
        """Until all copies are made."""
        self.join()
        if self._stream is not None:
            self._stream.synchronize()
            for timed, start, end in self._ends:
                timed.seconds = start.elapsed_time(end) / 1e3
            self._ends = []

    def _begin(self, timed: Timed, copies: Sequence[Copy]) -> None:
        if self._stream is None:
            timed.seconds = _now(copies)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            start.record()
            for to, source in copies:
                to.copy_(source, non_blocking=True)
            end.record()
        self._ends.append((timed, start, end))


def _now(copies: Sequence[Copy]) -> float:
    """Make copies; seconds."""
    begin = time.perf_counter()
    for to, source in copies:
        to.copy_(source)
    return time.perf_counter() - begin
