"""Carry weights from the trainer into the running engines of the same machine.

Guarantee: after ``push_weights`` every engine holds exactly the given tensors and reports the version, read back. An
engine that has the version already is left alone, so a repeated push is harmless. While an update runs the engine's
version is no number (``updating-<version>``): whoever finds it like that knows that a push broke off, and pushes again.

Tensors go in buckets of bounded size through memory that both processes map (POSIX shared memory on a CPU, CUDA IPC on
a GPU); the HTTP request carries only the handle. The bucket is pickled here in the form that SGLang's own deserialiser
accepts, so that a trainer never imports SGLang.
"""

import base64
import contextlib
import functools
import io
import itertools
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
import torch.multiprocessing
from torch.multiprocessing import reductions

from data.errors import UserError
from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineRefused, EngineUnavailable

NamedTensors = Iterable[tuple[str, torch.Tensor]]
T = TypeVar("T")

ALIGNMENT = 16
"""Bytes: a tensor starts in its bucket at a multiple, so that a view of any data type is allowed there."""
SHARED_MEMORY = "/dev/shm"
CPU_BUCKET_BYTES = 64 * 1024**2
"""Largest bucket on a CPU: touching fresh pages costs more than another request that uses the same ones again."""
DEVICE_ARGUMENT = 6
"""Place of the device among the arguments of torch's ``rebuild_cuda_tensor``."""

_sharing_strategy = threading.Lock()


class WeightsDiffer(UserError):
    """An engine's weights are not the trainer's."""


@dataclass(frozen=True)
class PushReport:
    """What a push did.

    Attributes:
        seconds: wall time.
        bytes: size of the tensors.
        buckets: number of buckets.
        engines: seconds that each engine needed for its part; 0 for one that had the version already.
    """

    seconds: float
    bytes: int
    buckets: int
    engines: dict[str, float]


def stale_engines(urls: Sequence[str], version: int | str) -> list[str]:
    """The engines that do not hold ``version``: those that ``push_weights`` would update.

    A trainer of several ranks asks first: they make the tensors together, so all must know whether any are wanted.
    """
    with _engines(urls) as engines:
        versions = _each(engines, EngineControl.weight_version)
    return [url for url, seen in zip(urls, versions, strict=True) if seen != str(version)]


def push_weights(
    tensors: NamedTensors,
    urls: Sequence[str],
    version: int | str,
    bucket_bytes: int,
    tp_size: int = 1,
    *,
    elsewhere: bool = False,
) -> PushReport:
    """Bring the engines to ``version``.

    Args:
        tensors: Hugging Face names and whole tensors, on one device; read lazily, a bucket at a time, and not at all
            when every engine has the version.
        urls: the engines.
        version: policy version, or its label (``relax_core.weights.label``).
        bucket_bytes: size of a bucket (``--update-weight-buffer-size``); a larger tensor has a bucket of its own.
        tp_size: tensor-parallel size of the engines.
        elsewhere: engines may be on other devices than the tensors.

    Raises:
        EngineUnavailable, EngineRefused: an engine failed; it reports no numeric version then.
        UserError: the shared memory is too small.
    """
    start = time.perf_counter()
    stale = stale_engines(urls, version)
    spent = dict.fromkeys(urls, 0.0)
    total = count = 0
    if stale:
        with _engines(stale) as engines:
            _each(engines, lambda engine: _suspend(engine, f"updating-{version}"))
            total, count, seconds = _load(tensors, engines, bucket_bytes, tp_size, elsewhere)
            # The version comes last: an engine that has it is ready, and is left alone for ever.
            _each(engines, EngineControl.resume)
            _each(engines, lambda engine: engine.set_weight_version(str(version)))
            spent |= dict(zip(stale, seconds, strict=True))
    return PushReport(time.perf_counter() - start, total, count, spent)


