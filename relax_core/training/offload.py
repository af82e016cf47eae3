"""A trainer's tensors in host memory while others use its device.

Guarantee: ``leave`` frees the device memory of weights and optimiser state, whose content is copied, and of gradients,
whose content nobody needs between two updates; ``come_back`` and ``complete`` give every tensor what it held, bit by
bit, and zeros to gradients. All calls may be repeated, also after one that failed: then nothing is lost.

Two things make it quick. The optimiser's state, most of the bytes, moves beside what is computed: ``keep`` begins to
copy when an update is made, ``come_back`` brings the weights and only begins with the state, which ``complete`` waits
for. And few allocations carry it: tensors of the state that share their memory with nobody come back side by side in
one storage, since a device takes and gives back a piece of memory as slowly as a hundred of them. All other storages
are emptied and filled again, so that tensors and their views stay valid.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from relax_core.training.host_memory import Copy, HostMemory, Lane

ALIGNMENT = 512
"""Bytes: where a tensor begins in a storage that it shares, as torch aligns those of its own."""

_DEPTH = 4
"""How deep an optimiser's lists and dictionaries of tensors are searched."""


@dataclass(eq=False)
class _Kept:
    """A storage whose content is wanted again.

    Attributes:
        tensor: which begins with it.
        pieces: of its content in host memory, each with the byte at which it begins; none where it was not copied.
    """

    storage: torch.UntypedStorage
    size: int
    tensor: Tensor
    pieces: list[tuple[int, Tensor]] = field(default_factory=list)

    @property
    def copies(self) -> list[Copy]:
        """From the host; the device's side is the first of each pair."""
        content = _bytes(self.storage, self.size)
        return [(content[start : start + len(piece)], piece) for start, piece in self.pieces]


class Offload:
    """What of a trainer is in host memory.

    Args:
        device: of the tensors. On a CPU nothing is gained, but all is done in the same way.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = HostMemory(pinned=device.type == "cuda")
        self._lane = Lane(device)
        self._copied: dict[int, _Kept] = {}
        self._weights: list[_Kept] = []
        self._state: list[_Kept] = []
        self._emptied: list[_Kept] = []
        self._spent: dict[str, float] = {}
        self.away = self.used = False

    def reserve(self, size: int) -> None:
        """Begin to take as much host memory, in the background: it costs seconds, and the first turn would wait."""
        self._host.reserve(size)

    @torch.no_grad()
    def keep(self, weights: Iterable[Tensor], state: Iterable[Tensor]) -> None:
        """Begin to copy what is computed so far to the host, but for what is there already. ``changed`` takes it back.

        Args:
            weights: tensors, or views of them, whose content is needed again.
            state: of the optimiser; a storage that is in both is one of the weights.
        """
        if self.away:
            return
        self.complete()
        self._weights = self._storages(weights)
        self._state = self._storages(state, besides=self._weights)
        if not self._copied:
            self._host.rewind()
        known = self._copied
        new = [one for one in self._weights + self._state if one.storage._cdata not in known]
        for one in new:
            start = 0
            for piece in self._host.take(one.size):
                one.pieces.append((start, piece))
                start += len(piece)
        if new:
            self._lane.begin_out([(piece, own) for one in new for own, piece in one.copies])
        self._copied |= {one.storage._cdata: one for one in new}
        self._weights, self._state = (
            [self._copied[one.storage._cdata] for one in group] for group in (self._weights, self._state)
        )

    def changed(self) -> None:
        """Weights or state are about to change: what ``keep`` copied is no longer what they hold."""
        if not self.away:
            self._copied, self._weights, self._state = {}, [], []

    @torch.no_grad()
    def leave(self, weights: Iterable[Tensor], state: Iterable[Tensor], emptied: Iterable[Tensor]) -> int:
        """Free the device memory.

        Args:
            weights, state: as for ``keep``.
            emptied: tensors that are zero afterwards; a storage that is also kept is kept.

        Returns:
            Bytes that were freed; 0 where all was away.
        """
        begin = time.perf_counter()
        if not self.away:
            self.keep(weights, state)
            self._emptied = self._storages(emptied, besides=self._weights + self._state)
        there = [one for one in self._weights + self._state + self._emptied if one.storage.nbytes()]
        if not there:
            return 0
        self._lane.wait()  # for the copies, before what they read is gone
        copied = time.perf_counter()
        self.away = self.used = True
        for one in there:
            one.storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.ipc_collect()  # buckets that engines have read
            torch.cuda.empty_cache()  # to the device, where another process can take it
        self._spent |= {"wait": copied - begin, "free": time.perf_counter() - copied}
        return sum(one.size for one in there)

    @torch.no_grad()
    def come_back(self) -> int:
        """Take the device memory again, and the weights; the state is on its way until ``complete``.

        Returns:
            Bytes that were taken; 0 where nothing was away.
        """
        if not self.away:
            return 0
        begin = time.perf_counter()
        self._side_by_side()
        every = [*self._weights, *self._emptied, *self._state]
        for one in every:
            if not one.storage.nbytes():  # else it is there already, and would be allocated once more
                one.storage.resize_(one.size)
        for one in self._weights:
            for own, piece in one.copies:
                own.copy_(piece, non_blocking=True)
        for one in self._emptied:
            _bytes(one.storage, one.size).zero_()
        self._lane.begin_back([copy for one in self._state for copy in one.copies])
        self._weights, self._state, self._emptied = [], [], []  # what is replaced meanwhile must not live on here
        self.away = False
        self._spent["take"] = time.perf_counter() - begin
        return sum(one.size for one in every)

    def complete(self) -> None:
        """The state is there for what is computed from now on. Before anything reads or changes it."""
        if not self.away:
            self._lane.join()

    @property
    def report(self) -> dict[str, float]:
        """Of the last ways: bytes and seconds of the copies ``out`` and ``back`` on their stream, and how long the host
        was held up: ``wait`` for the copies, ``free`` and ``take`` the memory."""
        out, back = self._lane.out, self._lane.back
        sizes = {"out_bytes": out.bytes, "out": out.seconds, "back_bytes": back.bytes, "back": back.seconds}
        return {**sizes, **self._spent}

    def _storages(self, tensors: Iterable[Tensor], besides: Iterable[_Kept] = ()) -> list[_Kept]:
        """Each storage on the device once, but for some."""
        passed = {one.storage._cdata for one in besides}
        found: dict[int, _Kept] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if tensor.device.type == self._device.type and storage.nbytes() and storage._cdata not in passed:
                found.setdefault(storage._cdata, _Kept(storage, storage.nbytes(), tensor))
        return list(found.values())

    def _side_by_side(self) -> None:
        """Give one storage to all tensors of the state that are alone in theirs. The tensors stay the same objects."""
        alone = [one for one in self._state if _alone(one)]
        if len(alone) < 2:
            return
        starts, total = [], 0
        for one in alone:
            starts.append(total)
            total += -(-one.size // ALIGNMENT) * ALIGNMENT
        whole = torch.empty(total, dtype=torch.uint8, device=self._device)
        new = _Kept(whole.untyped_storage(), total, whole)
        for one, start in zip(alone, starts, strict=True):
            place = whole[start : start + one.size]
            one.tensor.data = place.view(one.tensor.dtype).view(one.tensor.shape)
            new.pieces += [(start + offset, piece) for offset, piece in one.pieces]
            del self._copied[one.storage._cdata]
        moved = set(map(id, alone))
        self._state = [new, *(one for one in self._state if id(one) not in moved)]
        self._copied[new.storage._cdata] = new


def state_tensors(optimizer: Any) -> Iterator[Tensor]:
    """The state of Megatron's optimiser: main weights and Adam's averages, some of them views of the model's."""
    for part in optimizer.chained_optimizers:
        yield from _tensors(vars(part), _DEPTH)
        if part.optimizer is not None:
            yield from _tensors([group["params"] for group in part.optimizer.param_groups], _DEPTH)
            yield from _tensors(part.optimizer.state, _DEPTH)


