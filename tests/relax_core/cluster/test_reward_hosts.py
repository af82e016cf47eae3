"""Reward processes below Ray actors: as the pool of one process, and what a host that is killed costs."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray

from relax_core.cluster import reward_hosts
from relax_core.cluster.actors import find, kill, named
from relax_core.cluster.backend import RayBackend
from relax_core.cluster.reward_hosts import RayRewardPool
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.messages import Asked, Batch, Failed, FunctionName, Lost, Result, Task
from relax_core.rewards.pool import RewardPool
from relax_core.rewards.types import RewardInput

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_head")]

RUN = "hosts-test"

FUNCTION = """
import asyncio, os, signal, time

def note(sample, text):
    with open(os.path.dirname(__file__) + "/" + text, "a") as file:
        file.write(sample.sample_id + "\\n")

def reward(sample):
    kind, _, value = sample.response.partition(" ")
    note(sample, "begun")
    if kind == "hang":
        while True:
            time.sleep(1)
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "host":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    if kind == "fail":
        raise KeyError(value)
    if kind == "sleep":
        time.sleep(float(value))
    note(sample, "done")
    return float(os.getpid()) if kind == "pid" else float(os.environ["COLOUR"]) if kind == "colour" else len(value)

async def later(sample):
    kind, _, value = sample.response.partition(" ")
    note(sample, "begun")
    if kind == "sleep":
        await asyncio.sleep(float(value))
    if kind == "block":
        time.sleep(1000)
    if kind == "fail":
        raise KeyError(value)
    note(sample, "done")
    return len(value)
"""

Ask = Callable[..., list[Task]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(FUNCTION)
    return tmp_path


@pytest.fixture
def ask(folder: Path) -> Ask:
    name = FunctionName(f"{folder}/own.py:reward", custom=True)

    def make(*responses: str) -> list[Task]:
        return [Task(name, (RewardInput(f"s{i}", "", text),), None, None) for i, text in enumerate(responses)]

    return make


@pytest.fixture
def batch(folder: Path) -> Callable[..., Batch]:
    name = FunctionName(f"{folder}/own.py:later", custom=True)

    def make(*responses: str, seconds: float = 60.0, until_failed: bool = False) -> Batch:
        calls = tuple(Asked((RewardInput(f"s{i}", "", text),), None) for i, text in enumerate(responses))
        return Batch(name, calls, None, 16, seconds, until_failed)

    return make


@pytest.fixture
def pool() -> Iterator[RayRewardPool]:
    made = RayRewardPool(RUN, 2, 3.0, {})
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def no_host_is_left(ray_head: str) -> Iterator[None]:
    yield
    for name in named(f"{RUN}."):
        kill(name)


def host_pid() -> int:
    return int(ray.get(find(f"{RUN}.rewards-0").status.remote())["pid"])  # type: ignore[union-attr]


def said(results: Sequence[Result]) -> list[Any]:
    """The score of each call, or what became of it."""
    return [
        one[0].score if isinstance(one, list) else one.problem if isinstance(one, Failed) else one for one in results
    ]


def lines(folder: Path, name: str) -> Counter[str]:
    file = folder / name
    return Counter(file.read_text().split()) if file.exists() else Counter()


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def children(pid: int) -> set[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "relax_core.rewards.worker"], capture_output=True, text=True)
    return {int(each) for each in found.stdout.split()}


def test_results_are_those_of_the_pool_of_one_process(
    pool: RayRewardPool, ask: Ask, batch: Callable[..., Batch]
) -> None:
    tasks = ask(*["say " + "x" * n for n in range(40)], "fail k", "hang", "die", *["sleep 0.01"] * 5)
    together = batch(*["sleep 0.1"] * 20, "say xyz", "fail k", "block", seconds=1.0)
    with RewardPool(2, 3.0) as local:
        assert said(pool.run(tasks)) == said(local.run(tasks))
        assert said(pool.run(tasks[:3], [1.0] * 3)) == [0, 1, 2]
        assert said(pool.run_batch(together)) == said(local.run_batch(together))
    assert pool.run([]) == []


def test_a_host_that_is_killed_is_replaced_and_only_what_it_had_not_answered_is_asked_again(
    pool: RayRewardPool, ask: Ask, folder: Path
) -> None:
    pool.run(ask("say"))
    pid, done = host_pid(), []
    workers = children(pid)
    tasks = ask(*["sleep 0.05"] * 60)
    waiting = threading.Thread(target=lambda: done.append(pool.run(tasks)))
    waiting.start()
    while sum(lines(folder, "done").values()) < 20:
        time.sleep(0.02)
    workers |= children(pid)
    os.kill(pid, signal.SIGKILL)
    waiting.join(120)
    assert said(done[0]) == [4] * 60
    assert workers
    assert all(gone(worker) for worker in workers)
    assert host_pid() != pid
    made = lines(folder, "done") - Counter(s0=1)  # the first call above was for the same id
    assert len(made) == 60
    # two processes, and answers that the driver did not have yet
    assert sum(made.values()) - 60 <= 6


def test_coroutines_go_on_after_the_host_was_killed(
    pool: RayRewardPool, batch: Callable[..., Batch], folder: Path, ask: Ask
) -> None:
    pool.run(ask("say"))
    (folder / "done").unlink()
    pid, done = host_pid(), []
    together = batch(*["sleep 0.2"] * 64)  # sixteen at a time
    waiting = threading.Thread(target=lambda: done.append(pool.run_batch(together)))
    waiting.start()
    while sum(lines(folder, "done").values()) < 32:
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    waiting.join(120)
    assert said(done[0]) == [3] * 64
    assert sum(lines(folder, "done").values()) - 64 <= 32


def test_a_call_that_kills_its_host_is_lost_alone(pool: RayRewardPool, ask: Ask) -> None:
    results = pool.run(ask("say x", "host", "say xy"))
    assert said(results)[::2] == [1, 2]
    assert results[1] == Lost("crash", "the process that keeps those of rewards died with it 3 times")


def test_after_an_error_that_ends_the_others_no_further_call_is_made(
    pool: RayRewardPool, ask: Ask, batch: Callable[..., Batch], folder: Path
) -> None:
    results = pool.run(ask("say x", "fail k", *["sleep 0.1"] * 500), until_failed=True)
    assert said(results)[0] == 1
    assert isinstance(results[1], Failed)
    assert sum(lines(folder, "begun").values()) < 100
    results = pool.run_batch(batch("fail k", *["sleep 1000"] * 40, until_failed=True))
    assert isinstance(results[0], Failed)
    assert said(pool.run(ask("say xyz"))) == [3]


def test_threads_and_drivers_call_at_once_and_find_the_same_host(ask: Ask) -> None:
    pools = [RayRewardPool(RUN, 2, 60.0, {"COLOUR": str(number)}) for number in range(2)]
    found: dict[int, list[Any]] = {}

    def call(number: int) -> None:
        tasks = ask(*["colour"] * 30, *["say " + "x" * number] * 30)
        found[number] = said(pools[number % 2].run(tasks))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {number: [number % 2] * 30 + [number] * 30 for number in range(8)}
    pid = host_pid()
    pools[0].close()
    assert said(pools[1].run(ask("colour"))) == [1]
    with pytest.raises(RuntimeError, match="the pool is closed"):
        pools[0].run(ask("colour"))
    third = RayRewardPool(RUN, 2, 60.0, {"COLOUR": "3"})
    assert said(third.run(ask("colour"))) == [3]
    assert host_pid() == pid
    third.close()
    pools[1].close()


DRIVER = """
import sys
from relax_core.cluster import reward_hosts
from relax_core.cluster.head import connected
from relax_core.cluster.reward_hosts import RayRewardPool
from relax_core.rewards.messages import FunctionName, Task
from relax_core.rewards.types import RewardInput

