"""Coroutines from plain code: any thread, a running loop, first errors, context variables."""

import asyncio
import contextvars
import threading

import pytest

from relax_core import aio

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="nobody")


async def who() -> tuple[str, str]:
    await asyncio.sleep(0)
    return NAME.get(), threading.current_thread().name


def test_without_a_loop_it_runs_in_this_thread():
    assert aio.run(who()) == ("nobody", threading.current_thread().name)


def test_inside_a_loop_it_runs_beside_it_with_the_callers_context():
    async def main() -> tuple[str, str]:
        NAME.set("somebody")
        return aio.run(who())

    name, thread = asyncio.run(main())
    assert name == "somebody"
    assert thread == "relax-aio"


@pytest.mark.parametrize("inside", [False, True])
def test_a_result_is_not_printed(inside):
    class Long:
        def __repr__(self) -> str:
            raise AssertionError("printed")

    result = Long()

    async def give() -> Long:
        return result

    async def main() -> Long:
        return aio.run(give())

    assert (asyncio.run(main()) if inside else aio.run(give())) is result


@pytest.mark.parametrize("inside", [False, True])
def test_errors_come_through_as_they_are(inside):
    async def fail() -> None:
        raise KeyError("x")

    async def main() -> None:
        aio.run(fail())

    with pytest.raises(KeyError, match="x"):
        asyncio.run(main()) if inside else aio.run(fail())


def test_gather_keeps_the_order():
    async def value(i: int) -> int:
        await asyncio.sleep(0.001 * (5 - i))
        return i

    assert aio.run(aio.gather(value(i) for i in range(5))) == [0, 1, 2, 3, 4]


def test_gather_ends_the_rest_before_it_raises():
    ended = []

    async def work(i: int) -> None:
        if i == 2:
            raise ValueError(i)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(i)

    with pytest.raises(ValueError, match="2"):
        aio.run(aio.gather(work(i) for i in range(4)))
    assert sorted(ended) == [0, 1, 3]


@pytest.mark.parametrize("inside", [False, True])
def test_a_canceller_ends_what_runs_in_its_reach_now_and_later_and_nothing_else(inside):
    canceller, begun, ended = aio.Canceller(), threading.Event(), []

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        aio.run(wait())

    def work() -> None:
        with canceller.reaching():
            for _ in range(2):
                try:
                    asyncio.run(main()) if inside else aio.run(wait())
                except asyncio.CancelledError:
                    ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    canceller.cancel()
    thread.join(60)
    assert ended == [True, True]
    assert aio.run(who())[0] == "nobody"  # out of its reach