def check_equal(
    tensors: NamedTensors,
    urls: Sequence[str],
    bucket_bytes: int = 512 * 1024**2,
    tp_size: int = 1,
    *,
    elsewhere: bool = False,
) -> None:
    """Prove that the engines hold exactly these tensors (``--check-weight-update-equal``).

    Each engine copies its weights, overwrites them with random numbers (which the comparison must notice: a check that
    cannot fail proves nothing), receives all tensors anew and compares every element of every parameter with the copy,
    bit by bit, in its own data type. That is SGLang's own check, the same on a CPU and on CUDA; it costs a second push
    and, on the host, the memory of a second set of weights. What SGLang derives itself (rotary tables) is not compared.
    Afterwards an engine that passed reports its former version.

    Args:
        tensors: what was pushed.
        urls, bucket_bytes, tp_size, elsewhere: as for ``push_weights``.

    Raises:
        EngineUnavailable: the engine's comparison does not work; its weights are random then, its version ``checking``.
        WeightsDiffer: naming the engine and its parameters that differ (SGLang's names: q, k and v are one tensor).
            It then reports the version ``unequal-...``, so that nobody generates with it unknowingly.
    """
    with _engines(urls) as engines:
        versions = _each(engines, EngineControl.weight_version)
        _each(engines, lambda engine: _suspend(engine, "checking"))
        _each(engines, lambda engine: engine.check_weights("snapshot"))
        _each(engines, lambda engine: engine.check_weights("reset_tensors"))
        for engine, problem in zip(engines, _each(engines, _compare), strict=True):
            if not problem:  # random numbers passed as the weights
                raise EngineUnavailable(f"{engine.name} cannot compare weights: its check finds no difference at all.")
        _load(tensors, engines, bucket_bytes, tp_size, elsewhere)
        problems = _each(engines, _compare)
        if not any(problems):
            _each(engines, EngineControl.resume)  # before the version, as in a push
        for engine, version, problem in zip(engines, versions, problems, strict=True):
            engine.set_weight_version(f"unequal-{version}" if problem else version)
        if any(problems):
            raise WeightsDiffer(
                f"After the weight sync the weights of {sum(map(bool, problems))} of {len(engines)} engines differ "
                "from the trainer's.",
                "This is a fault of the weight conversion or of the transport: do not go on with this run.",
                "\n".join(
                    f"{engine.name}: {problem}" for engine, problem in zip(engines, problems, strict=True) if problem
                ),
            )


