"""A trainer's tensors in host memory while others use its device.

Guarantee: ``leave`` frees the device memory of weights and optimiser state, whose content it copies, and of gradients,
whose content nobody needs between two updates; ``come_back`` gives every tensor what it held, bit by bit, and zeros to
gradients. Tensors and their views stay the same objects, since it is their storages that are emptied and filled again.
Both may be repeated, also after one that failed: then nothing is lost.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 28
"""Host memory is taken in pieces of this size: torch rounds pinned memory up to a power of two, which this is."""

_DEPTH = 4
"""How deep an optimiser's lists and dictionaries of tensors are searched."""


class HostMemory:
    """Host memory that grows and is used again from its beginning."""

    def __init__(self, pinned: bool) -> None:
        self._chunks: list[Tensor] = []
        self._pinned, self._used = pinned, 0

    def rewind(self) -> None:
        """The next ``take`` is the first one again."""
        self._used = 0

    def take(self, size: int) -> Iterator[Tensor]:
        """[bytes] uint8 pieces that are ``size`` together."""
        while size:
            number, start = divmod(self._used, CHUNK_BYTES)
            if number == len(self._chunks):
                self._chunks.append(torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=self._pinned))
            piece = self._chunks[number][start : start + min(size, CHUNK_BYTES - start)]
            self._used += len(piece)
            size -= len(piece)
            yield piece


class Offload:
    """What of a trainer is in host memory.

    Args:
        device: of the tensors. On a CPU nothing is gained, but all is done in the same way.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = HostMemory(pinned=device.type == "cuda")
        self._kept: list[tuple[torch.UntypedStorage, int]] = []
        self._emptied: list[tuple[torch.UntypedStorage, int]] = []
        self.away = False

    @torch.no_grad()
    def leave(self, kept: Iterable[Tensor], emptied: Iterable[Tensor]) -> int:
        """Free the device memory.

        Args:
            kept: tensors, or views of them, whose content is needed again.
            emptied: tensors that are zero afterwards; a storage that is in both is kept.

        Returns:
            Bytes that were freed; 0 where all was away.
        """
        if self.away:
            return 0
        first = self._storages(kept)
        known = {storage._cdata for storage, _ in first}
        others = [entry for entry in self._storages(emptied) if entry[0]._cdata not in known]
        self._host.rewind()
        for storage, size in first:
            _through(storage, size, self._host, fill=False)
        self._wait()  # for the copies, before what they read is gone
        self._kept, self._emptied, self.away = first, others, True
        for storage, _ in first + others:
            storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.ipc_collect()  # buckets that engines have read
            torch.cuda.empty_cache()  # to the device, where another process can take it
        return sum(size for _, size in first + others)

    @torch.no_grad()
    def come_back(self) -> int:
        """Take the device memory again; bytes of it, 0 where nothing was away."""
        if not self.away:
            return 0
        self._host.rewind()
        for storage, size in self._kept:
            storage.resize_(size)
            _through(storage, size, self._host, fill=True)
        for storage, size in self._emptied:
            storage.resize_(size)
            _bytes(storage, size).zero_()
        self._wait()
        freed = sum(size for _, size in self._kept + self._emptied)
        self._kept, self._emptied, self.away = [], [], False
        return freed

    def _storages(self, tensors: Iterable[Tensor]) -> list[tuple[torch.UntypedStorage, int]]:
        """Each storage on the device once, with its bytes."""
        found: dict[int, tuple[torch.UntypedStorage, int]] = {}
        for tensor in tensors:
            if tensor.device.type == self._device.type and (size := tensor.untyped_storage().nbytes()):
                storage = tensor.untyped_storage()
                found.setdefault(storage._cdata, (storage, size))
        return list(found.values())

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def state_tensors(model: Any, optimizer: Any) -> Iterator[Tensor]:
    """Weights and optimiser state: parameters, buffers of modules, main weights and Adam's averages.

    Args:
        model: in Megatron's data-parallel wrapper.
        optimizer: Megatron's.
    """
    inner = model.module
    yield from (parameter.data for parameter in inner.parameters())
    yield from inner.buffers()
    for buffer in _buffers(model):
        if buffer.param_data is not None:
            yield buffer.param_data
    for part in optimizer.chained_optimizers:
        yield from _tensors(vars(part), _DEPTH)
        if part.optimizer is not None:
            yield from _tensors([group["params"] for group in part.optimizer.param_groups], _DEPTH)
            yield from _tensors(part.optimizer.state, _DEPTH)


def gradient_tensors(model: Any) -> Iterator[Tensor]:
    """The buffers in which gradients are summed."""
    return (buffer.grad_data for buffer in _buffers(model) if buffer.grad_data is not None)


def _buffers(model: Any) -> list[Any]:
    return [*model.buffers, *model.expert_parallel_buffers]


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    """The tensors in lists and dictionaries. Other objects are not looked into."""
    if isinstance(value, Tensor):
        yield value.data
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, depth - 1)


def _bytes(storage: torch.UntypedStorage, size: int) -> Tensor:
    """[size] uint8 view of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,), (1,))


def _through(storage: torch.UntypedStorage, size: int, host: HostMemory, fill: bool) -> None:
    """Copy a storage to the host memory behind what was copied before, or fill it from there."""
    start, content = 0, _bytes(storage, size)
    for piece in host.take(size):
        own = content[start : start + len(piece)]
        to, source = (own, piece) if fill else (piece, own)
        to.copy_(source, non_blocking=True)
        start += len(piece)
