"""Prefect's temporary server, and a watch over it.

Guarantee: the server is deaf to Ctrl-C, so that a flow which is stopped by it can still report its end; and when this
process ends, however it ends (SIGKILL included), the server ends within two seconds. Prefect itself ends it on an
orderly exit only. The watch is a small process of its own; it ends with what it watches over.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE

_MARK = "RELAX_TEMPORARY_SERVER_OF"
"""Variable of the server's environment that names its owner: by it the watch finds a server that is just starting."""

_WATCH = """
import os, signal, sys, time
mark, owner, known = sys.argv[1].encode(), sys.argv[2], sys.argv[3:]
def identity(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else f"{pid}:{fields[19]}"
def marked(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return mark in environ.read().split(bytes(1))
    except OSError:
        return False
lives = lambda process: identity(process.partition(":")[0]) == process
while lives(owner):
    time.sleep(1)
for sign in (signal.SIGTERM, signal.SIGKILL):
    servers = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if identity(pid) in known or marked(pid)]
    for pid in servers:
        try:
            os.kill(int(pid), sign)
        except ProcessLookupError:
            pass
    time.sleep(5 if servers else 0)
"""

_guarded = False


def guard_temporary_server() -> None:
    """Start the server that Prefect would start for the next flow, and watch over it. Safe to call again.

    Does nothing where flows have a server of their own (``relax up``, ``PREFECT_API_URL``).
    """
    global _guarded
    if PREFECT_API_URL.value() or not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
        return
    from prefect.server.api.server import SubprocessASGIServer  # here: it takes a second

    server = SubprocessASGIServer()
    mark = f"{_MARK}={_identity(os.getpid())}"
    if not _guarded:
        started = server.server_process
        known = [] if started is None else [_identity(started.pid)]
        command = [sys.executable, "-I", "-S", "-c", _WATCH, mark, _identity(os.getpid()), *known]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload]
        _guarded = True
    with _deaf_children(), _environment(*mark.split("=", 1)):
        server.start()


def _identity(pid: int) -> str:
    """A process by its number and its start, which tells it from a later one of that number."""
    with open(f"/proc/{pid}/stat") as stat:
        return f"{pid}:{stat.read().rpartition(')')[2].split()[19]}"


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that this thread starts never see Ctrl-C: a blocked signal stays blocked in them.

    An ignored one would not do, since the server sets a handler. Other threads of this process take the signal.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
