"""Standing services of one machine: the Ray head and the Prefect server, started once and ended by process id.

Guarantee: ``start`` is idempotent (a service that answers is left as it is), ``stop`` ends exactly the processes that
``start`` recorded and nothing else, and a service that does not come up is a ``UserError`` with the end of its log.
The record is ``$RELAX_HOME/services.json`` (default ``~/.relax``); logs lie beside it.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from data.errors import UserError

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""Environment in which neither Prefect nor Ray calls home, Ray leaves CUDA_VISIBLE_DEVICES of CPU actors alone, and
whoever has lost the head is ended by Ray after 10 s, not 60: another start can only begin then."""


def home() -> Path:
    """Folder of the services' record and logs."""
    folder = Path(os.environ.get("RELAX_HOME", "~/.relax")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class Service:
    """A standing process. ``address`` is what clients use; ``created`` guards against a reused process id."""

    name: str
    address: str
    pid: int
    created: float
    log: str

    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def recorded() -> dict[str, Service]:
    """Services that an earlier ``start`` recorded and that are alive."""
    try:
        rows = json.loads((home() / "services.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    services = {name: Service(**row) for name, row in rows.items()}
    return {name: service for name, service in services.items() if service.alive()}


def _record(services: dict[str, Service]) -> None:
    path = home() / "services.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({name: asdict(service) for name, service in services.items()}, indent=2))
    temporary.replace(path)


def free_port() -> int:
    """A TCP port of this machine that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_free(port: int, option: str, host: str = "127.0.0.1") -> None:
    """Raise ``UserError`` when something listens on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"{option} {port}: the port is in use ({error.strerror}).",
                f"Choose another with {option}, or end the program that holds it (`ss -ltnp` shows it).",
            ) from None


def _spawn(name: str, command: list[str], address: str, env: dict[str, str], ready: Callable[[], bool]) -> Service:
    log = home() / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**QUIET, **os.environ, **env},
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            reason = "ended at once" if process.poll() is not None else "did not answer within 120 s"
            _end(process.pid)
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise UserError(f"The {name} service {reason}.", f"Its log is {log}:", tail)
        time.sleep(0.2)
    return Service(name, address, process.pid, psutil.Process(process.pid).create_time(), str(log))


def start_ray(port: int | None = None, num_cpus: int | None = None) -> Service:
    """Start a Ray head, or return the one that is recorded.

    Args:
        port: port of the head; None takes a free one.
        num_cpus: logical CPUs; None takes at least 8, since actors here are placed by device and not by CPU.
    """
    services = recorded()
    if "ray" in services:
        return services["ray"]
    if port is not None:
        require_free(port, "--ray-port")
    port = port or free_port()
    command = [
        os.path.join(os.path.dirname(sys.executable), "ray"),
        *("start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=false"),
        *(f"--port={port}", f"--num-cpus={num_cpus or max(8, os.cpu_count() or 1)}"),
        *("--object-store-memory=268435456", "--node-ip-address=127.0.0.1", f"--ray-client-server-port={free_port()}"),
    ]
    service = _spawn("ray", command, f"127.0.0.1:{port}", {"RAY_AUTH_MODE": "disabled"}, lambda: _ray_ready(port))
    _record({**recorded(), "ray": service})
    return service


def _ray_ready(port: int) -> bool:
    """The head's processes are up once ``ray start`` has said so; connecting is cheap and sure."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
    return "Ray runtime started" in (home() / "ray.log").read_text(errors="replace")


def start_prefect(port: int | None = None) -> Service:
    """Start a Prefect server on loopback, or return the one that is recorded. Its address is the API's URL."""
    services = recorded()
    if "prefect" in services:
        return services["prefect"]
    if port is not None:
        require_free(port, "--prefect-port")
    port = port or _former_port("prefect") or free_port()
    url = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    env = {"PREFECT_UI_API_URL": url, "PREFECT_SERVER_UI_API_URL": url, "PREFECT_API_URL": url}
    service = _spawn("prefect", command, url, env, lambda: _answers(f"{url}/health"))
    _record({**recorded(), "prefect": service})
    return service


def _former_port(name: str) -> int | None:
    """The port of a service that has died, if it is free: whoever was connected finds the new one there."""
    try:
        row = json.loads((home() / "services.json").read_text())[name]
        port = urllib.parse.urlsplit(row["address"]).port
        if port is not None:
            require_free(port, "")
        return port
    except (OSError, KeyError, ValueError, UserError):
        return None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def stop() -> list[Service]:
    """End the recorded services and return them."""
    services = recorded()
    for service in services.values():
        _end(service.pid)
    _record({})
    return list(services.values())


def _end(pid: int) -> None:
    """Terminate a process and its descendants; kill what is left after 15 s."""
    try:
        root = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    family = [*root.children(recursive=True), root]
    root.terminate()
    _, left = psutil.wait_procs(family, timeout=15)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=5)
