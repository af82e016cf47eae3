"""Processes that outlive whoever starts them.

Guarantee: ``spawn`` returns once the process answers, or raises ``UserError`` with the end of its log and leaves
nothing running; ``end`` ends a process and its descendants, and nothing else.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from data.errors import UserError

START_SECONDS = 300.0
"""A busy machine takes minutes for what takes seconds on an idle one."""

END_SECONDS = 15.0

LEFT_SECONDS = 3.0
"""For what a process that has ended left behind."""


def spawn(
    name: str,
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    ready: Callable[[], bool],
    folder: str | None = None,
) -> psutil.Process:
    """Start a process in a session of its own.

    Args:
        log: gets what it prints; one of before is kept as ``NAME.log.1``.
        environment: the whole of it.
        ready: asked until it says yes.
        folder: its working folder.

    Raises:
        UserError: it ended, or did not become ready within ``START_SECONDS``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    try:
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                reason = "ended at once" if process.poll() is not None else f"did not answer within {START_SECONDS:g} s"
                raise UserError(f"The {name} service {reason}.", f"Its log is {log}:", tail(log))
            time.sleep(0.1)
    except BaseException:  # Ctrl-C too: nobody would know of it
        end(process.pid)
        raise
    return psutil.Process(process.pid)


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def alive(pid: int, created: float) -> bool:
    """Whether a process lives, and is no later one of the same number."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants, itself last."""
    try:
        root = psutil.Process(pid)
        return [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return []


def memory(processes: Iterable[psutil.Process]) -> int:
    """Resident bytes of processes; what they share counts for each."""
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def terminate(pids: Iterable[int], seconds: float = END_SECONDS) -> None:
    """Ask processes to end, and wait for it; kill what is left."""
    asked = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            process.terminate()
            asked.append(process)
        except psutil.NoSuchProcess:
            continue
    _wait(asked, seconds)


@contextlib.contextmanager
def halted(pid: int) -> Iterator[None]:
    """A process stands still from now on, for ``end`` to kill it; it goes on if the body fails."""
    process = None
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.suspend()
    try:
        yield
    except BaseException:
        if process is not None:
            process.resume()
        raise


def _ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait(members: list[psutil.Process], seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := [one for one in members if not _ended(one)]) and time.monotonic() < until:
        psutil.wait_procs(left, timeout=0.2)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)


def end(pid: int) -> None:
    """Terminate a process, then its descendants: kill what is left of it after 15 s, and of them 3 s later."""
    members = family(pid)
    if not members:
        return
    root = members[-1]
    with contextlib.suppress(psutil.NoSuchProcess):
        if root.status() == psutil.STATUS_STOPPED:  # it would not hear of it
            root.kill()
        else:
            root.terminate()
    _wait([root], END_SECONDS)
    _wait(members, LEFT_SECONDS)


def inherited(more: Mapping[str, str], quiet: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``more``; ``quiet`` fills what is not set."""
    return {**quiet, **os.environ, **more}
