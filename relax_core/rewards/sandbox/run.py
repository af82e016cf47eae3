"""Sandboxes for programs that nobody trusts, from the outside.

Guarantee: a program ends within its time, with its output cut where it is too long, and nothing of it is left; it is
isolated from network, files and processes, or it is not run (``NoIsolationError``), unless the caller says otherwise.
"""

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/nix/store", "/etc/ld.so.cache")
"""What an interpreter needs beside its own folder."""

_HERE = Path(__file__).parent
LAUNCHER = _HERE / "launcher.py"
INNER = _HERE / "inner.py"

MAX_OUTPUT = 1 << 20
START_SECONDS = 5.0
"""How much longer than the program itself a sandbox may take to be made."""

NO_SANDBOX = (
    "Run where the kernel lets processes have namespaces of their own (in a container: as root with SYS_ADMIN, or with"
    " user namespaces allowed: seccomp's profile, user.max_user_namespaces, AppArmor), or say --code-sandbox limits in"
    " place of full: then programs have limits, but also the network."
)
"""What to do where there is no isolation."""
NOT_EVEN_LIMITS = (
    "Programs run as a user of their own where Relax runs as root, and that user must be able to run this Python: take"
    " one outside of /root, or run as another user."
)
"""What to do where programs cannot be run without isolation either."""

_USERS = 2_000_000_000
"""Numbers above this are users that no machine has."""


class NoIsolationError(Exception):
    """The kernel gives no isolation: the text says why."""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: processor seconds; the clock allows twice as many.
        memory: bytes of address space of each of its processes.
        disk: bytes that it may write.
        processes: at once, threads among them; two are the sandbox's own.
        files: open at once.
    """

    seconds: float = 5.0
    memory: int = 1 << 30
    disk: int = 64 << 20
    processes: int = 10
    files: int = 64

    @property
    def clock(self) -> float:
        """Seconds by the clock."""
        return 2 * self.seconds


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        status: exit status; 128 and more: the signal that ended it.
        output, errors: what it wrote, up to ``MAX_OUTPUT`` bytes of each.
        late: it was ended for its time.
        too_much: it was ended for its output.
    """

    status: int
    output: bytes
    errors: bytes
    late: bool = False
    too_much: bool = False


