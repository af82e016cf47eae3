"""Waits that are told."""

import threading
import time
from collections.abc import Callable

import pytest

from data.errors import Lost
from relax_core import signs, waiting
from relax_core.aio import run
from relax_core.waiting import Wait, listening, told


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TELL_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "_ticker", None)  # one with that pace


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_long_wait_is_told_again_and_again(quick: None) -> None:
    texts: list[str] = []
    with listening(lambda wait: texts.append(wait.text)), told("engine 3", "the push of version 2", 600.0):
        until(lambda: len(texts) == 3)
    assert texts[0].startswith("waiting for engine 3 since ")
    assert texts[0].endswith(", at most 600 s), for the push of version 2")


def test_a_wait_that_says_so_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "_ticker", None)
    waits: list[Wait] = []
    with listening(waits.append), told("a start", "the run", first=0.0), told("a call", "the run"):
        until(lambda: waits)
    assert [wait.what for wait in waits] == ["a start"]  # and once, for a minute


def test_a_short_wait_is_not_told() -> None:
    waits: list[Wait] = []
    with listening(waits.append), told("nothing", "nobody"):
        pass
    assert waits == []


def test_nothing_is_told_of_a_wait_that_is_over(quick: None) -> None:
    waits: list[Wait] = []
    with listening(waits.append):
        with told("one", "nobody"):
            pass
        with told("other", "nobody"):
            until(lambda: waits)
    assert {wait.what for wait in waits} == {"other"}


def test_a_wait_that_goes_on_counts_anew() -> None:
    wait = Wait("samples", "step 1")
    wait.began -= 1000
    assert wait.seconds > 999
    wait.went_on()
    assert wait.seconds < 999


def test_the_limit_is_an_error_that_a_new_start_may_mend() -> None:
    wait = Wait("a lock", "step 1", limit=5.0)
    wait.check()
    wait.began -= 6
    with pytest.raises(Lost, match="Waited 6 s for a lock, for step 1"):
        wait.check()


def test_only_waits_that_are_allowed_are_signs_of_life(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, told_once = threading.Event(), threading.Event()
    monkeypatch.setattr(signs, "alive", alive.set)
    with listening(lambda wait: told_once.set()), told("the end of train", "step 1", allowed=False):
        assert told_once.wait(30)
        assert not alive.is_set()
        with told("the trainer", "step 1"):
            assert alive.wait(30)


def test_an_event_loop_that_runs_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    monkeypatch.setattr(signs, "alive", lambda: alive.append(1))

    async def work() -> str:
        import asyncio

        await asyncio.sleep(0)
        return "done"

    assert run(work()) == "done"
    assert alive
