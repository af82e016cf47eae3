"""What carries rows from the driver to the trainer's processes, whichever way they go.

Guarantee: a ticket gives the table that was put: the same rows in the same order, types, nulls and bits. Nothing here
is durable: what is put is stored in the run directory as well, and a run goes on without any ticket.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from data.errors import Lost


class TransportLost(Lost):
    """The rows of a ticket cannot be had any more. Nothing is lost with them: whoever put them has them still."""


@dataclass(frozen=True)
class Ticket(ABC):
    """What is sent instead of rows; small, and can be pickled.

    Attributes:
        identity: step, number and content of the slice: equal for equal ones.
        rows: how many.
        bytes: of the rows as Arrow's stream.
    """

    identity: str
    rows: int
    bytes: int

    @property
    def every_rank_opens(self) -> bool:
        """Whether each of several ranks opens it itself; else the first opens it, and hands the rows to the others."""
        return True

    @abstractmethod
    def open(self) -> pa.Table:
        """The rows, in any process of the run, as often as asked until the step is cleared.

        Raises:
            TransportLost: they are gone.
        """


class Transport(ABC):
    """Takes rows in the driver's process. Methods may be called from any thread."""

    @abstractmethod
    def put(self, step: int, number: int, rows: pa.Table) -> Ticket:
        """Make rows available to the trainer.

        Args:
            step: that they belong to.
            number: of the slice in its step.
            rows: whole groups.
        """

    @abstractmethod
    def clear(self, step: int) -> None:
        """Forget a step's rows: its tickets need not open any more."""

    @abstractmethod
    def close(self) -> None:
        """Forget everything, and end what was started for it."""


@dataclass(frozen=True)
class RowsTicket(Ticket):
    """The rows themselves: for a trainer that nothing else reaches.

    Attributes:
        stream: see ``packed``.
    """

    stream: pa.Buffer

    def open(self) -> pa.Table:
        return unpacked(self.stream)


def handed_on(rows: Any, ranks: int) -> Any:
    """What the first of a trainer's ranks passes on to all of them: a ticket, or the table that it read for all.

    Args:
        rows: a ticket; what is none is passed on as it is.

    Raises:
        TransportLost: it cannot be read; no rank has begun anything.
    """
    return rows.open() if isinstance(rows, Ticket) and ranks > 1 and not rows.every_rank_opens else rows


def packed(rows: pa.Table) -> pa.Buffer:
    """A table as Arrow's stream: of a slice only its own rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def unpacked(stream: pa.Buffer) -> pa.Table:
    """The table over the stream's memory, without a copy."""
    return pa.ipc.open_stream(stream).read_all()


def identity_of(step: int, number: int, stream: pa.Buffer) -> str:
    """See ``Ticket``: `step-000012/3/` and 16 digits of the SHA-256."""
    return f"step-{step:06d}/{number}/{hashlib.sha256(stream).hexdigest()[:16]}"
