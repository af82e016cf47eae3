"""Signs of life from a driver to the process that watches over it (--use-health-check).

Guarantee: a sign costs nothing where nobody watches, never waits and never fails; what a driver starts inherits neither
the pipe nor its name. Any thread may give one.
"""

import contextlib
import faulthandler
import json
import os
import signal
import time
from typing import Any

VARIABLE = "RELAX_SIGNS"
"""Of a driver's environment: the pipe's number and how often the driver was started before."""

EVERY_SECONDS = 1.0
"""Signs that say nothing else are not sent more often."""


class _Link:
    pipe: int | None = None
    attempt = 0
    sent = 0.0
    committed = 0


def adopt() -> bool:
    """Take the pipe that the environment names, if it names one. Call it before anything else is started.

    Returns:
        Whether this process is watched over.
    """
    words = os.environ.pop(VARIABLE, "").split()
    if len(words) == 2:
        _Link.pipe, _Link.attempt = int(words[0]), int(words[1])
        os.set_blocking(_Link.pipe, False)
        os.set_inheritable(_Link.pipe, False)
        faulthandler.register(signal.SIGUSR2, all_threads=True)  # how the watcher asks where a process hangs
    return _Link.pipe is not None


def watched() -> bool:
    """Whether another process restarts this one."""
    return _Link.pipe is not None


def attempt() -> int:
    """How often the driver was started before this time."""
    return _Link.attempt


def committed() -> int:
    """How many steps this process has committed."""
    return _Link.committed


def alive() -> None:
    """Something went on."""
    if _Link.pipe is not None and time.monotonic() - _Link.sent >= EVERY_SECONDS:
        _send({"kind": "alive"})


def step_committed() -> None:
    """A step is finished for good."""
    _Link.committed += 1
    _send({"kind": "committed"})


def failed(cause: str, mendable: bool) -> None:
    """The process ends with this error.

    Args:
        cause: one line.
        mendable: whether another start may do better.
    """
    _send({"kind": "failed", "cause": cause[:500], "mendable": mendable})


def _send(message: dict[str, Any]) -> None:
    if _Link.pipe is None:
        return
    _Link.sent = time.monotonic()
    with contextlib.suppress(OSError):  # it is full, or nobody reads
        os.write(_Link.pipe, json.dumps(message).encode() + b"\n")  # below PIPE_BUF: whole or not at all
