"""Turns of steps that overlap."""

import contextlib
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.run.order import StepOrder, Stopped


def run_steps(order: StepOrder, first: int, total: int, generate: float, train: float) -> list[tuple[str, int]]:
    """What happened, in order: each step in a thread of its own, as the flow does it."""
    told: list[tuple[str, int]] = []

    def one(step: int) -> None:
        with order.generating(step):
            told.append(("generate", step))
            time.sleep(generate)
            told.append(("generated", step))
        with order.training(step):
            told.append(("train", step))
            time.sleep(train)
            order.synced(step + 1)
            told.append(("synced", step))

    threads = [threading.Thread(target=one, args=(step,)) for step in range(first, total)]
    for thread in reversed(threads):  # the order of the starts does not matter
        thread.start()
    for thread in threads:
        thread.join(20)
    return told


@given(st.integers(0, 3), st.integers(0, 2), st.sampled_from([(0.001, 0.004), (0.004, 0.001), (0.002, 0.002)]))
@settings(deadline=None, max_examples=20)
def test_no_step_is_further_ahead_than_the_staleness_allows(staleness: int, first: int, times: tuple) -> None:
    told = run_steps(StepOrder(first, staleness), first, first + 5, *times)
    steps = list(range(first, first + 5))
    for kind in ("generate", "generated", "train", "synced"):  # each in order, each once
        assert [step for name, step in told if name == kind] == steps
    trained = first
    for name, step in told:
        if name == "generate":
            assert step - trained <= staleness
        if name == "synced":
            trained = step + 1
    for step in steps:  # one generates at a time
        begin, end = told.index(("generate", step)), told.index(("generated", step))
        assert [name for name, _ in told[begin + 1 : end] if name.startswith("generate")] == []


def test_with_staleness_0_a_step_begins_when_the_one_before_it_is_synced() -> None:
    told = run_steps(StepOrder(0, 0), 0, 3, 0.002, 0.002)
    kinds = ["generate", "generated", "train", "synced"]
    assert told == [(kind, step) for step in range(3) for kind in kinds]


def test_with_staleness_1_one_generates_while_another_trains() -> None:
    told = run_steps(StepOrder(0, 1), 0, 3, 0.02, 0.05)
    # step 1 begins (0 + 1 - 0 <= 1) before step 0 has trained; step 2 only after it
    assert told.index(("generate", 1)) < told.index(("synced", 0)) < told.index(("generate", 2))


def test_a_wait_for_the_staleness_is_told_with_the_oldest_step_and_its_seconds() -> None:
    waits: list[tuple[int, int, float]] = []
    order = StepOrder(4, 1, waited=lambda *wait: waits.append(wait))
    run_steps(order, 4, 7, 0.001, 0.05)
    assert [(step, oldest) for step, oldest, _ in waits] == [(6, 4)]  # 5 may: 5 - 4 <= 1; 6 waits for step 4
    assert waits[0][2] > 0.01


def test_a_step_that_has_trained_before_lets_more_begin() -> None:
    order = StepOrder(4, 1, version=5)  # the update of step 4 is recorded
    with order.generating(4), pytest.raises(AssertionError):
        raise AssertionError  # whatever ends a generation ends it for the others too, by stop()
    order = StepOrder(4, 1, version=5)
    with order.generating(4):
        pass
    with order.generating(5):
        pass
    with order.generating(6):  # 6 - 5 <= 1
        order.wait_for_begin(6)
    assert order.version == 5


def test_stop_ends_every_wait_now_and_later() -> None:
    order, ended = StepOrder(0, 0), []

    def wait(which: str) -> None:
        with pytest.raises(Stopped):
            getattr(order, which)(1)
        ended.append(which)

    threads = [threading.Thread(target=wait, args=(which,)) for which in ("wait_for_begin", "wait_to_train")]
    for thread in threads:
        thread.start()
    order.stop()
    for thread in threads:
        thread.join(5)
    assert sorted(ended) == ["wait_for_begin", "wait_to_train"]
    with pytest.raises(Stopped):
        order.wait_for_begin(0)


def test_a_failed_turn_is_not_handed_on() -> None:
    order = StepOrder(0, 3)
    with pytest.raises(ValueError, match="no memory"), order.training(0):
        raise ValueError("no memory")
    got: list[str] = []

    def wait() -> None:
        with contextlib.suppress(Stopped):
            order.wait_to_train(1)
            got.append("a turn")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.05)
    order.stop()
    thread.join(5)
    assert got == []
