"""One process that runs reward functions, from the side of the process that started it.

Guarantee: a call that hangs, or with which the process ends, is told apart from those that it would take along: of
coroutines that run together only the one that was at work is lost, where that can be known.
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import relax_core
from relax_core.rewards.board import Board
from relax_core.rewards.messages import (
    Ask,
    Asked,
    AskMany,
    Batch,
    Ended,
    FunctionName,
    Load,
    Lost,
    Numbered,
    Packed,
    Result,
    Task,
)

START_SECONDS = 120.0
"""How long a process may take to start and to import what its function needs."""

GRACE_SECONDS = 2.0
"""How much later than its time limit a coroutine may answer, as it is ended in its own process first; and how long a
process may take to end once its connection has."""

STALL_SECONDS = 10.0
"""How long a message that has begun may pause: the rest of one that a function has disturbed never comes."""

_TICK_SECONDS = 0.1
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class Surroundings(NamedTuple):
    """Where a process runs, in place of where its owner does.

    Attributes:
        environment: all its environment variables.
        folder: its working directory; one that this machine does not have is left out.
    """

    environment: Mapping[str, str]
    folder: str


class Worker:
    """One process. Its methods are for one thread at a time, the one that made it.

    Args:
        variables: further environment variables.
        surroundings: None: those of this process.
    """

    def __init__(self, variables: Mapping[str, str] = NO_VARIABLES, surroundings: Surroundings | None = None) -> None:
        self._connection, theirs = Pipe()
        self._board = Board()
        root = str(Path(relax_core.__file__).resolve().parents[1])
        environment, folder = surroundings or (os.environ, None)
        path = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        arguments = [str(theirs.fileno()), str(self._board.descriptor), str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "relax_core.rewards.worker", *arguments],
            pass_fds=[theirs.fileno(), self._board.descriptor],
            stdin=subprocess.DEVNULL,
            env={**environment, **variables, "PYTHONPATH": path},
            cwd=folder if folder and os.path.isdir(folder) else None,
            start_new_session=True,  # so that a function's own processes are ended with it
        )
        theirs.close()
        _limit_stalls(self._connection.fileno())
        self._numbers: dict[FunctionName, int] = {}
        self._request = 0
        self._ended = False

    def load(self, function: FunctionName) -> Result | None:
        """Let the process import a function that it does not have yet; None when it has it."""
        if function not in self._numbers:
            number = len(self._numbers)
            answer: Result | None = self._exchange(Load(number, function), START_SECONDS)
            if answer is not None:
                return answer
            self._numbers[function] = number
        return None

    def ask(self, task: Task | Packed, seconds: float) -> Result:
        """The answer to a task whose function is loaded.

        Args:
            seconds: how long it may take. This worker is of no more use after a ``Lost``.
        """
        call = task.call if isinstance(task, Packed) else Asked(task.samples, task.group_id)
        return self._exchange(Ask(self._numbers[task.function], call, task.reward_key), seconds)  # type: ignore[no-any-return]

    def ask_many(self, batch: Batch, places: Sequence[int], results: list[Result | None]) -> bool:
        """Put the results of the calls ``places`` of a batch, whose function is loaded, into their places.

        Where the process had to be ended, places without a result are left to another worker; one at least has one.

        Returns:
            Whether this worker may be used again.
        """
        calls = tuple(batch.calls[place] for place in places)
        number = self._numbers[batch.function]
        message = AskMany(number, calls, batch.reward_key, batch.concurrency, batch.seconds, batch.until_failed)
        running: set[int] = set()
        progress = time.monotonic()
        try:
            self._send(message)
            while True:
                if self._connection.poll(_TICK_SECONDS):
                    request, told = self._receive()
                    if request != self._request:
                        continue
                    progress = time.monotonic()
                    if isinstance(told, Ended):
                        if not told.clean:
                            self.end()
                        return told.clean
                    if told.result is None:
                        running.add(told.place)
                    else:
                        running.discard(told.place)
                        results[places[told.place]] = told.result
                elif late := self._late(running, progress, batch.seconds):
                    lost = Lost("timeout", f"it took longer than {batch.seconds:g} s")
                    break
        except (EOFError, OSError):
            lost = self._crash()
            at = self._board.read()
            late = {at.place} if at is not None and at.place in running else running
        self.end()
        if not late and all(results[place] is None for place in places):
            late = set(range(len(places)))  # it ends before it begins: another worker would do no better
        for place in late:
            results[places[place]] = lost
        return False

    def _late(self, running: set[int], progress: float, seconds: float) -> set[int]:
        """The calls that hold up the process, if any."""
        at, now = self._board.read(), time.monotonic()
        if at is not None and now - at.since > seconds + GRACE_SECONDS:
            return {at.place}
        return running if now - progress > seconds + 2 * GRACE_SECONDS else set()

    def _exchange(self, message: Any, seconds: float) -> Any:
        until = time.monotonic() + seconds
        try:
            self._send(message)
            while self._connection.poll(max(0.0, until - time.monotonic())):
                request, answer = self._receive()
                if request == self._request:
                    return answer
        except (EOFError, OSError):
            lost = self._crash()
        else:
            lost = Lost("timeout", f"it took longer than {seconds:g} s")
        self.end()
        return lost

    def _send(self, message: Any) -> None:
        self._request += 1
        self._connection.send(Numbered(self._request, message))

    def _receive(self) -> tuple[int, Any]:
        """What the process has said; what is no message is told like the end of the connection."""
        try:
            request, told = self._connection.recv()
        except (EOFError, OSError):
            raise
        except Exception as error:  # a function has written into the connection
            raise EOFError from error
        return request, told

    def _crash(self) -> Lost:
        """Why the connection has ended: nearly always because the process does, whose status is to be told."""
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:  # a function has closed it, or written into it
            self.kill()
            self._process.wait()
            return Lost("crash", "the reward's process closed or disturbed its connection")
        return Lost("crash", f"the reward's process ended with {ending(self._process.returncode)}")

    def kill(self) -> None:
        """End the process and those that it started; from any thread."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """``kill``, and give back what this process holds of it."""
        self.kill()
        self._process.wait()
        if not self._ended:
            self._ended = True
            self._connection.close()
            self._board.close()


def _limit_stalls(descriptor: int) -> None:
    limit = struct.pack("@ll", int(STALL_SECONDS), 0)  # a timeval
    with socket.socket(fileno=os.dup(descriptor)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def ending(code: int | None) -> str:
    """How a process ended, by its return code."""
    return f"signal {-code}" if code is not None and code < 0 else f"status {code}"
