"""Calls spread over hosts that answer in any order, forget and die: no Ray, no processes."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.rewards.messages import CANCELLED, Failed, FunctionName, Lost, Question, Result, Task
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.spread import MOST_DEATHS, Reply, spread

TASK = Task(FunctionName("f"), (), None, None)
FAILED = Failed("no", "", "")


class FakeHosts:
    """Hosts whose exchanges end as the dice say.

    Args:
        shares: of each.
        dice: decides.
        killers: calls with which a host dies as soon as it has begun with them; it begins with as many as its share.
        misfortunes: how often a host may die, or forget what it has, for no reason.
        failing: calls that answer with an error.
    """

    def __init__(
        self,
        shares: Sequence[int],
        dice: random.Random,
        killers: Sequence[int] = (),
        misfortunes: int = 0,
        failing: Sequence[int] = (),
    ) -> None:
        self.shares, self._dice, self._killers, self._misfortunes = shares, dice, set(killers), misfortunes
        self._failing = failing
        self._has: list[list[int]] = [[] for _ in shares]
        self._open: set[int] = set()
        self.asked: Counter[int] = Counter()
        self.may_be_asked_again: Counter[int] = Counter()
        self.halted = False
        self.most = [0] * len(shares)

    def send(self, host: int, questions: Sequence[Question], last: bool) -> None:
        assert host not in self._open
        self._open.add(host)
        places = [place for question in questions for place in question.places]
        assert not (self.halted and places)
        self.asked.update(places)
        self._has[host] += places
        self.most[host] = max(self.most[host], len(self._has[host]))

    def receive(self) -> list[Reply]:
        host = self._dice.choice(sorted(self._open))
        self._open.discard(host)
        has = self._has[host]
        begun = has[: self.shares[host]]
        ill = self._misfortunes and self._dice.random() < 0.2
        self._misfortunes -= bool(ill)
        dies = self._killers & set(begun) or (ill and self._dice.random() < 0.5)
        if dies or ill:
            self.may_be_asked_again.update(has)
            self._has[host] = []
            return [Reply(host, None, "it was killed" if dies else "")]
        answered = self._dice.sample(begun, self._dice.randint(0, len(begun)))
        self._has[host] = [place for place in has if place not in answered]
        return [Reply(host, [(place, self.answer(place)) for place in answered])]

    def answer(self, place: int) -> Result:
        return FAILED if place in self._failing else [Outcome(float(place))]

    def halt(self) -> None:
        self.halted = True


def run(hosts: FakeHosts, count: int, until_failed: bool = False, one: bool = False, first: int = 0) -> list[Result]:
    return spread(
        hosts,
        count,
        lambda places: [Question((place,), TASK, 1.0) for place in places],
        until_failed=until_failed,
        few=lambda host: hosts.shares[host],
        first=first,
        one=one,
    )


counts = st.integers(0, 60)
some_shares = st.lists(st.integers(1, 4), min_size=1, max_size=4)
dice = st.randoms(use_true_random=False)


@given(counts, some_shares, dice, st.integers(0, 2), st.booleans())
def test_each_call_has_its_answer_at_its_place_though_hosts_die_and_forget(
    count: int, shares: list[int], dice: random.Random, misfortunes: int, one: bool
) -> None:
    hosts = FakeHosts(shares, dice, misfortunes=misfortunes)
    results = run(hosts, count, one=one, first=len(shares) - 1)
    assert results == [[Outcome(float(place))] for place in range(count)]
    for place in range(count):  # made once, and again only where a host had lost it
        assert hosts.asked[place] == 1 + hosts.may_be_asked_again[place]


@given(counts, some_shares, dice, st.sets(st.integers(0, 59), max_size=2))
def test_calls_with_which_hosts_die_are_lost_alone(
    count: int, shares: list[int], dice: random.Random, killers: set[int]
) -> None:
    hosts = FakeHosts(shares, dice, killers=sorted(killers))
    results = run(hosts, count)
    lost = {place for place, result in enumerate(results) if isinstance(result, Lost)}
    assert lost == {place for place in killers if place < count}
    for place in set(range(count)) - lost:
        assert results[place] == [Outcome(float(place))]
    for place in lost:
        assert hosts.asked[place] == 3
        assert results[place] == Lost("crash", "the process that keeps those of rewards died with it 3 times")


@given(counts, some_shares, dice, st.sets(st.integers(0, 59), max_size=3), st.integers(0, 2))
def test_after_an_error_nothing_is_asked_and_all_before_it_is_answered(
    count: int, shares: list[int], dice: random.Random, failing: set[int], misfortunes: int
) -> None:
    hosts = FakeHosts(shares, dice, failing=sorted(failing), misfortunes=misfortunes)
    results = run(hosts, count, until_failed=True)
    failed = [place for place, result in enumerate(results) if isinstance(result, Failed)]
    assert bool(failed) == any(place < count for place in failing)
    for place in range(min(failed, default=count)):
        asked = hosts.asked[place] > hosts.may_be_asked_again[place]
        assert results[place] == ([Outcome(float(place))] if asked else CANCELLED)


def test_hosts_that_die_again_and_again_are_an_error() -> None:
    with pytest.raises(UserError, match=rf"died {MOST_DEATHS} times while 40 calls were made; the last time: it was k"):
        run(FakeHosts([2], random.Random(0), killers=range(40)), 40)


class Slow(FakeHosts):
    """Host 0 answers all it has in each round, host 1 one call."""

    def receive(self) -> list[Reply]:
        replies = []
        for host in sorted(self._open):
            n = 1 if host else len(self._has[host])
            answered, self._has[host] = self._has[host][:n], self._has[host][n:]
            replies.append(Reply(host, [(place, self.answer(place)) for place in answered]))
            self.answered[host] += len(answered)
        self._open.clear()
        return replies

    answered = (0, 0)


def test_a_slow_host_gets_fewer() -> None:
    hosts = Slow([1, 1], random.Random(0))
    hosts.answered = [0, 0]  # type: ignore[assignment]
    assert run(hosts, 200) == [[Outcome(float(place))] for place in range(200)]
    assert hosts.answered[0] > 2 * hosts.answered[1]


def test_a_batch_goes_to_one_host_at_once() -> None:
    hosts = FakeHosts([1, 1, 1], random.Random(0))
    run(hosts, 50, one=True, first=1)
    assert hosts.most == [0, 50, 0]


def test_nobody_waits_for_what_is_closed() -> None:
    hosts = FakeHosts([1], random.Random(0))
    done = spread(hosts, 2, lambda _: [], until_failed=False, few=lambda _: 1, closed=lambda: True)
    assert done == [CANCELLED] * 2
