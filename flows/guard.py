"""Which Prefect server flows use; the temporary one, and a watch over it.

Guarantee: a server that does not answer holds no run up, and one that is lost in the middle is ``Lost``. The temporary
server is deaf to Ctrl-C, so that a flow which is stopped by it can still report its end; and when this
process ends, however it ends (SIGKILL included), the server ends within two seconds. Prefect itself ends it on an
orderly exit only. The watch is a small process of its own; it ends with what it watches over.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import httpx
from prefect.context import refresh_global_settings_context
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)

from data.errors import Lost
from flows.patience import use_for_temporary_servers
from relax_core.waiting import told

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

ASKED_SECONDS = 5.0
"""How long a server may take to answer before a run goes without it."""

LOOK_SECONDS = 10.0
"""Between two looks at a server whose absence is told."""

_guarded = False


def choose_server(say: Callable[[str], None]) -> None:
    """Go without the server that flows are told to use if it does not answer: it shows runs, it does not keep them.

    Args:
        say: gets a line about it.
    """
    url = PREFECT_API_URL.value()
    if not url or _answers(url):
        return
    say(f"no Prefect server answers at {url}: this run is shown by a temporary one of its own until it ends")
    os.environ.pop("PREFECT_API_URL", None)
    refresh_global_settings_context()
    if PREFECT_API_URL.value():  # of a profile; with an empty text Prefect itself sends some events nowhere
        os.environ["PREFECT_API_URL"] = ""
        refresh_global_settings_context()


def _answers(url: str) -> bool:
    until = time.monotonic() + ASKED_SECONDS
    while True:
        try:
            httpx.get(f"{url.rstrip('/')}/health", timeout=ASKED_SECONDS, trust_env=True)
            return True  # whatever it says: how it is to be asked is Prefect's business
        except httpx.TransportError:
            if time.monotonic() > until:
                return False
            time.sleep(0.5)


@contextlib.contextmanager
def reaching_prefect() -> Iterator[None]:
    """Round a flow. One that a temporary server shows has no heartbeat: nobody there looks for it, and its end would
    wait for the next one.

    Raises:
        Lost: Prefect's server stopped answering.
    """
    url = PREFECT_API_URL.value()
    heart = contextlib.nullcontext() if url else temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    try:
        with _telling_outages(url), heart:
            yield
    except Exception as error:
        if not _of_prefect(error, url):
            raise
        _drop_events()
        raise Lost(
            f"The Prefect server{f' at {url}' if url else ''} stopped answering ({type(error).__name__}: {error}).",
            "Nothing is lost: the same command goes on, also while the server is away; with --use-health-check by"
            " itself.",
        ) from error


@contextlib.contextmanager
def _telling_outages(url: str | None) -> Iterator[None]:
    """While a server of others is away the flow waits for it in Prefect's client, which says nothing."""
    ended = threading.Event()

    def watch(url: str) -> None:
        while not ended.wait(LOOK_SECONDS):
            if _answers(url):
                continue
            with told(f"the Prefect server at {url}", "the flow"):
                while not (ended.wait(LOOK_SECONDS) or _answers(url)):
                    pass

    if url:
        threading.Thread(target=watch, args=(url,), daemon=True, name="prefect-watch").start()
    try:
        yield
    finally:
        ended.set()


def _drop_events() -> None:
    """Forget what would be told a server that is gone: as this process ends Prefect would offer it each event anew, for
    seven seconds each."""
    from prefect.events.worker import EventsWorker

    for worker in list(getattr(EventsWorker, "_instances", {}).values()):
        if not isinstance(worker, EventsWorker):
            continue
        with contextlib.suppress(AttributeError, queue.Empty):
            worker._remove_instance()  # what comes next, of a run that goes on in this process, gets another worker
            worker._client._reconnection_attempts = 0  # type: ignore[attr-defined]
            while True:
                worker._queue.get_nowait()


def _of_prefect(error: Exception, url: str | None) -> bool:
    """Whether a call to the server failed for want of a server."""
    if isinstance(error, httpx.TransportError):
        with contextlib.suppress(RuntimeError):  # one without a request
            return url is None or str(error.request.url).startswith(url.rstrip("/"))
    response = getattr(error, "response", None)  # prefect.exceptions.PrefectHTTPStatusError
    return isinstance(error, httpx.HTTPStatusError) and response is not None and response.status_code >= 500


def guard_temporary_server() -> None:
    """Start the server that Prefect would start for the next flow, and watch over it. Safe to call again.

    Does nothing where flows have a server of their own (``relax up``, ``PREFECT_API_URL``).
    """
    global _guarded
    if PREFECT_API_URL.value() or not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
        return
    from prefect.server.api.server import SubprocessASGIServer  # here: it takes a second

    use_for_temporary_servers()
    server = SubprocessASGIServer()
    mark = f"{_MARK}={_identity(os.getpid())}"
    if not _guarded:
        started = server.server_process
        known = [] if started is None else [_identity(started.pid)]
        command = [sys.executable, "-I", "-S", "-c", _WATCH, mark, _identity(os.getpid()), *known]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload]
        _guarded = True
    with (
        _deaf_children(),
        _environment(*mark.split("=", 1)),
        told("the start of Prefect's temporary server (`relax up` keeps one)", "the run", first=0.0),
    ):
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