with connected():
    run, path, code, *texts = sys.argv[1:]
    reward_hosts.code_hash = lambda: code
    pool = RayRewardPool(run, 2, 1000.0, {})
    name = FunctionName(path, custom=True)
    pool.run([Task(name, (RewardInput(f"s{i}", "", text),), None, None) for i, text in enumerate(texts)])
"""


def test_what_a_killed_driver_has_left_does_not_stop_another(pool: RayRewardPool, ask: Ask, folder: Path) -> None:
    pool.run(ask("say"))
    pid = host_pid()
    arguments = [RUN, f"{folder}/own.py:reward", reward_hosts.code_hash(), *["sleep 0.5", "hang"] * 40]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments])
    while not lines(folder, "begun")["s1"]:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    assert said(pool.run(ask("say x"))) == [1]
    assert host_pid() == pid


def test_closing_ends_what_still_runs(ask: Ask, folder: Path) -> None:
    kill(f"{RUN}.rewards-0")  # it may have calls of the test before
    pool, done = RayRewardPool(RUN, 2, 1000.0, {}), []
    waiting = threading.Thread(target=lambda: done.append(pool.run(ask("hang", "hang"))))
    waiting.start()
    while sum(lines(folder, "begun").values()) < 2:
        time.sleep(0.05)
    workers = children(host_pid())
    assert len(workers) >= 2
    pool.close()
    waiting.join(30)
    assert said(done[0]) == [Lost("crash", "it was cancelled")] * 2
    assert all(gone(worker) for worker in workers)


def test_a_host_that_does_not_answer_is_replaced(ask: Ask) -> None:
    pool = RayRewardPool(RUN, 2, 60.0, {}, silent=3.0)
    pool.run(ask("say"))
    pid = host_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert said(pool.run(ask("say x"))) == [1]
    finally:
        pool.close()
    assert gone(pid)


def test_a_host_of_another_source_is_replaced(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    first = RayRewardPool(RUN, 2, 60.0, {})
    first.run(ask("say"))
    pid = host_pid()
    monkeypatch.setattr(reward_hosts, "code_hash", lambda: "edited")
    second = RayRewardPool(RUN, 2, 60.0, {})
    assert said(second.run(ask("say x"))) == [1]
    assert host_pid() != pid
    assert said(first.run(ask("say xy"))) == [2]  # finds that its own is gone


def test_the_backend_uses_hosts_where_engines_live_and_ends_them_with_the_run(ask: Ask, tmp_path: Path) -> None:
    variables = tmp_path / "env.yaml"
    variables.write_text("env_vars:\n  COLOUR: '5'\n")
    config = with_options(RelaxConfig(), {"run_dir": str(tmp_path / "run"), "env_file": str(variables)})
    backend = RayBackend(config, RUN)
    alone = backend.reward_pool(2, 60.0, {})
    assert isinstance(alone, RewardPool)
    alone.close()
    backend.connect()
    pool = backend.reward_pool(2, 60.0, {})
    assert said(pool.run(ask("colour"))) == [5]
    assert named(f"{RUN}.rewards-")
    pool.close()
    backend.release()
    assert not named(f"{RUN}.")


def test_the_process_of_a_host_imports_nothing_heavy() -> None:
    code = (
        "import sys, relax_core.cluster.reward_hosts; "
        "print(sorted({'torch', 'transformers', 'megatron', 'sglang', 'prefect', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
