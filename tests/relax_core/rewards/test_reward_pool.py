"""Processes of reward functions: answers in order, hangs, crashes, ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from relax_core.rewards.custom import load_custom
from relax_core.rewards.messages import Ask, Asked, Failed, FunctionName, Lost, Task
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.pool import RewardPool
from relax_core.rewards.process import Worker
from relax_core.rewards.types import RewardInput

FUNCTION = """
import os, signal, sys, time, threading
def reward(sample):
    kind, _, value = sample.response.partition(" ")
    if kind == "hang":
        while True:
            pass
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "once" and not os.path.exists(value):
        open(value, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "once":
        return 1.0
    if kind == "exit":
        sys.exit(3)
    if kind == "fork" and os.fork() == 0:
        if value == "raise":
            raise KeyError("child")
        return 99.0
    if kind == "fork":
        os.wait(); return 1.0
    if kind == "disturb":  # a whole message that is none, or one of 1.8 GB of which no more comes
        for descriptor in range(3, 4096):  # it has the number that it has in the process of the tests
            try:
                os.write(descriptor, b"\\0\\0\\0\\5junk!" if value == "whole" else b"junk!")
            except OSError:
                pass
        return 1.0
    if kind == "close":
        os.closerange(3, 1 << 16); time.sleep(1000)
    if kind == "surrogate":
        raise ValueError("\\ud800")
    if kind == "sleep":
        time.sleep(float(value)); return 1.0
    if kind == "pid":
        return float(os.getpid())
    if kind == "child":
        import subprocess
        open(value, "w").write(str(subprocess.Popen(["sleep", "1000"]).pid))
        while True:
            pass
    print("to standard output")
    return float(value)
"""


@pytest.fixture
def task(tmp_path: Path) -> Callable[[str], Task]:
    path = tmp_path / "hang_reward.py"
    path.write_text(FUNCTION)
    name = FunctionName(f"{path}:reward", custom=True)
    return lambda response: Task(name, (RewardInput("s", "", response),), None, None)


def test_a_process_that_is_kept_runs_the_source_that_its_caller_has(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    with RewardPool(1, 30.0) as pool:
        for score in (1.0, 2.0, 1.0):
            path.write_text(f"def reward(sample):\n    return {score}\n")
            spec = load_custom(f"{path}:reward")
            task = Task(FunctionName.of(spec), (RewardInput("s", "", ""),), None, None)
            [[outcome]] = pool.run([task])
            assert outcome.score == score


@pytest.fixture
def pool() -> Iterator[RewardPool]:
    with RewardPool(2, 2.0) as pool:
        yield pool


def alive(pid: int) -> bool:
    """Whether a process runs (and is no zombie that somebody has yet to wait for)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    for _ in range(100):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False


def test_answers_come_in_the_order_of_the_tasks(pool: RewardPool, task: Callable[[str], Task]) -> None:
    tasks = [task(f"sleep {0.2 if i == 0 else 0}") if i % 2 == 0 else task(f"say {i}") for i in range(10)]
    scores = [result[0].score for result in pool.run(tasks)]  # type: ignore[index]
    assert scores == [1, 1, 1, 3, 1, 5, 1, 7, 1, 9]


def test_a_hang_and_a_crash_cost_their_own_samples_alone(pool: RewardPool, task: Callable[[str], Task]) -> None:
    answers = ["say 1", "hang", "say 2", "die", "say 3", "exit", "say 4"]
    results = pool.run([task(answer) for answer in answers])
    assert [result[0].score for result in results[::2]] == [1, 2, 3, 4]  # type: ignore[index]
    assert results[1] == Lost("timeout", "it took longer than 2 s")
    assert results[3] == Lost("crash", "the reward's process ended with signal 9")
    assert results[5] == Lost("crash", "the reward's process ended with status 3")
    assert pool.run([task("say 5")])[0][0].score == 5  # type: ignore[index]


def test_a_child_that_a_function_forks_gives_no_answer(task: Callable[[str], Task]) -> None:
    answers = ["fork return", "say 2", "fork raise", "say 3", "fork return", "say 4"]
    with RewardPool(1, 20.0) as pool:
        results = pool.run([task(answer) for answer in answers])
    assert [result[0].score for result in results] == [1, 2, 1, 3, 1, 4]  # type: ignore[index]


def test_an_answer_with_another_number_is_not_taken(task: Callable[[str], Task]) -> None:
    worker = Worker()
    assert worker.load(task("").function) is None
    worker._send(Ask(0, Asked(task("say 1").samples, None), None))  # nobody waits for its answer
    answer = worker.ask(task("say 2"), 20.0)
    worker.end()
    assert answer[0].score == 2  # type: ignore[index]


def test_a_process_that_closes_its_connection_and_lives_on_is_ended(task: Callable[[str], Task]) -> None:
    with RewardPool(1, 60.0) as pool:
        results = pool.run([task("close"), task("say 1")])
    assert results[0] == Lost("crash", "the reward's process closed or disturbed its connection")
    assert results[1][0].score == 1  # type: ignore[index]


@pytest.mark.parametrize("what", ["whole", "begin"])
def test_a_function_that_writes_into_the_connection_costs_its_own_sample_alone(
    task: Callable[[str], Task], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("relax_core.rewards.process.STALL_SECONDS", 1.0)
    with RewardPool(1, 60.0) as pool:
        results = pool.run([task(f"disturb {what}"), task("say 1")])
    assert results[0] == Lost("crash", "the reward's process closed or disturbed its connection")
    assert results[1][0].score == 1  # type: ignore[index]


def test_texts_that_are_no_utf8_are_made_valid(pool: RewardPool, task: Callable[[str], Task]) -> None:
    [result] = pool.run([task("surrogate")])
    assert isinstance(result, Failed)
    assert "ValueError: \\ud800" in result.problem
    outcome = Outcome(error="\ud800", components={"a\ud800": "b\ud800", "c": 1.0}, texts={"judge_output": "\ud800"})
    assert outcome == Outcome(
        error=r"\ud800", components={r"a\ud800": r"b\ud800", "c": 1.0}, texts={"judge_output": r"\ud800"}
    )
    for text in (result.problem, result.details, outcome.error):
        pa.array([text])


def test_while_one_hangs_the_others_are_scored_even_by_a_pool_of_one(task: Callable[[str], Task]) -> None:
    done: list[int] = []
    with RewardPool(1, 4.0) as pool:
        hanging = threading.Thread(target=lambda: done.append(len(pool.run([task("hang"), *[task("say 1")] * 9]))))
        hanging.start()
        assert [result[0].score for result in pool.run([task("say 2")] * 9)] == [2] * 9  # type: ignore[index]
        assert not done  # it hangs still
        hanging.join()
    assert done == [10]


def test_processes_are_kept_for_the_next_calls_and_their_number_is_bounded(task: Callable[[str], Task]) -> None:
    with RewardPool(2, 10.0) as pool:
        first = {result[0].score for result in pool.run([task("pid")] * 50)}  # type: ignore[index]
        again = {result[0].score for result in pool.run([task("pid")] * 50)}  # type: ignore[index]
    assert len(first | again) <= 2
    assert all(gone(int(pid or 0)) for pid in first | again)


def test_closing_ends_what_still_runs(task: Callable[[str], Task], tmp_path: Path) -> None:
    file = tmp_path / "pid"
    pool = RewardPool(1, 100.0)
    waiting = threading.Thread(target=lambda: pool.run([task(f"child {file}")]))
    waiting.start()
    while not (file.exists() and file.read_text()):
        time.sleep(0.05)
    pool.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert gone(int(file.read_text()))  # also what the function itself had started


def test_processes_end_with_a_killed_owner(task: Callable[[str], Task], tmp_path: Path) -> None:
    path = task("").function.name
    script = (
        "import sys; from relax_core.rewards.pool import RewardPool; "
        "from relax_core.rewards.messages import FunctionName, Task; from relax_core.rewards.types import RewardInput\n"
        f"name = FunctionName({path!r}, custom=True); pool = RewardPool(1, 100.0)\n"
        "ask = lambda text: pool.run([Task(name, (RewardInput('s', '', text),), None, None)])\n"
        "print(int(ask('pid')[0][0].score), flush=True); ask('hang')\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    time.sleep(0.5)
    assert alive(pid)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert gone(pid)


def test_a_function_that_cannot_be_loaded_is_told(pool: RewardPool, tmp_path: Path) -> None:
    name = FunctionName(f"{tmp_path}/none.py:reward", custom=True)
    [result] = pool.run([Task(name, (RewardInput("s", "", ""),), None, None)])
    assert isinstance(result, Failed)
    assert "none.py" in result.problem


def test_an_error_arrives_as_it_was_raised(pool: RewardPool, task: Callable[[str], Task]) -> None:
    [result] = pool.run([task("say x")])
    assert isinstance(result, Failed)
    assert "failed on sample s: ValueError: could not convert string to float: 'x'" in result.problem
    assert "return float(value)" in result.error().details


def test_after_an_error_that_ends_the_others_no_further_call_is_made(
    task: Callable[[str], Task], tmp_path: Path
) -> None:
    made = tmp_path / "made.py"
    made.write_text(
        "def reward(sample):\n    open(__file__ + sample.response, 'w').close()\n"
        "    if sample.response == '3':\n        raise KeyError('3')\n    return 1\n"
    )
    name = FunctionName(f"{made}:reward", custom=True)
    tasks = [Task(name, (RewardInput(f"s{i}", "", str(i)),), None, None) for i in range(200)]
    with RewardPool(1, 60.0) as pool:
        results = pool.run(tasks, until_failed=True)
        assert [result[0].score for result in results[:3]] == [1] * 3  # type: ignore[index]
        assert isinstance(results[3], Failed)
        assert pool.run([task("say 5")])[0][0].score == 5  # type: ignore[index]  # and what was in flight is over
    assert len(list(tmp_path.glob("made.py*"))) < 10


def test_a_call_whose_process_is_killed_from_outside_is_made_once_more(
    pool: RewardPool, task: Callable[[str], Task], tmp_path: Path
) -> None:
    results = pool.run([task("say 3"), task(f"once {tmp_path / 'a'}"), task(f"once {tmp_path / 'b'}"), task("die")])
    assert [result[0].score for result in results[:3] if isinstance(result, list)] == [3.0, 1.0, 1.0]
    assert results[3] == Lost("crash", "the reward's process ended with signal 9")  # it does so every time
