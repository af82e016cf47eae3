"""Outcomes of a scoring that did not come to its end, for the one that is made in its place.

Guarantee: a call that had its outcome is not made again, whichever other call failed; it is known by its content.
A call that failed is made again. With a place in the run directory that holds over a kill too, up to what ended a few
seconds before it, see ``KEEP_SECONDS``; whoever makes calls never waits for the storage.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import TypeAlias

import pyarrow as pa

from data.errors import UserError
from data.store import RunStore
from relax_core.rewards.calls import Call
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.rows import content_key

log = logging.getLogger(__name__)

FOLDER = "reward.parts"
"""Beside ``reward.parquet``: what is kept of a scoring that is not finished."""

KEEP_SECONDS = 2.0
"""How often outcomes are made durable, at most; ten times what the storage needs for it, if that is longer."""

Key: TypeAlias = tuple[bytes, str | None]
"""Of a call: ``content_key``, and that of its score in a dict."""

Outcomes: TypeAlias = dict[Key, list[Outcome]]

_SCHEMA = pa.schema([("content", pa.string()), ("key", pa.string()), ("outcomes", pa.string())])


class ScoreParts:
    """Outcomes in the run directory.

    Args:
        store: the run directory.
        step: rollout step.
        scoring: ``scoring_hash`` of the sources and options: parts of another scoring are of no use to it.
    """

    def __init__(self, store: RunStore, step: int, scoring: str = "none") -> None:
        self._store, self._root = store, store.step_path(step, FOLDER)
        self._folder = f"{self._root}/{scoring[:16]}"

    def read(self) -> Outcomes:
        """All outcomes; a part that cannot be read is left out."""
        found: Outcomes = {}
        for name in self._store.ls(self._folder):
            try:
                rows = self._store.read_table(f"{self._folder}/{name}").cast(_SCHEMA).to_pylist()
                found |= {
                    (bytes.fromhex(row["content"]), row["key"]): [Outcome(**one) for one in json.loads(row["outcomes"])]
                    for row in rows
                }
            except (UserError, ValueError, TypeError) as error:  # the storage, or another table
                log.warning("%s is of no use: %s", self._store.uri(f"{self._folder}/{name}"), error)
        return found

    def write(self, outcomes: Mapping[Key, list[Outcome]]) -> None:
        """Add outcomes."""
        rows = [
            # Python's JSON: it has NaN, and each number as it is
            {"content": content.hex(), "key": key, "outcomes": json.dumps([asdict(outcome) for outcome in found])}
            for (content, key), found in outcomes.items()
        ]
        self._store.write_table(f"{self._folder}/{uuid.uuid4().hex}.parquet", pa.Table.from_pylist(rows, _SCHEMA))

    def delete(self) -> None:
        """Forget everything of the step: its table is there."""
        try:
            self._store.delete(self._root)
        except UserError as error:  # it is in nobody's way
            log.warning("%s stays: %s", self._store.uri(self._root), error)


class ScoredCalls:
    """Belongs to one rollout and one reward: neither source nor options may change meanwhile.

    Args:
        parts: where outcomes are made durable, and where those of an earlier process are; None: nowhere.
    """

    def __init__(self, parts: ScoreParts | None = None) -> None:
        self._parts = parts
        self._keys: dict[int, tuple[Call, Key]] = {}
        self._outcomes: Outcomes = {} if parts is None else parts.read()
        self._before = frozenset(self._outcomes)
        self._unkept: Outcomes = {}
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None
        self._ended = False
        self.reused: set[Key] = set()
        """Calls that were not made, since an earlier process had their outcomes."""

    def __enter__(self) -> "ScoredCalls":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.end(keep=kind is not None)

    def find(self, call: Call) -> list[Outcome] | None:
        """The outcomes of an equal call. To be asked before a call is made, which may change its samples."""
        key = content_key(call), call.key
        with self._changed:
            self._keys[id(call)] = call, key  # the call too, so that its id stays its own
            if key in self._before:
                self.reused.add(key)
            return self._outcomes.get(key)

    def keep(self, call: Call, outcomes: list[Outcome]) -> None:
        """Remember the outcomes of a call that ``find`` was asked for, unless it failed; from any thread."""
        if all(outcome.kind != "failed" for outcome in outcomes):
            with self._changed:
                _, key = self._keys[id(call)]
                self._add({key: outcomes})

    def take(self, other: "ScoredCalls") -> None:
        """Have the outcomes of another one too, that no call changes any more."""
        with self._changed:
            made = other._outcomes.keys() - other._before  # by this process, whatever this one has read since
            self._outcomes |= other._outcomes
            self._before = (self._before | other._before) - made
            self.reused |= other.reused
            if other._unkept:
                self._add(other._unkept)

    def end(self, keep: bool) -> None:
        """Write nothing more.

        Args:
            keep: first what is not durable yet: the scoring has failed. Else whoever scores writes a table.
        """
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._writer is not None:
            self._writer.join()
        if keep:
            self._write()

    def _add(self, outcomes: Outcomes) -> None:
        self._outcomes |= outcomes
        if self._parts is None:
            return
        self._unkept |= outcomes
        if self._writer is None and not self._ended:
            self._writer = threading.Thread(target=self._serve, name="reward-parts", daemon=True)
            self._writer.start()

    def _serve(self) -> None:
        pause = KEEP_SECONDS
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._ended, pause):
                    return
            began = time.monotonic()
            self._write()
            pause = max(KEEP_SECONDS, 10 * (time.monotonic() - began))

    def _write(self) -> None:
        with self._changed:
            outcomes, self._unkept = self._unkept, {}
        if self._parts is None or not outcomes:
            return
        try:
            self._parts.write(outcomes)
        except UserError as error:  # the run will say so itself if its folder is gone
            log.warning("scores are not kept: %s", error)


def calls_of_step(store: RunStore, step: int, scoring: str) -> ScoredCalls:
    """Durable ones, see ``ScoreParts``."""
    return ScoredCalls(ScoreParts(store, step, scoring))
