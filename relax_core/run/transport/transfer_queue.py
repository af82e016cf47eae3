"""Rows through TransferQueue: actors that hold columns in memory and keep account of which task has read which row.

Guarantee: a ticket names its rows, so that every rank gets the same ones in the same order; rank 0 is the task
``actor_train``, rank r ``actor_train-r``, and each task's reading is booked once. Starting the queue, putting and
opening end in the time they are given, and say which actor has died. Rows that a queue does not take travel in the
ticket. The queue lives as long as its driver, and a second run under the same Ray has its own.

The package is imported by processes that use it only.
"""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import ray
import torch
from ray.exceptions import GetTimeoutError, RayError
from tensordict import TensorDict
from transfer_queue import BaseSampler, BatchMeta
from transfer_queue.client import AsyncTransferQueueClient
from transfer_queue.controller import TransferQueueController
from transfer_queue.storage.simple_storage import SimpleStorageUnit

from data.errors import UserError
from relax_core.cluster.actors import NAMESPACE
from relax_core.run.transport.base import RowsTicket, Ticket, Transport, TransportLost, identity_of, packed
from relax_core.run.transport.tensors import from_columns, to_columns

log = logging.getLogger(__name__)

TASK = "actor_train"
"""Who reads, as the queue's account has it."""

START_SECONDS = 120.0
"""Until actors that did not start are an error: each imports torch."""

ANSWER_SECONDS = 120.0
"""Until an answer that does not come is an error, where all actors live."""

_PATIENCE_SECONDS = 2.0
"""After so long without an answer, the actors are looked at."""

_PAUSE_SECONDS = 0.05
"""Until one asks again for what is not ready (--polling-mode)."""


class NamedRows(BaseSampler):  # type: ignore[misc]  # a class of the package is Any where that is not installed
    """Gives the rows that a request names, once each of them is ready: slices are whole groups, so are answers."""

    def sample(
        self, ready_indexes: list[int], batch_size: int, *args: Any, rows: Sequence[int] = (), **kwargs: Any
    ) -> tuple[list[int], list[int]]:
        """Rows to give, and to book as read; none while one is missing."""
        given = list(rows) if set(rows) <= set(ready_indexes) else []
        return given, given


@dataclass(frozen=True)
class Address:
    """Where a queue is reached.

    Attributes:
        name: of this queue alone; its actors' names begin with it.
        controller, units: addresses of their sockets.
        actors: names.
    """

    name: str
    controller: Any
    units: dict[str, Any]
    actors: tuple[str, ...]

    def gone(self) -> list[str]:
        """Names of the actors that are dead."""
        return [name for name in self.actors if not _lives(name)]


def _lives(name: str) -> bool:
    try:
        ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return False
    return True


class Connection:
    """One process's way to a queue: its client, and the thread whose loop that lives in.

    Raises:
        TransportLost: the queue does not answer.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="transfer-queue", daemon=True).start()
        self._client: Any = None
        self.ask(self._connect, "be reached")

    async def _connect(self) -> None:
        await asyncio.to_thread(self._make_client)  # it waits for the controller without letting the loop go on

    def _make_client(self) -> None:
        client = AsyncTransferQueueClient(f"relax-{uuid.uuid4().hex[:8]}", self.address.controller, zmq_io_threads=1)
        client.initialize_storage_manager("SimpleStorage", {"zmq_info": self.address.units})
        self._client = client

    def ask(self, work: Callable[[], Coroutine[Any, Any, Any]], what: str, limit: float = ANSWER_SECONDS) -> Any:
        """The result of a coroutine of the client.

        Raises:
            TransportLost: it failed, an actor died, or nothing came.
        """
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        deadline = time.monotonic() + limit
        while True:
            try:
                return future.result(_PATIENCE_SECONDS)
            except Exception as error:
                dead = self.address.gone()
                if not dead and not future.done() and time.monotonic() < deadline:
                    continue
                waited = not future.done() and future.cancel()
                why = f"{', '.join(dead)} died" if dead else f"no answer in {limit:.0f} s" if waited else str(error)
                raise TransportLost(f"TransferQueue {self.address.name} could not {what}: {why}.") from error

    def put(self, columns: dict[str, torch.Tensor], rows: int, partition: str) -> Any:
        """Store rows; where they are."""
        data = TensorDict(columns, batch_size=rows)
        return self.ask(lambda: self._client.async_put(data=data, partition_id=partition), "take rows")

    def get(self, place: Any, fields: Sequence[str], partition: str, task: str) -> Any:
        """Rows by where they are; booked as read by the task, unless they were before."""
        return self.ask(partial(self._get, place, fields, partition, task), "give rows")

    async def _get(self, place: Any, fields: Sequence[str], partition: str, task: str) -> Any:
        mine = list(place.global_indexes)
        known, read = await self._client.async_get_consumption_status(task_name=task, partition_id=partition)
        if known is None or not set(mine) <= set(known.tolist()):
            raise LookupError(f"the rows of {partition} are cleared")
        # A second reading is not booked, and would never be ready.
        while not bool(read[torch.isin(known, torch.tensor(mine))].all()):
            found = await self._client.async_get_meta(
                data_fields=list(fields),
                batch_size=len(mine),
                partition_id=partition,
                task_name=task,
                sampling_config={"rows": mine},
            )
            if found.size:
                place = found
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        return await self._client.async_get_data(place)

    def clear(self, partition: str) -> None:
        """Forget rows."""
        self.ask(lambda: self._client.async_clear_partition(partition), "forget rows")

    def close(self) -> None:
        """End the thread."""
        if self._client is not None:
            self._loop.call_soon_threadsafe(self._client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)


_connections: dict[str, Connection] = {}
_connecting = threading.Lock()


def connection(address: Address) -> Connection:
    """This process's connection to a queue; those to queues that are gone are closed."""
    with _connecting:
        found = _connections.get(address.name)
        if found is None:
            for name in [name for name, other in _connections.items() if other.address.gone()]:
                _connections.pop(name).close()
            found = _connections[address.name] = Connection(address)
        return found


