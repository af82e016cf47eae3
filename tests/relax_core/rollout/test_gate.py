"""The door between generation and the engines."""

import asyncio
import threading
import time

import pytest

from data.errors import UserError
from relax_core.rollout.gate import Gate


def test_nothing_is_in_flight_while_the_gate_is_closed_and_all_requests_end():
    # 3 threads with event loops of their own, 4 requests each, of 5 rounds: 60 passages in all.
    gate, passed, violations = Gate(), [], []
    inside, changing = set(), threading.Event()
    ended = threading.Event()

    async def request(name: int) -> None:
        for number in range(5):
            async with gate.passage():
                inside.add(name)
                if changing.is_set():
                    violations.append(name)
                ended.clear()
                for _ in range(20):  # an engine's answer, sooner when it is told to end
                    if ended.is_set():
                        break
                    await asyncio.sleep(0.002)
                inside.discard(name)
            passed.append((name, number))

    async def several(base: int) -> None:
        await asyncio.gather(*(request(base + k) for k in range(4)))

    threads = [threading.Thread(target=lambda b=base: asyncio.run(several(b))) for base in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        with gate.closed(ended.set):
            changing.set()
            if inside:
                violations.append(set(inside))
            time.sleep(0.01)
            changing.clear()
        time.sleep(0.005)
    for thread in threads:
        thread.join(30)
    assert not violations
    assert len(passed) == len(set(passed)) == 60
    assert gate.count == 6
    assert gate.inside == 0


def test_a_request_that_just_left_is_interrupted_by_a_later_call():
    gate, calls, told = Gate(), [], threading.Event()

    def interrupt() -> None:
        calls.append(len(calls))
        if len(calls) == 2:  # the engine knows the request only now
            told.set()

    async def request() -> None:
        async with gate.passage():
            while not told.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(request()))
    thread.start()
    while not gate.inside:
        time.sleep(0.01)
    with gate.closed(interrupt):
        assert calls == [0, 1]
    thread.join(10)


def test_requests_that_never_end_are_an_error_and_the_gate_opens_again():
    gate, done = Gate(patience=0.1), threading.Event()

    async def request() -> None:
        async with gate.passage():
            while not done.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(request()))
    thread.start()
    while not gate.inside:
        time.sleep(0.01)
    with pytest.raises(UserError, match="1 requests have not ended"), gate.closed(lambda: None):
        pass
    done.set()
    thread.join(10)

    async def another() -> bool:
        async with gate.passage():
            return True

    assert asyncio.run(another())


def test_an_error_inside_opens_the_gate():
    gate = Gate()
    with pytest.raises(RuntimeError), gate.closed(lambda: None):
        raise RuntimeError("the push failed")

    async def request() -> bool:
        async with gate.passage():
            return True

    assert asyncio.run(request())


def test_a_request_knows_how_often_the_gate_had_been_closed_when_it_went_in():
    gate = Gate()

    async def request() -> tuple[int, int]:
        async with gate.passage() as before:
            done = asyncio.Event()
            loop = asyncio.get_running_loop()

            def close() -> None:
                with gate.closed(lambda: loop.call_soon_threadsafe(done.set)):
                    pass

            thread = threading.Thread(target=close)
            thread.start()
            await done.wait()
            after = gate.count
        thread.join(30)
        return before, after

    assert asyncio.run(request()) == (0, 1)
    assert asyncio.run(request()) == (1, 2)
