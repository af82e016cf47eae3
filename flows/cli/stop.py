"""Ctrl-C and SIGTERM of a command that can go on later.

Guarantee: after the first of them the process ends in order if that takes less than ``LIMIT_S``, and at once if not,
whatever it waits for; a second Ctrl-C ends it at once. Either way one line says that the same command goes on, and the
exit code is 130 for Ctrl-C, 143 for SIGTERM. An end at once is what a kill is: nothing finished is lost.
"""

import atexit
import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time

LIMIT_S = 8.0
"""Seconds for an orderly end: reporting to Prefect, ending engines, closing files."""

_ECHO_S = 0.5
"""A Ctrl-C so soon after the first signal is no second one: launchers pass on what the terminal sent to all."""

_TEXTS = {
    signal.SIGINT: "\nrelax: stopped; the same command goes on from the last finished task.",
    signal.SIGTERM: "relax: ended by SIGTERM; the same command goes on from the last finished task.",
}

_told = threading.Event()

_first: list[int] = []
"""The first signal, once it has come."""


def say_stopped(number: int) -> int:
    """Say why the process ends, and that it can go on.

    Args:
        number: the signal.

    Returns:
        The exit code.
    """
    _told.set()
    print(_TEXTS[signal.Signals(number)], file=sys.stderr, flush=True)
    return 128 + number


def end_in_time(limit: float = LIMIT_S) -> None:
    """From now on a signal ends this process in time. Call it in the main thread.

    Handlers stay with whom they are: Prefect and Ray set theirs later. The numbers of signals come through a pipe, also
    while the main thread is deep in a library.
    """
    _told.clear()
    _first.clear()
    atexit.register(_leave)  # first in, last out
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # what a child gets is not for this process
    threading.Thread(target=_watch, args=(reader, limit), daemon=True, name="end-in-time").start()


def _watch(reader: int, limit: float) -> None:
    since = 0.0
    while True:
        left = max(0.0, since + limit - time.monotonic()) if _first else None
        if not select.select([reader], [], [], left)[0]:
            _end_now()
        for number in os.read(reader, 64):
            if number not in (signal.SIGINT, signal.SIGTERM):
                continue
            if not _first:
                since = time.monotonic()
                _first.append(number)
                _quiet_prefect()
            elif number == signal.SIGINT and time.monotonic() > since + _ECHO_S:
                _end_now()


def _quiet_prefect() -> None:
    """Its server may have got the signal too; that its last reports then reach nobody helps nobody at the keyboard."""
    logging.raiseExceptions = False
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "prefect":
            logging.getLogger(name).disabled = True


def _leave() -> None:
    """The last of what Python does at its end would wait for threads' calls into Ray, and may crash on them."""
    if _first:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        _end_now()


def _end_now() -> None:
    # not through sys.stderr: the main thread may hold it
    with contextlib.suppress(OSError):  # nobody reads
        if not _told.is_set():
            os.write(2, f"{_TEXTS[signal.Signals(_first[0])]}\n".encode())
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # the moving line hides the cursor
    os._exit(128 + _first[0])