class Sandbox:
    """A program that runs.

    Args:
        files: name to text, in the folder that it starts in.
        argv: words behind the interpreter's own.
        limits: what it may use.
        stdin: name of the file that it reads as standard input; None: that is empty.
        passed: descriptors that it gets.
        output: whether what it writes can be read; else it is thrown away.
        isolated: False: without namespaces, under the limits alone.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        argv: Sequence[str],
        limits: Limits,
        *,
        stdin: str | None = None,
        passed: Sequence[int] = (),
        output: bool = False,
        isolated: bool = True,
    ) -> None:
        python = os.path.realpath(sys.executable)
        self._folder = None if isolated else tempfile.mkdtemp(prefix="relax-program-")
        self.begin = time.monotonic()
        job = {
            "isolated": isolated,
            "folder": self._folder,
            "uid": _USERS + os.getpid() * 64 % 100_000_000 + next(_numbers) % 64,
            "visible": sorted({*_SYSTEM, sys.base_prefix, sys.base_exec_prefix}),
            "limits": {
                "cpu": int(limits.seconds) + 1,
                "memory": limits.memory,
                "disk": limits.disk,
                "processes": limits.processes,
                "files": limits.files,
            },
            "files": dict(files),
            "stdin": stdin,
            "passed": list(passed),
            "argv": [python, "-I", "-S", "-B", "-X", "utf8", *argv],
        }
        self._status, theirs = os.pipe()
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(job).encode("utf-8", "surrogatepass"))
            file.seek(0)
            pipe = subprocess.PIPE if output else subprocess.DEVNULL
            self.process = subprocess.Popen(
                [python, "-I", "-S", str(LAUNCHER), str(file.fileno()), str(theirs)],
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env={},
                pass_fds=[file.fileno(), theirs, *passed],
            )
        os.close(theirs)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> int:
        """End it, if it still runs; its exit status.

        Raises:
            NoIsolationError: it never ran, for want of isolation.
            RuntimeError: nor for another reason of the sandbox's own.
        """
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        status = self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        if self._status >= 0:
            os.set_blocking(self._status, False)
            hindered = b""
            with contextlib.suppress(BlockingIOError):
                hindered = os.read(self._status, 1000)
            os.close(self._status)
            self._status = -1
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            if hindered:
                kind, _, text = hindered.decode(errors="replace").partition(": ")
                raise NoIsolationError(text) if kind == "isolation" else RuntimeError(f"{kind}: {text}")
        return status


_numbers = iter(range(1 << 62))


def run(files: Mapping[str, str], argv: Sequence[str], limits: Limits, stdin: str, *, isolated: bool = True) -> Ended:
    """Run a program to its end.

    Args:
        files, argv, limits, isolated: see ``Sandbox``.
        stdin: what it reads from standard input.

    Raises:
        NoIsolationError, RuntimeError: as ``Sandbox.end``.
    """
    with Sandbox({**files, ".stdin": stdin}, argv, limits, stdin=".stdin", output=True, isolated=isolated) as sandbox:
        kept = {sandbox.process.stdout: bytearray(), sandbox.process.stderr: bytearray()}
        late = too_much = False
        with selectors.DefaultSelector() as selector:
            for pipe in kept:
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ)
            end = sandbox.begin + limits.clock + START_SECONDS
            while selector.get_map() and not (late or too_much):
                ready = selector.select(max(0.0, end - time.monotonic()))
                late = not ready
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    kept[key.fileobj] += data  # type: ignore[index]
                    too_much |= len(kept[key.fileobj]) > MAX_OUTPUT  # type: ignore[index]
        if not (late or too_much):
            try:
                sandbox.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late = True
        output, errors = (bytes(content[:MAX_OUTPUT]) for content in kept.values())
        return Ended(sandbox.end(), output, errors, late, too_much)


@cache
def hindrance(isolated: bool = True) -> str:
    """Why programs cannot be run on this machine; empty where they can. An empty one is run, once a process."""
    try:
        run({}, ["-c", ""], Limits(), "", isolated=isolated)
    except (NoIsolationError, RuntimeError, OSError) as error:
        return str(error)
    return ""


class Pair:
    """A program and its tests, each in a sandbox of its own (see ``inner``).

    Args:
        program, tests: files of each.
        limits: of each.
        isolated: see ``Sandbox``.
    """

    def __init__(self, program: Mapping[str, str], tests: Mapping[str, str], limits: Limits, isolated: bool) -> None:
        inner = {"inner.py": INNER.read_text(encoding="utf-8")}
        one, other = socket.socketpair()
        self._report, theirs = os.pipe()
        self._left = b""
        with contextlib.ExitStack() as opened:
            with one, other:
                words = ["inner.py", "serve", str(one.fileno())]
                opened.enter_context(
                    Sandbox({**program, **inner}, words, limits, passed=[one.fileno()], isolated=isolated)
                )
                descriptors = [other.fileno(), theirs]
                words = ["inner.py", "test", *map(str, descriptors)]
                opened.enter_context(Sandbox({**tests, **inner}, words, limits, passed=descriptors, isolated=isolated))
                os.close(theirs)
            self._opened = opened.pop_all()

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End both.

        Raises:
            NoIsolationError, RuntimeError: as ``Sandbox.end``.
        """
        if self._report >= 0:
            os.close(self._report)
            self._report = -1
            self._opened.close()

    def line(self, seconds: float) -> dict[str, Any] | None:
        """What the tests report next; None: nothing in that time, or they have ended."""
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._report, selectors.EVENT_READ)
            while b"\n" not in self._left:
                if not selector.select(max(0.0, end - time.monotonic())):
                    return None
                data = os.read(self._report, 1 << 16)
                if not data or len(self._left) > MAX_OUTPUT:
                    return None
                self._left += data
        text, _, self._left = self._left.partition(b"\n")
        found: dict[str, Any] = json.loads(text)
        return found
