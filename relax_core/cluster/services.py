"""Standing services of one machine: the Ray head, the Prefect server and the worker, started once, ended by process id.

Guarantee: each ``start_...`` is idempotent (a service that lives is left as it is; one that died is started again where
it was), ``stop`` ends exactly the processes that were recorded and nothing else, and a service that does not come up is
a ``UserError`` with the end of its log. Nothing listens beyond loopback unless ``host`` says so, and then only behind
Ray's token and Prefect's password. The record is ``$RELAX_HOME/services.json`` (default ``~/.relax``); logs are below
``logs/standing``.
"""

import json
import os
import re
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from data.errors import UserError
from relax_core.cluster import access, processes
from relax_core.cluster.ports import (
    LOOPBACK,
    PortRange,
    answers_at,
    free_port,
    free_ports,
    is_loopback,
    listening_address,
    metric_ports,
    reachable,
    require_free,
)
from relax_core.cluster.record import Service, former_ports, home, log_of, record, recorded, remembered

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""Environment in which neither Prefect (whose second interface does so from the browser) nor Ray calls home, Ray leaves
CUDA_VISIBLE_DEVICES of CPU actors alone, and whoever has lost the head is ended by Ray after 10 s, not 60: another
start can only begin then."""

LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable of Ray: with 0 a head whose address is 127.0.0.1 keeps it, and all its processes listen there alone. Without
it Ray puts the machine's address in its place and listens at all of them."""

POOL = "relax"
APP = "deployments.server:create_app"
"""Prefect's server app with our check of parameters."""

QUERY_SECONDS = 2
"""Between two questions of the worker for flow runs."""

NAMES = ("ray", "prefect", "worker")

_ROOT = str(Path(__file__).parents[2])
_lock = threading.RLock()


