"""Rows of finished samples, made and kept while others are still generated.

Guarantee: the table is the one that all results would make together, whatever was finished when, and whatever of it an
earlier process had kept; each response is decoded once; what was finished a few seconds before a kill, see
``KEEP_SECONDS``, is in the run directory, and is not generated again. Whoever hands a result over never waits.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from data.errors import UserError
from data.schema import ROLLOUT, conform
from data.store import RunStore
from relax_core.rollout.sample import Status

log = logging.getLogger(__name__)

FOLDER = "generate.parts"
"""Beside ``rollout.parquet``: what is kept of a generation that is not finished."""

KEEP_SECONDS = 2.0
"""How often finished samples are made durable, at most; ten times what the storage needs for it, if that is longer."""

_TICK_SECONDS = 0.1

MakeTable: TypeAlias = Callable[[Sequence[Any]], pa.Table]


class Kept:
    """Finished samples of an unfinished generation, in the run directory.

    Args:
        store: the run directory.
        step: rollout step.
        key: identity of the generation: parts of another one are of no use to it.
    """

    def __init__(self, store: RunStore, step: int, key: str = "none") -> None:
        self._store, self._root = store, store.step_path(step, FOLDER)
        self._folder = f"{self._root}/{key.rsplit('.', 1)[-1]}"

    def read(self, wanted: Iterable[str] | None, warn: Callable[[str], None] = log.warning) -> pa.Table:
        """The rows of ``wanted`` samples (None: of all) that are there, each once; a part that cannot be read is left
        out."""
        parts = []
        for name in self._store.ls(self._folder):
            try:
                parts.append(conform(self._store.read_table(f"{self._folder}/{name}"), ROLLOUT))
            except (UserError, ValueError) as error:  # the storage, or another table
                warn(f"{self._store.uri(f'{self._folder}/{name}')} is of no use: {error}")
        rows = pa.concat_tables(parts) if parts else ROLLOUT.empty_table()
        ids = rows["sample_id"].to_pylist()
        places = {sample_id: place for place, sample_id in enumerate(ids)}
        found = places.keys() if wanted is None else set(wanted) & places.keys()
        return rows.take(pa.array(sorted(places[one] for one in found), pa.int64()))

    def write(self, rows: pa.Table) -> None:
        """Add rows; those that ended by no fault of the model's are to be generated again."""
        whole = rows.filter(pc.is_in(rows["status"], pa.array([Status.COMPLETED, Status.TRUNCATED])))
        if whole.num_rows:
            self._store.write_table(f"{self._folder}/{uuid.uuid4().hex}.parquet", whole)

    def delete(self) -> None:
        """Forget everything of the step: its table is there."""
        try:
            self._store.delete(self._root)
        except UserError as error:  # it is in nobody's way
            log.warning("%s stays: %s", self._store.uri(self._root), error)


class Collector:
    """Makes rows of results in a thread of its own.

    Args:
        make: the rows of schema ``ROLLOUT`` of results, in their order.
        kept: where they are made durable.
        before: rows that an earlier process had kept.
        also: gets each batch of new rows, in the thread; must not fail.
    """

    def __init__(
        self,
        make: MakeTable,
        kept: Kept,
        before: pa.Table,
        also: Callable[[pa.Table], None] = lambda rows: None,
    ) -> None:
        self._make, self._kept, self._also = make, kept, also
        self._arrived: list[Any] = []
        self._rows: list[pa.Table] = [before]
        self._unkept: list[pa.Table] = []
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="rows", daemon=True)
        self._thread.start()

    def add(self, result: Any) -> None:
        """Hand a result over."""
        with self._changed:
            self._arrived.append(result)
            self._changed.notify()

    def table(self, order: Sequence[str]) -> pa.Table:
        """All rows, in the order of their sample ids; nothing is made durable any more: the caller writes the table.

        Raises:
            UserError: what ``make`` raised.
        """
        self._end()
        if self._error is not None:
            raise self._error
        rows = pa.concat_tables(self._rows)
        places = {sample_id: place for place, sample_id in enumerate(rows["sample_id"].to_pylist())}
        return rows.take(pa.array([places[sample_id] for sample_id in order], pa.int64()))

    def close(self) -> None:
        """The generation has failed: make durable what is finished."""
        self._end()
        self._keep()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        due, pause = time.monotonic() + KEEP_SECONDS, KEEP_SECONDS
        while True:
            with self._changed:
                while not self._arrived and not self._ended and not (self._unkept and time.monotonic() >= due):
                    self._changed.wait(max(0.0, due - time.monotonic()) if self._unkept else None)
                self._changed.wait_for(lambda: self._ended, _TICK_SECONDS)  # others are about to finish
                arrived, self._arrived, ended = self._arrived, [], self._ended
            if arrived and self._error is None:
                self._take(arrived)
            if ended:
                return
            if time.monotonic() >= due:
                began = time.monotonic()
                self._keep()
                pause = max(KEEP_SECONDS, 10 * (time.monotonic() - began))
                due = time.monotonic() + pause

    def _take(self, arrived: list[Any]) -> None:
        try:
            rows = self._make(arrived)
        except BaseException as error:  # ``table`` raises it
            self._error = error
            return
        self._rows.append(rows)
        self._unkept.append(rows)
        self._also(rows)

    def _keep(self) -> None:
        if not self._unkept:
            return
        rows, self._unkept = pa.concat_tables(self._unkept), []
        try:
            self._kept.write(rows)
        except UserError as error:  # the run will say so itself if its folder is gone
            log.warning("finished samples are not kept: %s", error)
