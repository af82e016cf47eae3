"""Commands in a terminal of their own, with real engines or with the fakes."""

import functools
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
REAL = "import sys; from flows.cli.main import main; sys.exit(main())"
FAKES = f"""
import sys
import flows.launch  # first: the folder of tests would shadow packages of the project
sys.path.append({str(TESTS)!r})
from fakes import FakeBackend
flows.launch._ray_backend = lambda config, name: FakeBackend()
{REAL}
"""


def _in_terminal(side: int) -> None:
    os.login_tty(side)  # type: ignore[attr-defined]  # typeshed: later versions only
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs, as these tests may be, ignore it


class Terminal:
    """A command in a terminal of its own, and what it wrote there."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.output = ""
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", *command],
            env={**os.environ, **environment},
            preexec_fn=functools.partial(_in_terminal, slave),
        )
        os.close(slave)

    def read(self) -> bool:
        """Read what is there; False at the end."""
        try:
            self.output += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # nobody has the other side open any more
            return False
        return True

    def wait_for(self, text: str) -> None:
        while text not in self.output:
            assert self.read(), self.output

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def send(self, sign: signal.Signals) -> None:
        """To the whole group, as `timeout` and job schedulers do."""
        os.killpg(self.process.pid, sign)

    def end(self) -> int:
        """Wait for the end; the exit code."""
        try:
            code = self.process.wait(timeout=60)  # Prefect's patience with a dead server is longer
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        while self.read():
            pass
        os.close(self._master)
        return code
