"""Start and stop one SGLang server process.

Guarantee: ``start`` returns only when the server answers, and otherwise leaves no process behind and raises an
``EngineStartError`` with the reason and the last lines of the log. ``stop`` ends what was started here, nothing else.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import psutil

from data.errors import UserError
from relax_core.cluster.ports import free_port, free_ports
from relax_core.engines.control import EngineControl
from relax_core.engines.devices import seen_by_engine
from relax_core.engines.errors import EngineStartError, EngineUnavailable
from relax_core.engines.serve import PARENT
from relax_core.engines.spec import EngineSpec

LOG_LINES = 25
"""Lines of the log shown in an error."""
PORT_ATTEMPTS = 4
INNER_PORT = "--nccl-port"
POLL_SECONDS = 0.2


class EngineProcess:
    """The process tree of one engine."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Process id of the server; None before the start and after ``stop``."""
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            EngineStartError: it died while starting, or did not answer within ``spec.start_timeout`` seconds.
            UserError: the port that the specification fixes is in use, or the log cannot be written.
        """
        deadline = time.monotonic() + self.spec.start_timeout
        for attempt in range(PORT_ATTEMPTS):
            port = self._choose_port()
            self._launch(port)
            try:
                self._wait(deadline)
                return
            except EngineStartError:
                # Between our choosing the port and the server's binding it somebody else may have taken it. The line
                # that says so may lie far above the end of the log.
                taken = self.spec.port is None and "address already in use" in self.log_tail(5000).lower()
                self.stop()
                if not taken or attempt == PORT_ATTEMPTS - 1:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Kill the server and everything that it started; a second call does nothing.

        An engine keeps nothing that a gentle end would save, and SGLang's own takes seconds and ends in a kill too.
        """
        process, self._process = self._process, None
        if process is None:
            return
        tree: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            tree = [root, *root.children(recursive=True)]
        for member in tree:
            with contextlib.suppress(psutil.NoSuchProcess):  # psutil compares start times: never another's process
                member.kill()
        # Workers born since, and those whose parent died before us, are still in the server's own process group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        psutil.wait_procs(tree, timeout=5.0)

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines that this start wrote to the log."""
        try:
            with open(self.spec.log_path, "rb") as log:
                log.seek(self._log_start)
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def _choose_port(self) -> int:
        host, port = self.spec.host, self.spec.port or 0
        try:
            if not port:
                return free_port(host)
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"{self.spec.name} cannot listen at {host}:{port}: {error.strerror}.",
                "Name another port, or end the process that uses this one.",
            ) from error
        return port

    def _inner_port(self, port: int) -> list[str]:
        """SGLang chooses one for its ranks long before they listen there, among those that connections are given."""
        if INNER_PORT in self.spec.arguments:
            return []
        return [INNER_PORT, str(free_ports(1, besides=port)[0])]

    def _launch(self, port: int) -> None:
        self.url = f"http://{self.spec.host}:{port}"
        # -P: the folder that we happen to be in must not shadow modules of the engine.
        command = [sys.executable, "-P", "-m", "relax_core.engines.serve", *self.spec.arguments]
        command += ["--host", self.spec.host, "--port", str(port), *self._inner_port(port)]
        environment = os.environ | dict(self.spec.environment) | {PARENT: str(os.getpid())}
        environment |= seen_by_engine(environment)
        with self._open_log() as log:
            log.write(f"{' '.join(command)}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # its own process group: a Ctrl-C at the driver does not reach it
            )

    def _open_log(self) -> IO[bytes]:
        path = Path(self.spec.log_path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log = open(path, "ab")  # noqa: SIM115  (the caller closes it)
        except OSError as error:
            raise UserError(f"The log {path} of {self.spec.name} cannot be written: {error.strerror}.") from error
        self._log_start = log.tell()
        return log

    def _wait(self, deadline: float) -> None:
        process = self._process
        assert process is not None
        with EngineControl(self.url, self.spec.name, timeout=5.0, retries=0) as control:
            while True:
                code = process.poll()
                if code is not None:
                    raise EngineStartError(
                        f"{self.spec.name} died while starting: {self._reason() or _how(code)}.",
                        f"Its whole log: {self.spec.log_path}. The last lines:",
                        self.log_tail(),
                    )
                with contextlib.suppress(EngineUnavailable):
                    control.model_info()
                    return
                if time.monotonic() > deadline:
                    raise EngineStartError(
                        f"{self.spec.name} did not answer within {self.spec.start_timeout:g} s of its start.",
                        f"Raise --engine-start-timeout, or see its log {self.spec.log_path}. The last lines:",
                        self.log_tail(),
                    )
                time.sleep(POLL_SECONDS)

    def _reason(self) -> str:
        """The last line of the log that reads like an exception."""
        for line in reversed(self.log_tail(200).splitlines()):
            head = line.split(":", 1)[0].strip().split("] ")[-1]
            if head.replace(".", "").replace("_", "").isalnum() and head.endswith(("Error", "Exception")):
                return line.strip().split("] ")[-1][:500].rstrip(".")
        return ""


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name} (out of memory?)" if -code == signal.SIGKILL else name