def buckets(tensors: NamedTensors, bucket_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Group tensors, in order, into lists of at most ``bucket_bytes`` (with alignment); never an empty list."""
    group: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in tensors:
        width = _aligned(tensor.nbytes)
        if group and size + width > bucket_bytes:
            yield group
            group, size = [], 0
        group.append((name, tensor.detach()))
        size += width
    if group:
        yield group


def _load(
    tensors: NamedTensors, engines: list[EngineControl], bucket_bytes: int, tp_size: int, elsewhere: bool
) -> tuple[int, int, list[float]]:
    """Send all tensors to all engines, in the brackets that this SGLang wants: bytes, buckets, seconds an engine."""
    total = count = 0
    seconds = [0.0] * len(engines)
    tensors = iter(tensors)
    first = next(tensors, None)
    if first is None:
        raise ValueError("no tensors to push")
    device = first[1].device
    limit = bucket_bytes if device.type != "cpu" else _shared_limit(bucket_bytes)
    buffer = torch.empty(0, dtype=torch.uint8)
    _each(engines, EngineControl.begin_weight_update)
    for group in buckets(itertools.chain([first], tensors), limit):
        width = sum(_aligned(tensor.nbytes) for _, tensor in group)
        if buffer.nbytes < width:
            del buffer  # first: two buckets at once might not fit
            # A little larger than this bucket, as the next ones are about as large: one buffer serves nearly all.
            buffer = _shared_buffer(max(width, min(limit, width + width // 8)), device)
        load_format, bucket = _fill(buffer, group, flat=tp_size == 1 and not elsewhere)
        spent = _each(engines, functools.partial(_send, bucket=bucket, load_format=load_format, ranks=tp_size))
        seconds = [a + b for a, b in zip(seconds, spent, strict=True)]
        total += sum(tensor.nbytes for _, tensor in group)
        count += 1
        del bucket, group  # the trainer's tensors and the views of the buffer, before the next ones are made
    _each(engines, EngineControl.end_weight_update)
    return total, count, seconds


def _send(engine: EngineControl, bucket: Any, load_format: str | None, ranks: int) -> float:
    """Hand one bucket to one engine; seconds."""
    start = time.perf_counter()
    # Each process that opens a handle takes one count of it: one pickle for each rank of each engine.
    engine.update_weights([_pickle(bucket) for _ in range(ranks)], load_format)
    return time.perf_counter() - start


def _suspend(engine: EngineControl, version: str) -> None:
    """Mark the weights as nobody's version, end what is in flight and forget the prefixes of the old weights."""
    engine.set_weight_version(version, abort=True)
    engine.pause("abort")
    engine.flush_cache()


def _compare(engine: EngineControl) -> str:
    """The differing parameters, or "" when all are equal."""
    try:
        engine.check_weights("compare")
    except EngineRefused as refusal:
        names = re.findall(r"^name=(\S+)", str(refusal), flags=re.MULTILINE)
        return ", ".join(names) or str(refusal)
    return ""


def _fill(buffer: torch.Tensor, group: list[tuple[str, torch.Tensor]], flat: bool) -> tuple[str | None, Any]:
    """Copy a bucket into the buffer: the load format and the object that SGLang shall load."""
    views: list[tuple[str, torch.Tensor]] = []
    entries: list[SimpleNamespace] = []
    offset = 0
    for name, tensor in group:
        end = offset + tensor.nbytes
        view = buffer[offset:end].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor)
        views.append((name, view))
        entries.append(
            SimpleNamespace(
                name=name, shape=tensor.shape, dtype=tensor.dtype, start_idx=offset, end_idx=end, numel=tensor.nbytes
            )
        )
        offset += _aligned(tensor.nbytes)
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)  # the engine reads on another stream
    if flat:
        return "flattened_bucket", {"flattened_tensor": buffer, "metadata": entries}
    return None, views  # ranks on other devices: SGLang moves named tensors to each, a flattened bucket it does not


def _shared_buffer(size: int, device: torch.device) -> torch.Tensor:
    """[size] uint8 that other processes can map."""
    if device.type != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    free = _shared_free()
    if size > free:  # writing beyond it would be a SIGBUS
        raise UserError(
            f"{SHARED_MEMORY} has {free // 1024**2} MiB free, but {size // 1024**2} MiB are needed to hand a tensor to "
            "the engines.",
            "Free some of it, or give the container more (docker run --shm-size=1g).",
        )
    with _file_system_sharing():
        return torch.empty(size, dtype=torch.uint8).share_memory_()


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
        uuid = str(torch.cuda.get_device_properties(arguments[DEVICE_ARGUMENT]).uuid)
        return rebuild, (*arguments[:DEVICE_ARGUMENT], uuid, *arguments[DEVICE_ARGUMENT + 1 :])


def _pickle(bucket: Any) -> str:
    stream = io.BytesIO()
    with _file_system_sharing():
        _BucketPickler(stream).dump(bucket)
    return base64.b64encode(stream.getvalue()).decode()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _shared_limit(bucket_bytes: int) -> int:
    """The bucket size on a CPU: no more than helps, nor than shared memory allows (containers often have 64 MB)."""
    return min(bucket_bytes, CPU_BUCKET_BYTES, _shared_free() * 3 // 4)


def _shared_free() -> int:
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:  # no such folder: the limit is unknown
        return sys.maxsize


@contextlib.contextmanager
def _engines(urls: Sequence[str]) -> Iterator[list[EngineControl]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(EngineControl(url)) for url in urls]


def _each(engines: list[EngineControl], call: Callable[[EngineControl], T]) -> list[T]:
    """Call all engines at once; results in order. All are waited for, then the first error is raised."""
    with ThreadPoolExecutor(max(1, len(engines)), thread_name_prefix="weights") as pool:
        return [future.result() for future in [pool.submit(call, engine) for engine in engines]]