def task_name() -> str:
    """Of this process, by its rank among the trainer's."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if distributed else 0
    return f"{TASK}-{rank}" if rank else TASK


@dataclass(frozen=True)
class QueueTicket(Ticket):
    """Rows of a queue.

    Attributes:
        address: of the queue.
        partition: of the step.
        place: the queue's metadata of the rows.
        schema: of the table.
        per_rank: every rank of several reads from the queue.
    """

    address: Address
    partition: str
    place: Any
    fields: tuple[str, ...]
    schema: pa.Schema
    per_rank: bool

    @property
    def every_rank_opens(self) -> bool:
        return self.per_rank

    def open(self) -> pa.Table:
        data = connection(self.address).get(self.place, self.fields, self.partition, task_name())
        return from_columns({name: data[name] for name in self.fields}, self.schema)


class QueueTransport(Transport):
    """--data-transport transfer_queue: starts a queue of its own under the Ray of this process.

    Args:
        name: of the run; the actors' names begin with it.
        units: actors that hold rows (--num-data-storage-units).
        capacity: rows that they hold together.
        polling: --polling-mode.
        per_rank: --per-rank-fetch.
        timeout: seconds that the actors may take to start.

    Raises:
        UserError: they did not start; the text says why.
    """

    def __init__(
        self,
        name: str,
        units: int,
        capacity: int,
        polling: bool = True,
        per_rank: bool = False,
        timeout: float = START_SECONDS,
    ) -> None:
        if not ray.is_initialized():
            raise UserError("--data-transport transfer_queue: this run has no Ray.", "Use --data-transport ray.")
        name = f"{name}.queue-{uuid.uuid4().hex[:6]}"
        config = {"total_storage_size": capacity, "num_data_storage_units": units}
        # The package asks Ray for a core an actor, and waits without a word where there is none.
        free = {"num_cpus": 0, "namespace": NAMESPACE}
        self._actors = [
            TransferQueueController.options(name=f"{name}-controller", **free).remote(
                sampler=NamedRows(), polling_mode=polling
            )
        ]
        self._actors += [
            SimpleStorageUnit.options(name=f"{name}-unit-{number}", scheduling_strategy="SPREAD", **free).remote(config)
            for number in range(units)
        ]
        names = (f"{name}-controller", *(f"{name}-unit-{number}" for number in range(units)))
        try:
            controller, *stores = ray.get(
                [actor.get_zmq_server_info.remote() for actor in self._actors], timeout=timeout
            )
            self.address = Address(name, controller, dict(zip(names[1:], stores, strict=True)), names)
            self._connection = connection(self.address)
        except (GetTimeoutError, RayError, TransportLost) as error:
            self._end()
            slow = f"its {len(names)} actors did not start within {timeout:.0f} s"
            why = slow if isinstance(error, GetTimeoutError) else str(error)
            raise UserError(
                f"--data-transport transfer_queue: {why}.",
                "Look at what Ray has left (`relax status`), or use --data-transport ray.",
            ) from error
        self._per_rank = per_rank
        self._steps: set[int] = set()
        self._dead = False

    def put(self, step: int, number: int, rows: pa.Table) -> Ticket:
        stream = packed(rows)
        said = (identity_of(step, number, stream), rows.num_rows, stream.size)
        columns = to_columns(rows)
        if self._dead or not columns:
            return RowsTicket(*said, stream)
        partition = _partition(step)
        self._steps.add(step)
        try:
            place: BatchMeta = self._connection.put(columns, rows.num_rows, partition)
        except TransportLost as error:
            self._dead = bool(self.address.gone())
            log.warning("%s Its rows are sent without it%s.", error, ", and all that follow" if self._dead else "")
            return RowsTicket(*said, stream)
        return QueueTicket(*said, self.address, partition, place, tuple(columns), rows.schema, self._per_rank)

    def clear(self, step: int) -> None:
        if step not in self._steps or self._dead:
            return
        self._steps.discard(step)
        try:
            self._connection.clear(_partition(step))
        except TransportLost as error:
            self._dead = bool(self.address.gone())
            log.warning("%s", error)

    def close(self) -> None:
        with _connecting:
            _connections.pop(self.address.name, None)
        self._connection.close()
        self._end()

    def _end(self) -> None:
        for actor in self._actors:
            ray.kill(actor)


def _partition(step: int) -> str:
    return f"train_{step}"
