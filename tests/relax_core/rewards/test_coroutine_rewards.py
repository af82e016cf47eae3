"""Coroutine functions of the user in a process: order, limits, what blocks, crashes, errors."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from relax_core.rewards.board import At, Board
from relax_core.rewards.messages import Asked, Batch, Failed, FunctionName, Lost
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.pool import RewardPool
from relax_core.rewards.process import Worker
from relax_core.rewards.types import RewardInput

FUNCTION = """
import asyncio, os, sys, threading, time
running = most = 0

class Base(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise RuntimeError

async def reward(sample):
    global running, most
    kind, _, value = sample.response.partition(" ")
    if kind == "block":
        time.sleep(1000)
    if kind == "spin":
        await asyncio.sleep(0.01)
        while True:
            pass
    if kind == "child":
        await asyncio.create_task(block())
    if kind == "deaf":
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass
    if kind == "die":
        await asyncio.sleep(0)
        os._exit(3)
    if kind == "once" and not os.path.exists(value):
        open(value, "w").close()
        os.kill(os.getpid(), 9)
    if kind == "exit":
        sys.exit(4)
    if kind == "behind":
        threading.Thread(target=lambda: (time.sleep(0.3), os._exit(5))).start()
        await asyncio.sleep(1000)
    if kind == "fail":
        raise KeyError(value)
    if kind == "base":
        raise {"own": Base, "generator": GeneratorExit, "mute": Mute}[value]
    if kind == "fork" and os.fork() == 0:
        if value == "wait":
            await asyncio.sleep(0.1)
        return 99.0
    if kind == "fork":
        os.wait()
    if kind == "cancel":
        raise asyncio.CancelledError
    running += 1
    most = max(most, running)
    try:
        if kind == "sleep":
            await asyncio.sleep(float(value))
    except asyncio.CancelledError:
        with open(__file__ + ".cancelled", "a") as file:
            file.write(sample.response + ";")
        raise
    finally:
        running -= 1
    return {"say": lambda: float(value), "most": lambda: most, "pid": os.getpid}.get(kind, lambda: 1.0)()

async def block():
    time.sleep(1000)
"""

Make = Callable[..., Batch]


@pytest.fixture
def batch(tmp_path: Path) -> Make:
    """Calls with these responses."""
    path = tmp_path / "reward.py"
    path.write_text(FUNCTION)
    name = FunctionName(f"{path}:reward", custom=True)

    def make(*responses: str, concurrency: int = 64, seconds: float = 1.0, until_failed: bool = False) -> Batch:
        calls = tuple(Asked((RewardInput(f"s{i}", "", text),), None) for i, text in enumerate(responses))
        return Batch(name, calls, None, concurrency, seconds, until_failed)

    return make


@pytest.fixture
def pool() -> Iterator[RewardPool]:
    with RewardPool(2, 60.0) as pool:
        yield pool


def scores(results: list[list[Outcome] | Failed | Lost]) -> list[float | str | None]:
    """The score of each call; the kind of loss where it gave none."""
    return [
        one[0].score if isinstance(one, list) else one.kind if isinstance(one, Lost) else "error" for one in results
    ]


def test_calls_overlap_and_answers_keep_their_order(pool: RewardPool, batch: Make) -> None:
    results = pool.run_batch(batch("sleep 0.3", *[f"say {i}" for i in range(50)], "most", seconds=20.0))
    assert scores(results) == [1.0, *range(50), 2.0]  # the last one runs beside the first


def test_no_more_run_at_once_than_allowed(pool: RewardPool, batch: Make) -> None:
    assert scores(pool.run_batch(batch(*["sleep 0.01"] * 9, "most", concurrency=3, seconds=20.0)))[-1] == 3


def test_a_call_that_is_late_is_lost_alone(pool: RewardPool, batch: Make) -> None:
    results = pool.run_batch(batch("sleep 1000", "say 1", "say 2", concurrency=1))
    assert results[0] == Lost("timeout", "it took longer than 1 s")
    assert scores(results) == ["timeout", 1, 2]


@pytest.mark.parametrize(
    ("kind", "lost"), [("block", "timeout"), ("spin", "timeout"), ("die", "crash"), ("exit", "crash")]
)
def test_of_calls_that_run_together_the_one_that_blocks_or_ends_the_process_is_lost_alone(
    pool: RewardPool, batch: Make, kind: str, lost: str
) -> None:
    results = pool.run_batch(batch("sleep 0.5", "say 1", kind, "sleep 0.2", "say 2"))
    assert scores(results) == [1, 1, lost, 1, 2]
    if lost == "crash":
        status = {"die": 3, "exit": 4}[kind]
        assert results[2] == Lost("crash", f"the reward's process ended with status {status}")


def test_several_that_block_cost_a_limit_each(pool: RewardPool, batch: Make) -> None:
    assert scores(pool.run_batch(batch("block", "say 1", "spin", "say 2"))) == ["timeout", 1, "timeout", 2]


@pytest.mark.parametrize(("kind", "lost"), [("child", "timeout"), ("behind", "crash")])
def test_where_it_cannot_be_known_which_one_it_was_those_that_ran_are_lost(
    pool: RewardPool, batch: Make, kind: str, lost: str
) -> None:
    results = pool.run_batch(batch("say 1", "sleep 0.9", kind, "say 2", "say 3", concurrency=2))
    assert scores(results) == [1, results[1][0].score if isinstance(results[1], list) else lost, lost, 2, 3]


def test_a_call_that_refuses_to_be_cancelled_is_lost_and_so_is_its_process(pool: RewardPool, batch: Make) -> None:
    [first] = scores(pool.run_batch(batch("pid")))
    assert scores(pool.run_batch(batch("deaf", "say 1"))) == ["timeout", 1]
    [second] = scores(pool.run_batch(batch("pid")))
    assert first != second


def test_the_process_and_its_event_loop_are_kept_for_the_next_calls(pool: RewardPool, batch: Make) -> None:
    assert len({score for _ in range(3) for score in scores(pool.run_batch(batch("pid", "pid")))}) == 1


def test_an_error_is_told_and_the_others_go_on_unless_it_is_to_end_them(
    pool: RewardPool, batch: Make, tmp_path: Path
) -> None:
    results = pool.run_batch(batch("say 1", "fail k", "say 2"))
    assert scores(results) == [1, "error", 2]
    assert isinstance(results[1], Failed)
    assert "failed on sample s1: KeyError: 'k'" in results[1].problem
    assert "raise KeyError(value)" in results[1].details
    stopped = batch("sleep 500", "fail k", "sleep 500", "sleep 500", concurrency=3, seconds=600.0, until_failed=True)
    assert scores(pool.run_batch(stopped)) == ["crash", "error", "crash", "crash"]
    cancelled = (tmp_path / "reward.py.cancelled").read_text().split(";")
    assert sorted(filter(None, cancelled)) == ["sleep 500", "sleep 500"]  # the fourth had not begun


def test_a_function_that_cancels_itself_is_no_hang(pool: RewardPool, batch: Make) -> None:
    assert scores(pool.run_batch(batch("cancel", "say 1"))) == ["crash", 1]


@pytest.mark.parametrize("until_failed", [False, True])
def test_an_error_that_is_no_exception_is_told_once(pool: RewardPool, batch: Make, until_failed: bool) -> None:
    asked = batch("base own", "sleep 0.2", "base generator", "say 1", seconds=20.0, until_failed=until_failed)
    results = pool.run_batch(asked)
    assert scores(results) == ["crash", 1, "crash", 1]
    assert [results[0], results[2]] == [Lost("crash", f"it ended with {name}") for name in ("Base", "GeneratorExit")]


def test_an_error_without_a_text_is_told(pool: RewardPool, batch: Make) -> None:
    results = pool.run_batch(batch("base mute", "say 1", seconds=20.0))
    assert scores(results) == ["error", 1]
    assert isinstance(results[0], Failed)
    assert "failed on sample s0: Mute: its text cannot be read" in results[0].problem


@pytest.mark.parametrize("kept", [True, False])
def test_a_batch_without_progress_is_not_asked_again(
    pool: RewardPool, batch: Make, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    asked: list[Sequence[int]] = []
    monkeypatch.setattr(Worker, "ask_many", lambda _, batch, places, results: bool(asked.append(places)) or kept)
    assert pool.run_batch(batch("say 1", "say 2")) == [Lost("crash", "it gave no answer")] * 2
    assert len(asked) == 1


def test_a_child_that_a_function_forks_gives_no_answer(pool: RewardPool, batch: Make) -> None:
    results = pool.run_batch(batch("fork return", "say 2", "fork wait", "sleep 0.2", "say 3", seconds=20.0))
    assert scores(results) == [1, 2, 1, 1, 3]


def test_a_function_that_cannot_be_loaded_is_told_for_every_call(pool: RewardPool, tmp_path: Path) -> None:
    calls = tuple(Asked((RewardInput("s", "", ""),), None) for _ in range(2))
    results = pool.run_batch(Batch(FunctionName(f"{tmp_path}/none.py:reward", custom=True), calls, None, 1, 1.0, False))
    assert all(isinstance(one, Failed) and "none.py" in one.problem for one in results)


def test_the_board_is_the_same_for_both_processes(tmp_path: Path) -> None:
    mine = Board()
    theirs = Board(mine.descriptor)
    assert mine.read() is None
    theirs.enter(3)
    at = mine.read()
    assert at is not None
    assert at.place == 3
    theirs.leave()
    assert mine.read() is None
    mine.close()


def test_a_number_is_never_seen_with_the_time_of_an_earlier_one() -> None:
    mine, begin = Board(), time.monotonic()
    child = os.fork()
    if child == 0:
        theirs = Board(mine.descriptor)
        while True:
            theirs.enter(3)
            theirs.leave()
    try:
        seen: list[At] = []
        while len(seen) < 20_000 and time.monotonic() < begin + 60:
            seen += [at for _ in range(20_000) if (at := mine.read()) is not None]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen
    assert {at.place for at in seen} == {3}
    assert min(at.since for at in seen) >= begin
    mine.close()


def test_coroutines_whose_process_is_killed_from_outside_are_called_once_more(
    pool: RewardPool, batch: Make, tmp_path: Path
) -> None:
    results = pool.run_batch(batch("say 1", f"once {tmp_path / 'a'}", "say 2"))
    assert scores(results) == [1, 1, 2]
