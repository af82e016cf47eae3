"""Outcomes of a scoring that did not come to its end, for the one that is made in its place.

Guarantee: a call that had its outcome is not made again, whichever other call failed; it is known by its content.
A call that failed is made again.
"""

import threading

from relax_core.rewards.calls import Call
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.rows import content_key


class Kept:
    """Belongs to one rollout and one reward: neither source nor options may change meanwhile."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[Call, tuple[bytes, str | None]]] = {}
        self._outcomes: dict[tuple[bytes, str | None], list[Outcome]] = {}
        self._lock = threading.Lock()

    def find(self, call: Call) -> list[Outcome] | None:
        """The outcomes of an equal call. To be asked before a call is made, which may change its samples."""
        key = content_key(call), call.key
        with self._lock:
            self._keys[id(call)] = call, key  # the call too, so that its id stays its own
            return self._outcomes.get(key)

    def keep(self, call: Call, outcomes: list[Outcome]) -> None:
        """Remember the outcomes of a call that ``find`` was asked for, unless it failed."""
        if all(outcome.kind != "failed" for outcome in outcomes):
            with self._lock:
                _, key = self._keys[id(call)]
                self._outcomes[key] = outcomes

    def take(self, other: "Kept") -> None:
        """Have the outcomes of another one too, that no call changes any more."""
        with self._lock:
            self._outcomes |= other._outcomes
