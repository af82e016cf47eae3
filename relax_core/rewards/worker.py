"""The process in which reward functions run that may hang, crash or eat memory.

Guarantee: it ends with the process that started it; what a function prints goes to standard error; an answer is plain
data, whatever the function returned; a plain call that is too long is the caller's to end, by ending this process.
Coroutines run together, and each of them has its time limit here; one that blocks the loop is the caller's to end too.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from data.errors import UserError
from relax_core.rewards.board import Board, Shown, end_fork
from relax_core.rewards.calls import Call, timed
from relax_core.rewards.messages import Ask, Asked, AskMany, Ended, Failed, Load, Lost, Numbered, Result, Told
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.types import RewardSpec

_PR_SET_PDEATHSIG = 1

MEMORY_BYTES = 8 << 30
"""Address space of a worker that runs built-in rewards: an expression that grows beyond it fails, not the machine."""

CANCEL_SECONDS = 1.0
"""How long a coroutine that is cancelled may take to end."""

Say = Callable[[Any], None]


class Server:
    """Answers what is asked over a connection.

    Args:
        connection: to the process that asks.
        board: shows it which coroutine is at work.
    """

    def __init__(self, connection: Connection, board: Board) -> None:
        self._connection, self._board = connection, board
        self._specs: dict[int, RewardSpec] = {}
        self._loop: asyncio.Runner | None = None
        self._process = os.getpid()

    def serve(self) -> None:
        """Answer until the other side closes the connection."""
        while True:
            try:
                request, asked = self._connection.recv()
            except EOFError:
                return
            say = partial(self._say, request)
            try:
                if isinstance(asked, Load):
                    self._load(asked)
                    say(None)
                elif isinstance(asked, Ask):
                    say(_answer(self._specs[asked.number], asked))
                else:
                    self._together(asked, say)
            except UserError as error:
                say(Failed.of(error))

    def _say(self, request: int, answer: Any) -> None:
        end_fork(self._process)  # the connection belongs to the process that was asked
        self._connection.send(Numbered(request, answer))

    def _load(self, asked: Load) -> None:
        self._specs[asked.number] = spec = asked.function.load()
        if not spec.custom:
            _limit_memory()
        if spec.prepare is not None:
            spec.prepare()

    def _together(self, asked: AskMany, say: Say) -> None:
        if self._loop is None:
            self._loop = asyncio.Runner()  # one for all calls: what a function keeps, e.g. a session, belongs to it
        together = _Together(say, self._board, self._specs[asked.number], asked)
        self._loop.run(together.run())
        say(Ended(together.clean))


class _Together:
    """The calls of one ``AskMany``."""

    def __init__(self, say: Say, board: Board, spec: RewardSpec, asked: AskMany) -> None:
        self._say, self._board, self._spec, self._asked = say, board, spec, asked
        self._permits = asyncio.Semaphore(asked.concurrency)
        self._failed = asyncio.Event()
        self.clean = True

    async def run(self) -> None:
        calls = [asyncio.ensure_future(self._one(place, call)) for place, call in enumerate(self._asked.calls)]
        failed: asyncio.Future[Any] = asyncio.ensure_future(self._failed.wait())
        everything: asyncio.Future[Any] = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.wait({everything, failed}, return_when=asyncio.FIRST_COMPLETED)
        for task in [*calls, failed]:
            task.cancel()
        await asyncio.wait([*calls, failed])

    async def _one(self, place: int, asked: Asked) -> None:
        async with self._permits:
            if self._failed.is_set():
                return
            self._say(Told(place, None))
            result = await self._result(place, Call(self._spec, *asked))
            self._say(Told(place, result))
            if self._asked.until_failed and isinstance(result, Failed):
                self._failed.set()

    async def _result(self, place: int, call: Call) -> Result:
        async def body() -> Any:
            return await call.wait(call.start())

        async def shown() -> Any:
            return await Shown(self._board, place, body())

        begin, seconds = time.perf_counter(), self._asked.seconds
        task = asyncio.ensure_future(shown())
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_SECONDS)
                self.clean &= task.done()
        if not done:
            return Lost("timeout", f"it took longer than {seconds:g} s")
        if task.cancelled():
            return Lost("crash", "it was cancelled")
        try:
            return timed(call.outcomes(task.result(), self._asked.reward_key), begin)
        except UserError as error:
            return Failed.of(error)
        except BaseException as error:  # e.g. GeneratorExit, or what a returned object raises when it is read
            return Lost("crash", f"it ended with {type(error).__name__}")


def _answer(spec: RewardSpec, asked: Ask) -> list[Outcome]:
    call = Call(spec, *asked.unpacked())
    begin = time.perf_counter()
    return timed(call.outcomes(call.finish(call.start()), asked.reward_key), begin)


def _limit_memory() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _end_with(parent: int) -> None:
    """Be ended when the thread that started this process ends; it owns this process for as long as it lives."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


def main(arguments: list[str]) -> Any:
    """``python -m relax_core.rewards.worker FILE_DESCRIPTOR BOARD_DESCRIPTOR PARENT``."""
    descriptor, board, parent = (int(argument) for argument in arguments)
    _end_with(parent)
    sys.stdout = sys.stderr
    Server(Connection(descriptor), Board(board)).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
