"""A driver that is started again when it dies (--use-health-check).

Guarantee: the driver is started again after a death, a hang, or the loss of something that it needs, at most
``--max-global-restart`` times, and each time goes on with the same run; never after a mistake of the user, never after
Ctrl-C or SIGTERM, which reach it once and keep their exit codes. Whoever watches imports nothing heavy before that.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from flows.cli.stop import say_stopped
from flows.restarts import Restarts
from relax_core import signs
from relax_core.config import RelaxConfig

HANG_SECONDS = 120.0
"""A driver that gives no sign for so long, and computes nothing either, hangs."""

START_SECONDS = 600.0
"""The same before its first sign: imports from a slow disk."""

BUSY_SHARE = 0.02
"""Of a core: a driver that needs more than this computes. The threads of Ray and Prefect alone need 0.002."""

_TRACE_SECONDS = 1.0

_PAUSE_SECONDS = 1.0
"""Between two looks at a driver; if more has passed, this process stood still (Ctrl-Z, a frozen container), and the
driver with it."""

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Whoever sends one of these wants an end."""


def supervise(command: Sequence[str], config: RelaxConfig) -> int:
    """Run a driver as a child process until it has ended for good; in the main thread of a process that does nothing
    else.

    Args:
        command: of the driver; it calls ``signs.adopt``.
        config: the run's options.

    Returns:
        Its exit code.

    Raises:
        RestartsUsedUp: it failed too often.
    """
    restarts = Restarts(config)
    with _Signals() as signals:
        while True:
            child = _Driver(command, len(restarts.reasons), signals)
            cause = child.watch(restarts.went_on)
            if signals.seen and not child.was_stopped and child.exit_code:
                return _stopped(signals.seen[0])  # it died of the signal, or before it could end in order
            if signals.seen or child.was_stopped or cause is None:
                return child.exit_code
            pause = time.monotonic() + restarts.next(cause)
            while time.monotonic() < pause and not signals.seen:
                time.sleep(0.1)
            if signals.seen:
                return _stopped(signals.seen[0])


class _Signals:
    """What asks this process to end, or to pause, is passed on to the driver, which has a process group of its own: a
    terminal's Ctrl-C reaches it once, like one that is sent to this process alone."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.driver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "_Signals":
        signal.set_wakeup_fd(-1)  # the limit of flows.cli.stop is the driver's
        handlers = dict.fromkeys(STOPS, self._pass_on) | {signal.SIGTSTP: self._pause}
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.seen.append(number)
        self._send(signal.SIGCONT)
        self._send(number)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z."""
        self._send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # until the shell's `fg`
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self.driver.send_signal(number)


class _Driver:
    """One life of the driver."""

    def __init__(self, command: Sequence[str], attempt: int, signals: _Signals) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        environment = {**os.environ, signs.VARIABLE: f"{writer} {attempt}"}
        parent = os.getpid()
        libc = ctypes.CDLL(None)

        def begin() -> None:
            libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: nobody would watch over it any more
            if os.getppid() != parent:
                os._exit(143)

        self._process = subprocess.Popen(
            command, env=environment, pass_fds=(writer,), process_group=0, preexec_fn=begin
        )
        os.close(writer)
        signals.driver = self._process
        for number in signals.seen:  # one that came before there was a driver
            self._process.send_signal(number)
        self._failure: dict[str, Any] | None = None
        self._last = self._started = time.monotonic()
        self._cpu, self._heard = 0.0, False
        self._rest = b""

    def watch(self, committed: Callable[[], None]) -> str | None:
        """Wait for its end.

        Args:
            committed: is called when it has finished a step.

        Returns:
            Why it is to be started again; None: it is not.
        """
        hung, looked = None, time.monotonic()
        try:
            while True:
                self._read(committed)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.2)
                    break
                looked, before = time.monotonic(), looked
                if looked - before > _PAUSE_SECONDS:
                    self._last = min(self._last + looked - before, looked)
                if hung is None and (hung := self._hangs()):
                    self._end()
            self._read(committed)
        finally:
            os.close(self._reader)
        return hung or self._cause()

    @property
    def was_stopped(self) -> bool:
        """Whether somebody has asked the driver itself to end."""
        return -self._process.returncode in STOPS or self.exit_code in (128 + number for number in STOPS)

    @property
    def exit_code(self) -> int:
        """As a shell has it."""
        code = self._process.returncode
        return 128 - code if code < 0 else code

    def _cause(self) -> str | None:
        code = self._process.returncode
        if self._failure is not None:
            return str(self._failure["cause"]) if self._failure["mendable"] else None
        if code < 0:
            name = signal.Signals(-code).name
            return f"it was ended by {name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"
        if code in (0, 2):
            return None
        return f"it ended with exit code {code} and without a word, as when its Ray head is lost"

    def _read(self, committed: Callable[[], None]) -> None:
        while select.select([self._reader], [], [], 0)[0]:
            found = os.read(self._reader, 65536)
            if not found:
                break
            *lines, self._rest = (self._rest + found).split(b"\n")
            for line in map(json.loads, lines):
                self._last, self._cpu, self._heard = time.monotonic(), _processor_seconds(self._process.pid), True
                if line["kind"] == "committed":
                    committed()
                if line["kind"] == "failed":
                    self._failure = line

    def _hangs(self) -> str | None:
        """Why it counts as hanging; None: it does not."""
        limit = HANG_SECONDS if self._heard else START_SECONDS
        silent = time.monotonic() - self._last
        if silent < limit:
            return None
        used = _processor_seconds(self._process.pid)
        if used - self._cpu > BUSY_SHARE * limit:
            self._last, self._cpu = time.monotonic(), used
            return None
        return f"it gave no sign of life for {silent:.0f} s, and was ended"

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR2)  # it writes down where each thread is
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TRACE_SECONDS)
            self._process.kill()


def _processor_seconds(pid: int) -> float:
    """Of all threads of a process."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stopped(number: int) -> int:
    """The end while there is no driver."""
    if number in (signal.SIGINT, signal.SIGTERM):
        return say_stopped(number)
    return 128 + number
