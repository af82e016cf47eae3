"""A host of reward processes without Ray: callers, leases, whose processes they are."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relax_core.rewards.host import Opening, RewardHost, Setting, machine
from relax_core.rewards.messages import CANCELLED, FunctionName, Packed, Question, Result, Task
from relax_core.rewards.process import Surroundings
from relax_core.rewards.types import RewardInput

FUNCTION = """
import os, time
def reward(sample):
    kind, _, value = sample.response.partition(" ")
    if kind == "hang":
        open(value, "w").write(str(os.getpid()))
        while True:
            time.sleep(1)
    if kind == "fail":
        raise KeyError
    if kind == "sleep":
        time.sleep(float(value))
    if kind == "colour":
        return float(os.environ.get("COLOUR", "-1"))
    if kind == "folder":
        return float(os.getcwd() == value)
    if kind == "path":
        return float("PATH" in os.environ)
    return float(os.getpid())
"""


@pytest.fixture(params=[60.0])
def host(request: pytest.FixtureRequest) -> Iterator[RewardHost]:
    """Its parameter is the lease, in seconds."""
    made = RewardHost(lease=request.param)
    yield made
    for pool in made._pools.values():
        pool.close()


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., list[Question]]:
    """Questions with these responses, at places 0, 1, ..."""
    path = tmp_path / "own.py"
    path.write_text(FUNCTION)
    name = FunctionName(f"{path}:reward", custom=True)

    def make(*responses: str) -> list[Question]:
        tasks = [Task(name, (RewardInput("s", "", response),), None, None) for response in responses]
        return [Question((place,), Packed.of(task, name), 60.0) for place, task in enumerate(tasks)]

    return make


def setting(client: str = "me", warm: bool = False, here: str = machine(), **environment: str) -> Setting:
    surroundings = Surroundings({**os.environ, **environment}, os.getcwd())
    return Setting(client, warm, 2, 60.0, {}, surroundings, here)


def answers(host: RewardHost, call: str, questions: list[Question], wanted: Setting | Opening) -> list[Result]:
    """All answers of a call, in order."""
    opening = Opening(wanted, False) if isinstance(wanted, Setting) else wanted
    found = dict(host.exchange(call, questions, 30.0, opening=opening) or [])
    while len(found) < len(questions):
        found |= dict(host.exchange(call, [], 30.0, last=True) or [])
    host.end(call)
    return [found[place] for place in range(len(questions))]


def score(result: Result) -> float | None:
    assert isinstance(result, list)
    return result[0].score


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def written(file: Path, host: RewardHost) -> int:
    """What the call "one" writes."""
    while not (file.exists() and file.read_text()):
        host.exchange("one", [], 0.02)
    return int(file.read_text())


def test_a_call_that_it_does_not_know_is_told(host: RewardHost, ask: Callable[..., list[Question]]) -> None:
    assert host.exchange("one", ask("pid"), 1.0) is None
    assert answers(host, "one", ask("pid"), setting())
    assert host.exchange("one", [], 1.0) is None  # it has ended


@pytest.mark.parametrize("host", [0.3], indirect=True)
def test_a_caller_that_is_silent_loses_its_calls(
    host: RewardHost, ask: Callable[..., list[Question]], tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    host.exchange("one", ask(f"hang {file}"), 0.0, opening=Opening(setting(), False))
    pid = written(file, host)
    assert gone(pid)
    assert host.exchange("one", [], 0.0) is None
    assert host.status() == {"pid": os.getpid(), "busy_with": None}


@pytest.mark.parametrize("host", [0.3], indirect=True)
def test_a_caller_that_asks_keeps_them(host: RewardHost, ask: Callable[..., list[Question]], tmp_path: Path) -> None:
    host.exchange("one", ask(f"hang {tmp_path / 'pid'}"), 0.0, opening=Opening(setting(), False))
    assert host.exchange("one", [], 2.0) == []  # much longer than the lease
    assert host.status()["busy_with"] == "1 callers"
    host.end("one")


def test_what_has_not_begun_is_cancelled_and_what_has_is_ended(
    host: RewardHost, ask: Callable[..., list[Question]], tmp_path: Path
) -> None:
    files = [tmp_path / str(number) for number in range(2)]
    questions = ask(*[f"hang {file}" for file in files], *["pid"] * 3)
    host.exchange("one", questions, 0.0, opening=Opening(setting(), False))
    pids = [written(file, host) for file in files]
    host.halt("one")
    cancelled = dict(host.exchange("one", [], 5.0) or [])
    assert set(cancelled) <= {2, 3, 4}  # one may have begun in the place of a call that hangs
    assert set(cancelled.values()) <= {CANCELLED}
    host.end("one")
    assert all(gone(pid) for pid in pids)
    assert score(answers(host, "two", ask("pid"), setting())[0])


def test_after_an_error_no_further_call_is_made_where_that_is_wanted(
    host: RewardHost, ask: Callable[..., list[Question]]
) -> None:
    found = answers(host, "one", ask("fail", *["sleep 0.05"] * 500), Opening(setting(), True))
    assert found.count(CANCELLED) > 400


def test_processes_see_what_their_caller_sees(
    host: RewardHost, ask: Callable[..., list[Question]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "1")  # of the host
    questions = ask("colour", f"folder {tmp_path}", "path")
    here = setting(COLOUR="2")
    there = setting(here="another machine", COLOUR="2")
    surroundings = Surroundings({"COLOUR": "3"}, str(tmp_path))
    assert [score(one) for one in answers(host, "one", questions, here)] == [2, 0, 1]
    assert score(answers(host, "two", questions, there)[0]) == 1  # the host's own goes first
    moved = Setting("me", False, 2, 60.0, {"COLOUR": "4"}, surroundings, machine())
    assert [score(one) for one in answers(host, "three", questions, moved)] == [4, 1, 0]


def test_only_built_in_rewards_leave_their_processes_to_other_clients() -> None:
    assert setting("one", warm=True).key() == setting("two", warm=True).key()
    assert setting("one").key() != setting("two").key()
    assert setting("one", warm=True).key() != setting("one", warm=True, COLOUR="2").key()


def test_processes_are_kept_for_the_client_and_ended_when_it_leaves_or_another_comes(
    host: RewardHost, ask: Callable[..., list[Question]]
) -> None:
    def pids(call: str, client: str) -> set[int]:
        return {int(score(one) or 0) for one in answers(host, call, ask(*["pid"] * 20), setting(client))}

    first = pids("1", "one") | pids("2", "one")
    assert len(first) <= 2
    second = pids("3", "two")
    assert not first & second
    assert all(gone(pid) for pid in first)
    host.leave("two")
    assert all(gone(pid) for pid in second)
