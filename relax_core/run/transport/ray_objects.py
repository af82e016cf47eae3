"""Rows through Ray's object store: shared memory on one machine, a copy a machine elsewhere.

Guarantee: a ticket's rows stay until their step is cleared, and longer where a table of them is still in use; processes
of one machine read them where they lie. Without Ray the rows travel in the ticket.
"""

import threading
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from relax_core.run.transport.base import RowsTicket, Ticket, Transport, TransportLost, identity_of, packed, unpacked


@dataclass(frozen=True)
class RayTicket(Ticket):
    """A reference to Arrow's stream in the object store."""

    reference: Any

    def open(self) -> pa.Table:
        if not ray.is_initialized():  # asking for an object would start a Ray of its own
            raise TransportLost(f"The rows of {self.identity} are in Ray, which this process is not connected to.")
        try:
            return unpacked(ray.get(self.reference))
        except RayError as error:
            raise TransportLost(
                f"Ray has lost the rows of {self.identity} ({type(error).__name__}).", details=str(error)
            ) from error


class RayTransport(Transport):
    """The default (--data-transport ray)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, list[Any]] = {}

    def put(self, step: int, number: int, rows: pa.Table) -> Ticket:
        stream = packed(rows)
        said = (identity_of(step, number, stream), rows.num_rows, stream.size)
        if not ray.is_initialized():
            return RowsTicket(*said, stream)
        reference = ray.put(stream)
        with self._lock:
            self._kept.setdefault(step, []).append(reference)
        return RayTicket(*said, reference)

    def clear(self, step: int) -> None:
        with self._lock:
            self._kept.pop(step, None)

    def close(self) -> None:
        with self._lock:
            self._kept.clear()