def service_environment(env: dict[str, str]) -> dict[str, str]:
    """Variables of every standing process, with its own."""
    own = {"RELAX_HOME": str(home())}
    if Path(_ROOT).name != "site-packages":  # a checkout, whose `deployments` may not be in the installation's path
        own["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**own, **env}


def _spawn(
    name: str,
    command: Sequence[str],
    address: str,
    env: dict[str, str],
    ready: Callable[[], bool],
    **facts: Any,
) -> Service:
    log = log_of(name)
    environment = processes.inherited(service_environment(env), QUIET)
    process = processes.spawn(name, command, log, environment, ready, facts.get("folder") or None)
    service = Service(name, address, process.pid, process.create_time(), str(log), **facts)
    with _lock:
        record({**remembered(), name: service})
    return service


def _end(pid: int) -> None:
    processes.end(pid)


def standing_host() -> str:
    """The address at which the services listen that were started; loopback where there are none."""
    return next((service.host for service in remembered().values() if service.name != "worker"), LOOPBACK)


def _standing(name: str, option: str, port: int | None, host: str | None) -> Service | None:
    """The live service of this name.

    Raises:
        UserError: it is asked for elsewhere.
    """
    service = recorded().get(name)
    if service is None:
        return None
    if port is not None and service.port != port:
        raise UserError(
            f"{option} {port}: the {name} service stands at port {service.port} already.",
            f"Leave {option} out, or end what stands with `relax down` first.",
        )
    if host is not None and listening_address(host) != service.host:
        raise UserError(
            f"--host {host}: the {name} service stands already, and listens at {service.host}.",
            "Leave --host out, or end what stands with `relax down` first.",
        )
    return service


def _port(name: str, option: str, port: int | None, host: str) -> int:
    """The port to start at: the wanted one, else that of the last time, which whoever was connected and shells still
    know, else a free one."""
    if port is not None:
        require_free(port, option, host)
        return port
    former = former_ports().get(name)
    with suppress(UserError):
        if former is not None:
            require_free(former, option, host)
            return former
    return free_port(host)


def start_ray(
    port: int | None = None, num_cpus: int | None = None, host: str | None = None, ports: PortRange | None = None
) -> Service:
    """Start a Ray head, or return the one that is recorded.

    Args:
        port: port of the head; None takes the former one, else a free one.
        num_cpus: logical CPUs; None takes at least 8, since actors here are placed by device and not by CPU.
        host: address to listen at; None: the former one, else loopback. With any other, Ray listens at all addresses
            of the machine, and every request needs the token.
        ports: of everything else that listens; None: free ones.

    Raises:
        UserError: it did not come up, or stands elsewhere.
    """
    if (service := _standing("ray", "--ray-port", port, host)) is not None:
        return service
    listen = listening_address(host or standing_host())
    local = is_loopback(listen)
    port = _port("ray", "--ray-port", port, listen)
    address = f"{reachable(listen)}:{port}"
    protected = not local or os.environ.get("RAY_AUTH_MODE") != "disabled"
    if protected:
        access.ray_token(home(), os.environ)
    env = access.ray_environment(home(), protected) | {LOCAL_ONLY: "0" if local else "1"}
    own = free_ports(3, besides=port)
    env |= ports.variables if ports else metric_ports(*own[:2])
    command = [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--include-dashboard=false", f"--node-ip-address={reachable(listen)}", f"--port={port}"),
        *(f"--num-cpus={num_cpus or max(8, os.cpu_count() or 1)}", "--object-store-memory=268435456"),
        *(ports.arguments if ports else ["--dashboard-agent-listen-port=0", f"--ray-client-server-port={own[2]}"]),
    ]
    return _spawn("ray", command, address, env, lambda: _ray_ready(address), host=listen, protected=protected)


def _ray_ready(address: str) -> bool:
    """The head's processes are up once ``ray start`` has said so; connecting is cheap and sure."""
    host, _, port = address.rpartition(":")
    return answers_at(host, int(port)) and "Ray runtime started" in log_of("ray").read_text(errors="replace")


def start_prefect(port: int | None = None, host: str | None = None) -> Service:
    """Start a Prefect server, or return the one that is recorded. Its address is the API's URL.

    Args:
        port: None takes the former one, else a free one.
        host: address to listen at; None: the former one, else loopback. With any other a password is asked for.

    Raises:
        UserError: it did not come up, or stands elsewhere.
    """
    if (service := _standing("prefect", "--prefect-port", port, host)) is not None:
        return service
    listen = listening_address(host or standing_host())
    port = _port("prefect", "--prefect-port", port, listen)
    url = f"http://{reachable(listen)}:{port}/api"
    env = {
        "PREFECT_API_URL": url,
        "PREFECT_UI_API_URL": url,
        "PREFECT_SERVER_UI_API_URL": url,
        "PREFECT_SERVER_API_HOST": listen,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT__SERVER_FINAL": "1",
    }
    protected = not is_loopback(listen) or bool(os.environ.get("PREFECT_SERVER_API_AUTH_STRING"))
    if protected:
        auth = access.prefect_auth(home(), os.environ)
        env |= {"PREFECT_SERVER_API_AUTH_STRING": auth, "PREFECT_API_AUTH_STRING": auth}
    command = [
        *(sys.executable, "-P", "-m", "uvicorn", "--app-dir", _ROOT, "--factory", APP),
        *("--host", listen, "--port", str(port), "--timeout-keep-alive", "5", "--log-level", "warning"),
    ]
    asked = Service("prefect", url, 0, 0.0, "")
    return _spawn("prefect", command, url, env, lambda: _healthy(asked), host=listen, protected=protected)


def prefect_environment(server: Service) -> dict[str, str]:
    """Variables for processes that use a standing server."""
    return {"PREFECT_API_URL": server.address, **access.prefect_environment(home(), server.protected)}


def start_worker(server: Service, folder: str) -> Service:
    """Start a worker for the pool, or return the one that is recorded.

    Args:
        server: the Prefect server that it asks.
        folder: working folder of it.

    Raises:
        UserError: it did not come up.
    """
    standing = recorded().get("worker")
    if standing is not None and standing.address == server.address:
        return standing
    if standing is not None:  # of a server that is gone
        _end(standing.pid)
    name = f"relax-{os.uname().nodename}"
    command = [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    command += ["--name", name, "--install-policy", "never"]
    env = {**prefect_environment(server), "PREFECT_WORKER_QUERY_SECONDS": str(QUERY_SECONDS)}
    started = re.compile(r"Worker .* started")

    def ready() -> bool:
        return started.search(log_of("worker").read_text(errors="replace").replace("\n", " ")) is not None

    return _spawn("worker", command, server.address, env, ready, folder=folder)


def ask(server: Service, path: str, body: Any = None, timeout: float = 5.0) -> Any:
    """What a standing Prefect server answers, as JSON has it; with a ``body``, to POST.

    Raises:
        OSError, ValueError: it does not answer, or refuses.
    """
    headers = {"Content-Type": "application/json"}
    auth = access.prefect_environment(home(), server.protected).get("PREFECT_API_AUTH_STRING")
    if auth:
        headers["Authorization"] = access.basic(auth)
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is this machine's
    with opener.open(urllib.request.Request(f"{server.address}/{path}", data, headers), timeout=timeout) as response:
        return json.load(response)


def _healthy(server: Service) -> bool:
    try:
        return bool(ask(server, "health", timeout=2.0))
    except (OSError, ValueError):
        return False


def has_pool(server: Service) -> bool:
    """Whether the work pool is registered."""
    try:
        return bool(ask(server, f"work_pools/{POOL}"))
    except (OSError, ValueError):
        return False


def stop(names: Sequence[str] = NAMES) -> list[Service]:
    """End recorded services, the worker first, and return those that lived."""
    living = recorded()
    ended = [living[name] for name in reversed(NAMES) if name in living and name in names]
    for service in ended:
        _end(service.pid)
    with _lock:
        record({name: service for name, service in remembered().items() if name not in names})
    return ended


__all__ = [
    "QUIET",
    "Service",
    "home",
    "recorded",
    "start_prefect",
    "start_ray",
    "start_worker",
    "stop",
]
