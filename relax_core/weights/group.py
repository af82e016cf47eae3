"""Process groups of the trainer's sending rank and the ranks of one engine each, for engines on other devices.

Guarantee: what is broadcast reaches the engine, or an error is raised and the group is never used again; another
engine's group is not touched by that. A group is used only while the engine reports the version which came last
through it: a process that was started anew in its place reports another one and is not in the group, and SGLang 0.5.17
would die of a broadcast in a group that it does not know.

SGLang joins by ``/init_weights_update_group``; the trainer's end is made by the function of torch that SGLang uses, so
that both find each other in any version of torch.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.engines.meeting import LOOPBACK, store_at
from relax_core.weights.bucket import Slot

MEETING_SECONDS = 120.0
"""Until all engines must have joined."""
BUCKET_SECONDS = 120.0
"""Until a bucket must be broadcast and loaded."""
GRACE_SECONDS = 1.0
"""Between the failure of one end and that of the other."""
OPERATION_SECONDS = 600.0
"""Of an operation of torch: longer than the above, which end it in an orderly way."""


class EngineGroup:
    """The group of one engine: rank 0 is this process, the engine's ranks follow.

    Args:
        engine: a server on this machine.
        tp_size: its ranks.
        backend: ``nccl`` or ``gloo``.
        device: of the tensors that are sent.

    Raises:
        EngineUnavailable: it did not join.
    """

    def __init__(self, engine: EngineControl, tp_size: int, backend: str, device: torch.device) -> None:
        self.name = f"relax-{secrets.token_hex(8)}"  # its own: the engine may still have an older one
        self.engine, self._backend, self._device, self._ranks = engine.name, backend, device, 1 + tp_size
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._store = store_at(LOOPBACK, 0, None, True, timedelta(seconds=MEETING_SECONDS))
        address = (LOOPBACK, int(self._store.port))
        here = in_thread(self._join)
        there = in_thread(lambda: engine.join_group(self.name, backend, address, 1, self._ranks))
        settle([here, there], MEETING_SECONDS, f"{engine.name} did not join the group of processes")
        self._group = here.result()

    def send(self, buffer: Tensor, slots: Sequence[Slot], engine: EngineControl) -> None:
        """Have the engine load a bucket without gaps.

        Args:
            buffer: [bytes] uint8, filled: no stream is waited for.
            engine: the same, by a connection that is open.

        Raises:
            EngineUnavailable: it did not; the group is of no use any more.
        """
        tensors = [(slot.name, str(slot.dtype).removeprefix("torch."), slot.shape) for slot in slots]
        there = in_thread(lambda: engine.receive_weights(self.name, tensors))
        here = in_thread(lambda: self._broadcast(buffer[: slots[-1].end]))
        settle([here, there], BUCKET_SECONDS, f"{self.engine} did not load them")

    def abandon(self) -> None:
        """Give up this end, also in the middle of a broadcast. The engine keeps its own, idle, until it ends: taking it
        down there would wait for this one."""
        in_thread(self._abort)  # it may take its time

    def _join(self) -> Any:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        group, _ = c10d._new_process_group_helper(
            self._ranks,
            0,
            [],
            c10d.Backend(self._backend),
            c10d.PrefixStore(self.name, self._store),
            group_name=cast(Any, self.name),  # torch's own kind of text, which not all versions have
            timeout=timedelta(seconds=OPERATION_SECONDS if self._backend == "nccl" else MEETING_SECONDS),
        )
        _forget(group)
        return group

    def _broadcast(self, buffer: Tensor) -> None:
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        if self._stream is None:
            self._group.broadcast([buffer], options).wait()
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):  # what comes next need not wait for it
            self._group.broadcast([buffer], options).wait()
            self._stream.synchronize()

    def _abort(self) -> None:
        with contextlib.suppress(Exception):  # gloo cannot: its operation ends by itself
            self._group.abort()


class GroupLink:
    """The groups of a trainer, kept from push to push.

    Args:
        backend: ``nccl`` or ``gloo``.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._known: dict[str, tuple[EngineGroup, tuple[Any, ...]]] = {}
        self._labels: dict[str, str] = {}

    def ready(self, engine: EngineControl, seen: str, tp_size: int, device: torch.device) -> tuple[EngineGroup, float]:
        """The engine's group, and the seconds that it took to make it.

        Args:
            seen: the version that the engine reported before this push.

        Raises:
            EngineUnavailable: it did not join.
        """
        group, kind = self._known.get(engine.url, (None, None))
        if group is not None and kind == (tp_size, device) and self._labels.get(engine.url) == seen:
            return group, 0.0
        self.lost(engine.url)
        start = time.perf_counter()
        group = EngineGroup(engine, tp_size, self.backend, device)
        self._known[engine.url] = (group, (tp_size, device))
        return group, time.perf_counter() - start

    def arrived(self, url: str, label: str) -> None:
        """The engine has got this version, and reports it."""
        self._labels[url] = label

    def keep(self, urls: Collection[str]) -> None:
        """Give up the groups of engines that are not among these: they are gone, and a group holds device memory."""
        for url in [url for url in list(self._known) if url not in urls]:
            self.lost(url)

    def lost(self, url: str) -> None:
        """Use the engine's present group no more."""
        self._labels.pop(url, None)
        group, _ = self._known.pop(url, (None, None))
        if group is not None:
            group.abandon()


def settle(futures: Sequence["Future[Any]"], seconds: float, late: str) -> None:
    """Wait until all are done.

    Raises:
        EngineUnavailable: one failed, for whatever reason, or ``late``; the others are not waited for then.
    """
    done, waiting = wait(futures, seconds, FIRST_EXCEPTION)
    if waiting and len(done) < len(futures):
        done |= wait(waiting, GRACE_SECONDS).done  # what the engine says tells more than how this end took it
    errors = [error for future in done if (error := future.exception()) is not None]
    errors.sort(key=lambda error: not isinstance(error, EngineUnavailable | EngineRefused))
    if errors:
        # also a refusal: an engine refuses what does not come through its group, and another group mends that
        raise EngineUnavailable(f"Weights could not be broadcast: {errors[0]}") from errors[0]
    if waiting:
        raise EngineUnavailable(f"Weights could not be broadcast: {late} within {seconds:g} s.")


def in_thread(call: Callable[[], Any]) -> "Future[Any]":
    """The outcome of a call in a thread of its own that nobody waits for at the end of the process."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weights-group", daemon=True).start()
    return future


def _forget(group: Any) -> None:
    """Take the group out of torch's list of all groups, whose common end would wait for engines."""
    world = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table.pop(group, None)
    for tag, known in list(world.tags_to_pg.items()):  # a copy: another engine's group may be entered meanwhile
        if group in known:
            known.remove(group)
            if tag and not known:
                world.tags_to_pg.pop(tag, None)
