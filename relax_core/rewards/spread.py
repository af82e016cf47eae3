"""Calls spread over hosts, of which any may die.

Guarantee: each call has one result, at its place, in whatever order answers come; a host gets more calls as it answers,
so that a slow one gets fewer; a call is made again only if its host died, or took its caller for gone, before it
answered. One with which its host dies three times, the last time with no other call of the same caller on it, is lost;
others are not lost with it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from data.errors import UserError
from relax_core.rewards.messages import CANCELLED, Lost, Question, Result, Results, Tell, nobody

AHEAD_SECONDS = 1.0
"""A host has about as many calls as it answers in this time."""

MOST_AHEAD = 512
"""Most calls that a host has."""

MOST_DEATHS = 10
"""How often hosts may die while calls are made."""

_DEATHS = 3
_LOST = Lost("crash", f"the process that keeps those of rewards died with it {_DEATHS} times")


class Reply(NamedTuple):
    """What came of an exchange with a host.

    Attributes:
        host: its number.
        answers: with their places; None: it has died, or does not know the calls.
        died: why it is gone; empty: it lives.
    """

    host: int
    answers: Sequence[tuple[int, Result]] | None
    died: str = ""


class Hosts(Protocol):
    """The way of some calls to their hosts, see ``RewardHost``."""

    shares: Sequence[int]
    """How many processes each host may run at once."""

    def send(self, host: int, questions: Sequence[Question], last: bool) -> None:
        """Begin an exchange with a host, one that has died before included; there is none with it now. ``last``: for
        the time being nothing more will be asked."""

    def receive(self) -> Sequence[Reply]:
        """Exchanges that have ended; waits a while for one."""

    def halt(self) -> None:
        """Let the hosts begin nothing more."""


class Ledger:
    """Which calls wait, which are with a host, and what is known of them.

    Args:
        results: of the calls.
        count: of the calls.
        hosts: how many there are.
    """

    def __init__(self, results: Results, count: int, hosts: int) -> None:
        self._results, self._queue = results, deque(range(count))
        self._deaths = [0] * count  # of its host, of each call
        self._out: list[set[int]] = [set() for _ in range(hosts)]
        self._halted = False

    def busy(self, host: int) -> bool:
        """Whether a host has calls."""
        return bool(self._out[host])

    def draw(self, host: int, most: int, few: int) -> list[int]:
        """More calls for a host.

        Args:
            most: how many it may have.
            few: of those whose host has died with them; after the second time it has one alone.
        """
        out = self._out[host]
        limits = (most, min(most, few), 1)
        limit = min((limits[self._deaths[place]] for place in out), default=most)
        drawn: list[int] = []
        while self._queue:
            limit = min(limit, limits[self._deaths[self._queue[0]]])
            if len(out) >= limit:
                break
            place = self._queue.popleft()
            out.add(place)
            drawn.append(place)
        return drawn

    def waiting(self) -> int:
        """How many calls are with no host."""
        return len(self._queue)

    def answered(self, host: int, answers: Iterable[tuple[int, Result]]) -> None:
        """A host has answered."""
        for place, result in answers:
            self._out[host].discard(place)
            self._results.put(place, result)

    def lost(self, host: int, died: bool) -> None:
        """A host has none of its calls any more; where it has died, one of them may be why."""
        for place in sorted(self._out[host], reverse=True):
            self._deaths[place] += died
            if self._halted:
                self._results.put(place, CANCELLED)
            elif self._deaths[place] == _DEATHS:
                self._results.put(place, _LOST)
            else:
                self._queue.appendleft(place)
        self._out[host].clear()

    def halt(self) -> None:
        """Make no further call: those that wait are lost."""
        self._halted = True
        for place in self._queue:
            self._results.put(place, CANCELLED)
        self._queue.clear()


def spread(
    hosts: Hosts,
    count: int,
    ask: Callable[[Sequence[int]], Sequence[Question]],
    *,
    until_failed: bool,
    few: Callable[[int], int],
    first: int = 0,
    one: bool = False,
    closed: Callable[[], bool] = lambda: False,
    tell: Tell = nobody,
) -> list[Result]:
    """The results of calls, in their order.

    Args:
        count: of the calls.
        ask: makes the questions for calls of these places.
        until_failed: after a ``Failed`` no further call is made; calls behind it may be lost.
        few: how many calls with which a host has died it may have at once, by its number.
        first: number of the host that is asked first.
        one: that one gets all of them, at once.
        closed: whether nobody wants them any more.
        tell: is told each result when it comes.

    Raises:
        UserError: hosts die again and again.
    """
    results = Results(count, until_failed, tell)
    everyone = range(len(hosts.shares))
    numbers = [first] if one else [*everyone[first:], *everyone[:first]]
    ledger = Ledger(results, count, len(everyone))
    least = {host: count if one else 2 * hosts.shares[host] + 2 for host in numbers}
    most = dict(least)
    asked: dict[int, float] = {}
    deaths, halted = 0, False
    while not results.complete and not closed():
        for host in numbers:
            if host not in asked:
                fair = -(-ledger.waiting() // (2 * len(numbers))) if len(numbers) > 1 else count
                room = min(most[host], max(least[host], fair))
                places = ledger.draw(host, room, few(host))
                if places or ledger.busy(host):
                    hosts.send(host, ask(places) if places else (), not ledger.waiting())
                    asked[host] = time.monotonic()
        for reply in hosts.receive():
            seconds = time.monotonic() - asked.pop(reply.host)
            if reply.answers is None:
                ledger.lost(reply.host, bool(reply.died))
                deaths += bool(reply.died)
                if deaths >= MOST_DEATHS:
                    raise UserError(
                        f"The processes that keep those of rewards died {deaths} times while {count} calls were made; "
                        f"the last time: {reply.died}",
                        "Look for what ends them: a reward that ends its parent process, or the memory of the machine.",
                    )
                continue
            ledger.answered(reply.host, reply.answers)
            if reply.answers:
                ahead = AHEAD_SECONDS * len(reply.answers) / max(seconds, 1e-3)
                most[reply.host] = max(least[reply.host], int(min(MOST_AHEAD, ahead)))
        if until_failed and results.failed and not halted:
            halted = True
            ledger.halt()
            hosts.halt()
    return results.all()
