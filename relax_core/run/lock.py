"""One driver a run.

Guarantee: a second driver of a run whose driver lives, on this machine or another, is refused with its name and the way
to take over; the claim of a driver that was killed holds nobody up for longer than its beats may be late. After a
takeover the former driver is refused at its next stage, and by every trainer at its next call.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from data.errors import UserError
from data.store import RunStore

CLAIM, BEAT = "driver.json", "driver-beat.json"

BEAT_SECONDS = 5.0
"""A driver tells in this interval that it lives."""

LATE_SECONDS = 20.0
"""How long a driver of another machine may be silent before it counts as dead; no clocks are compared for it."""

_END_SECONDS = 15.0


class Superseded(UserError):
    """Another driver has taken this run over."""


class Driven(UserError):
    """Another living process drives this run."""


class DriverLock:
    """The claim on a run, made on construction.

    Args:
        store: the run directory.
        takeover: claim the run of a living driver as well; one of this machine is ended first.
        say: receives one line for what is waited for.

    Raises:
        Driven: another living process drives the run.
    """

    claim_file, beat_file = CLAIM, BEAT

    def __init__(self, store: RunStore, takeover: bool = False, say: Callable[[str], None] = lambda text: None) -> None:
        self._store = store
        origin = {
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "created": psutil.Process().create_time(),
        }
        holder = store.read_json(self.claim_file)
        holder = holder if isinstance(holder, dict) else {}
        same = origin.items() <= holder.items()
        if "pid" in holder and not same and self._lives(holder, say):
            if not takeover:
                raise self._refused(holder)
            _end_local(holder, say)
        self._own: dict[str, Any] = {**origin, "epoch": _epoch(holder) + 1}
        store.write_json(self.claim_file, self._own)
        self.check()  # of two that start at once the last one has it; an object store allows no more than this
        self._ended = threading.Event()
        threading.Thread(target=self._beat, name="driver-beat", daemon=True).start()

    @property
    def epoch(self) -> int:
        """How many drivers the run has had, this one counted."""
        return int(self._own["epoch"])

    def check(self) -> None:
        """Call it before anything is begun.

        Raises:
            Superseded: the claim is another's.
        """
        holder = self._store.read_json(self.claim_file)
        if isinstance(holder, dict) and holder != self._own:
            raise Superseded(
                f"{_name(holder)} has taken over the run {self._store.url}; this process ends.",
                "Nothing is lost: the other one goes on from the last finished stage.",
            )

    def release(self) -> None:
        """Give it up, unless somebody else has it by now. Its number stays, so that no later claim has the same."""
        self._ended.set()
        if self._store.read_json(self.claim_file) == self._own:
            self._store.write_json(self.claim_file, {"epoch": self.epoch})

    def _beat(self) -> None:
        count = 0
        while not self._ended.is_set():
            with contextlib.suppress(UserError):  # the run itself will say so if its folder is gone
                holder = self._store.read_json(self.claim_file)
                if isinstance(holder, dict) and holder != self._own:
                    return
                self._store.write_json(self.beat_file, {"epoch": self.epoch, "count": count})
            count += 1
            self._ended.wait(BEAT_SECONDS)

    def _lives(self, holder: dict[str, Any], say: Callable[[str], None]) -> bool:
        if _is_here(holder):
            return _process(holder) is not None
        before = self._store.read_json(self.beat_file)
        if not isinstance(before, dict) or _epoch(before) != _epoch(holder):
            before = None  # it may have begun just now
        say(f"{_name(holder)} has driven this run: waiting up to {LATE_SECONDS:g} s for a sign of it")
        until = time.monotonic() + LATE_SECONDS
        while time.monotonic() < until:
            time.sleep(min(1.0, LATE_SECONDS / 4))
            now = self._store.read_json(self.beat_file)
            if isinstance(now, dict) and _epoch(now) == _epoch(holder) and now != before:
                return True
        return False

    def _refused(self, holder: dict[str, Any]) -> UserError:
        end = f"end it (`kill {holder['pid']}`)" if _is_here(holder) else "end it there"
        return Driven(
            f"{_name(holder)} drives the run {self._store.url} already.",
            f"Wait for it, or {end} and start again, or add --takeover, which takes the run from it: the run goes on.",
        )


class Evaluated(UserError):
    """Another process evaluates this run."""


class EvaluationLock(DriverLock):
    """The claim on the evaluation of a run, beside the driver's.

    Raises:
        Evaluated: another living process evaluates the run.
    """

    claim_file, beat_file = "evaluations/evaluator.json", "evaluations/evaluator-beat.json"

    def _refused(self, holder: dict[str, Any]) -> UserError:
        return Evaluated(
            f"{_name(holder)} evaluates the run {self._store.url} already.", "Wait for it, and start again."
        )


def _machine() -> str:
    """Where a process id means something: this machine since it was started, and there the container. Names of hosts
    do not tell: containers that use the host's network share its name, and machines may be called the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _is_here(holder: dict[str, Any]) -> bool:
    if "machine" in holder:
        return bool(holder["machine"] == _machine())
    return bool(holder.get("host") == socket.gethostname())  # of an earlier version


def _name(holder: dict[str, Any]) -> str:
    where = "" if _is_here(holder) else f" on {holder.get('host')}"
    return f"Process {holder.get('pid')}{where}"


def _epoch(claim: dict[str, Any]) -> int:
    number = claim.get("epoch")
    return number if isinstance(number, int) else 0


def _process(holder: dict[str, Any]) -> psutil.Process | None:
    """The living process of a claim of this machine."""
    try:
        process = psutil.Process(int(holder["pid"]))
        alive = process.status() != psutil.STATUS_ZOMBIE
        return process if alive and abs(process.create_time() - float(holder["created"])) < 1 else None
    except (psutil.Error, KeyError, TypeError, ValueError):
        return None


def _end_local(holder: dict[str, Any], say: Callable[[str], None]) -> None:
    """End a driver of this machine; one of another finds out by itself."""
    process = _process(holder) if _is_here(holder) else None
    if process is None:
        return
    say(f"ending process {process.pid}, which drives this run")
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_SECONDS)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(_END_SECONDS)