def weight_tensors(model: Any) -> Iterator[Tensor]:
    """Parameters and buffers of a model in Megatron's data-parallel wrapper."""
    inner = model.module
    yield from inner.parameters()
    yield from inner.buffers()
    for buffer in _buffers(model):
        if buffer.param_data is not None:
            yield buffer.param_data


def expected_bytes(model: Any, optimizer: Any) -> int:
    """Of weights and state once Adam has its averages, two numbers of float32 for each that is trained."""
    trained = {id(one): one for part in optimizer.chained_optimizers for one in _trained(part)}
    there = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in weight_tensors(model)}
    there |= {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in trained.values()}
    return sum(there.values()) + sum(8 * one.numel() for one in trained.values())


def _trained(part: Any) -> list[Tensor]:
    groups = [] if part.optimizer is None else part.optimizer.param_groups
    return [one for group in groups for one in group["params"]]


def gradient_tensors(model: Any) -> Iterator[Tensor]:
    """The buffers in which gradients are summed."""
    return (buffer.grad_data for buffer in _buffers(model) if buffer.grad_data is not None)


def _buffers(model: Any) -> list[Any]:
    return [*model.buffers, *model.expert_parallel_buffers]


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    """The tensors in lists and dictionaries. Other objects are not looked into."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, depth - 1)


def _bytes(storage: torch.UntypedStorage, size: int) -> Tensor:
    """[size] uint8 view of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,), (1,))


def _alone(one: _Kept) -> bool:
    """Whether a tensor and nothing else has its storage: no view, no other tensor, no gradient of it.

    torch counts who holds a storage: here the tensor, and what stands for the storage in Python.
    """
    count = getattr(torch._C, "_storage_Use_Count", None)
    tensor = one.tensor
    own = tensor.untyped_storage()._cdata == one.storage._cdata and tensor.numel() * tensor.element_size() == one.size
    return bool(own and tensor.is_contiguous() and count is not None and count(one.storage._cdata) == 2)
