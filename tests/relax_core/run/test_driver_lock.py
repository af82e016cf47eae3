"""The claim on a run: who is refused, who is let in, who finds out that the run is another's by now."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.errors import UserError
from data.store import RunStore
from relax_core.run import lock
from relax_core.run.lock import BEAT, CLAIM, DriverLock, Superseded


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(str(tmp_path))


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def claim(process: subprocess.Popen[bytes], epoch: int = 4) -> dict[str, Any]:
    created = psutil.Process(process.pid).create_time()
    where = {"host": socket.gethostname(), "machine": lock._machine()}
    return {**where, "pid": process.pid, "created": created, "epoch": epoch}


def test_a_living_driver_of_this_machine_keeps_the_run(store: RunStore, other: subprocess.Popen[bytes]) -> None:
    store.write_json(CLAIM, claim(other))
    with pytest.raises(UserError, match=f"Process {other.pid} drives the run .* already") as refused:
        DriverLock(store)
    assert "--takeover" in str(refused.value)
    assert store.read_json(CLAIM) == claim(other)


@pytest.mark.parametrize("wrong", [{"created": 1.0}, {"pid": 0}, {"pid": "x"}, {"created": None}])
def test_a_claim_of_no_living_process_holds_nobody_up(
    store: RunStore, other: subprocess.Popen[bytes], wrong: dict[str, Any]
) -> None:
    store.write_json(CLAIM, {**claim(other), **wrong})
    driver = DriverLock(store)
    assert driver.epoch == 5
    driver.release()


def test_a_claim_that_is_no_claim_holds_nobody_up(store: RunStore) -> None:
    for content in ("[]", "{", '{"epoch": "x"}'):
        store.write_bytes(CLAIM, content.encode())
        DriverLock(store).release()
    assert store.read_json(CLAIM) == {"epoch": 1}


def test_a_takeover_ends_the_driver_of_this_machine(store: RunStore, other: subprocess.Popen[bytes]) -> None:
    store.write_json(CLAIM, claim(other))
    told: list[str] = []
    driver = DriverLock(store, takeover=True, say=told.append)
    assert not psutil.pid_exists(other.pid)
    assert told == [f"ending process {other.pid}, which drives this run"]
    driver.check()
    driver.release()


def test_a_superseded_driver_is_refused_and_takes_nothing_back(store: RunStore) -> None:
    first = DriverLock(store)
    first.check()
    second = DriverLock(store)  # of the same process here; of another one in earnest
    with pytest.raises(Superseded, match=f"Process {os.getpid()} .*has taken over the run"):
        first.check()
    first.release()
    second.check()
    second.release()
    with pytest.raises(Superseded):  # it may wake up long after the other one has ended
        first.check()
    assert DriverLock(store).epoch == 3


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LATE_SECONDS", 2.0)


FAR = {"host": "far-away", "pid": 7, "created": 1.0, "epoch": 2}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("before", [None, {"epoch": 1, "count": 9}, {"epoch": 2, "count": 3}])
def test_a_silent_driver_of_another_machine_holds_nobody_up_for_long(store: RunStore, before: Any) -> None:
    store.write_json(CLAIM, FAR)
    if before:
        store.write_json(BEAT, before)
    told: list[str] = []
    driver = DriverLock(store, say=told.append)
    assert driver.epoch == 3
    assert "Process 7 on far-away has driven this run: waiting" in told[0]
    driver.release()


@pytest.mark.usefixtures("quick")
def test_a_driver_in_another_container_of_the_same_host_name_keeps_the_run(store: RunStore) -> None:
    """Its process id means nothing here: only its beats tell that it lives."""
    store.write_json(CLAIM, {**FAR, "host": socket.gethostname(), "machine": "boot pid:[1]"})
    far = threading.Timer(0.3, lambda: store.write_json(BEAT, {"epoch": 2, "count": 4}))
    far.start()
    with pytest.raises(UserError, match=r"Process 7 on .* drives the run .* already"):
        DriverLock(store)
    far.join()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("takeover", [False, True])
def test_a_driver_of_another_machine_that_gives_signs_of_life_keeps_the_run(store: RunStore, takeover: bool) -> None:
    store.write_json(CLAIM, FAR)
    store.write_json(BEAT, {"epoch": 2, "count": 3})
    far = threading.Timer(0.3, lambda: store.write_json(BEAT, {"epoch": 2, "count": 4}))
    far.start()
    if takeover:
        DriverLock(store, takeover=True).release()
    else:
        with pytest.raises(UserError, match="Process 7 on far-away drives the run"):
            DriverLock(store)
    far.join()


def test_a_driver_gives_signs_of_life_until_the_run_is_not_its_own(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.02)
    driver = DriverLock(store)

    def beats() -> int:
        return int((store.read_json(BEAT) or {"count": -1})["count"])

    def within_seconds(fulfilled: Any) -> bool:
        until = time.monotonic() + 10
        while not fulfilled() and time.monotonic() < until:
            time.sleep(0.01)
        return bool(fulfilled())

    assert within_seconds(lambda: beats() >= 2)
    store.write_json(CLAIM, FAR)
    ended = [thread for thread in threading.enumerate() if thread.name == "driver-beat"]
    assert within_seconds(lambda: not ended[-1].is_alive())
    driver.release()
    assert store.read_json(CLAIM) == FAR
