"""Buckets: many tensors side by side in one stretch of memory that an engine reads.

Guarantee: a bucket holds the given tensors bit by bit and in order, whatever their types and layouts, and is no larger
than its limit unless a single tensor is. Handles reach any process of this machine; the sharing strategy that torch
has in this process is left as it was.

The memory is POSIX shared memory on a CPU and CUDA IPC on a GPU. It is pickled here in the form that SGLang's own
deserialiser accepts, so that a trainer never imports SGLang.
"""

import base64
import contextlib
import functools
import io
import itertools
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.multiprocessing import reductions

from data.errors import UserError

ALIGNMENT = 16
"""Bytes: a tensor starts in its bucket at a multiple, so that a view of any data type is allowed there."""
SHARED_MEMORY = "/dev/shm"
CPU_BUCKET_BYTES = 64 * 1024**2
"""Largest bucket on a CPU: touching fresh pages costs more than another request that uses the same ones again."""
DEVICE_ARGUMENT = 6
"""Place of the device among the arguments of torch's ``rebuild_cuda_tensor``."""

_sharing_strategy = threading.Lock()


class Piece(NamedTuple):
    """One tensor of a bucket, before it is copied there: ``values.reshape(shape)``.

    Attributes:
        values: its elements in their order, in any shape and layout.
    """

    name: str
    values: torch.Tensor
    shape: Sequence[int]


NamedTensors = Iterable[tuple[str, torch.Tensor] | tuple[str, torch.Tensor, Sequence[int]]]
"""Name and tensor, or name, elements and shape (``Piece``)."""


class Slot(NamedTuple):
    """Where a tensor lies in its bucket, in bytes."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    start: int
    end: int


def pieces(tensors: NamedTensors) -> Iterator[Piece]:
    """The same, lazily, all with their shapes."""
    for one in tensors:
        yield Piece(one[0], one[1], one[2] if len(one) == 3 else one[1].shape)


def buckets(tensors: NamedTensors, bucket_bytes: int, alignment: int = ALIGNMENT) -> Iterator[list[Piece]]:
    """Group tensors, in order, into lists of at most ``bucket_bytes`` (with alignment); never an empty list.

    Args:
        alignment: bytes at whose multiples a tensor starts. Where that is no place for its type, it begins a bucket.
    """
    group: list[Piece] = []
    size = 0
    for piece in pieces(tensors):
        width = _aligned(piece.values.nbytes, alignment)
        if group and (size + width > bucket_bytes or size % piece.values.element_size()):
            yield group
            group, size = [], 0
        group.append(piece)
        size += width
    if group:
        yield group


def width_of(group: Sequence[Piece], alignment: int = ALIGNMENT) -> int:
    """Bytes of a bucket."""
    return sum(_aligned(piece.values.nbytes, alignment) for piece in group)


@torch.no_grad()
def fill(buffer: torch.Tensor, group: Sequence[Piece], alignment: int = ALIGNMENT) -> list[Slot]:
    """Copy a bucket into ``buffer`` ([bytes] uint8); on CUDA it is there when the present stream has got so far.

    Tensors that lie in memory as they shall lie in the bucket go in one call: on a GPU the host's time is what counts.
    """
    slots: list[Slot] = []
    plain: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    offset = 0
    for dtype, run in itertools.groupby(group, key=lambda piece: piece.values.dtype):
        alike = list(run)
        first, sizes = offset, list[int]()
        for piece in alike:
            size = piece.values.nbytes
            slots.append(Slot(piece.name, dtype, torch.Size(piece.shape), offset, offset + size))
            padded = _aligned(size, alignment)
            sizes += [size // dtype.itemsize, (padded - size) // dtype.itemsize]
            offset += padded
        places = buffer[first:offset].view(dtype).split(sizes)[::2]
        for place, piece in zip(places, alike, strict=True):
            if piece.values.is_contiguous():
                plain[0].append(place)
                plain[1].append(piece.values.view(-1))
            else:
                place.view(piece.values.shape).copy_(piece.values)
    if plain[0]:
        torch._foreach_copy_(*plain)
    return slots


def flattened(buffer: torch.Tensor, slots: Sequence[Slot]) -> dict[str, Any]:
    """A filled bucket as SGLang's load format ``flattened_bucket`` has it."""
    entries = [
        SimpleNamespace(
            name=slot.name,
            shape=slot.shape,
            dtype=slot.dtype,
            start_idx=slot.start,
            end_idx=slot.end,
            numel=slot.end - slot.start,
        )
        for slot in slots
    ]
    return {"flattened_tensor": buffer, "metadata": entries}


def views(buffer: torch.Tensor, slots: Sequence[Slot]) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a filled bucket by name."""
    return [(slot.name, buffer[slot.start : slot.end].view(slot.dtype).view(slot.shape)) for slot in slots]


def shared_buffer(size: int, device: torch.device) -> torch.Tensor:
    """[size] uint8 that other processes can map.

    Raises:
        UserError: the shared memory is too small.
    """
    if device.type != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    free = shared_free()
    if size > free:  # writing beyond it would be a SIGBUS
        raise UserError(
            f"{SHARED_MEMORY} has {free // 1024**2} MiB free, but {size // 1024**2} MiB are needed to hand a tensor to "
            "the engines.",
            "Free some of it, or give the container more (docker run --shm-size=1g).",
        )
    with _file_system_sharing():
        return torch.empty(size, dtype=torch.uint8).share_memory_()


def shared_limit(bucket_bytes: int) -> int:
    """The bucket size on a CPU: no more than helps, nor than shared memory allows (containers often have 64 MB)."""
    return min(bucket_bytes, CPU_BUCKET_BYTES, shared_free() * 3 // 4)


def shared_free() -> int:
    """Bytes of shared memory that are free."""
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:  # no such folder: the limit is unknown
        return sys.maxsize


def pickled(bucket: Any) -> str:
    """Base64 text of a handle. Each process that opens one takes one count of it: one for each rank of each engine."""
    stream = io.BytesIO()
    with _file_system_sharing():
        _BucketPickler(stream).dump(bucket)
    return base64.b64encode(stream.getvalue()).decode()


@contextlib.contextmanager
def _file_system_sharing() -> Iterator[None]:
    """Share CPU memory by name: descriptors, the default, reach only processes that multiprocessing itself started."""
    with _sharing_strategy:
        before = torch.multiprocessing.get_sharing_strategy()
        torch.multiprocessing.set_sharing_strategy("file_system")
        try:
            yield
        finally:
            torch.multiprocessing.set_sharing_strategy(before)


class _BucketPickler(ForkingPickler):
    """torch's pickling of shared tensors, with CUDA devices named by their UUID as SGLang's deserialiser understands.

    A device's index means another device in a process that sees other devices.
    """

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_cuda:
            return NotImplemented
        rebuild, arguments = reductions.reduce_tensor(value)
        uuid = _uuid(arguments[DEVICE_ARGUMENT])
        return rebuild, (*arguments[:DEVICE_ARGUMENT], uuid, *arguments[DEVICE_ARGUMENT + 1 :])


@functools.cache
def _uuid(device: int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
