"""All standing services at once: started side by side, registered, ended in order.

Guarantee: ``raise_services`` starts what is missing and touches nothing else, and tells of each as it comes; when one
fails the others stay, and the same call again goes on from there. ``end_services`` ends the drivers below the worker in
an orderly way first, so that their runs go on from the last finished stage another time.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import psutil

from data.errors import UserError
from relax_core.cluster import drivers, processes, services
from relax_core.cluster.ports import PortRange
from relax_core.cluster.record import Service, alone, log_of, recorded, remembered

Tell = Callable[[str], None]

T = TypeVar("T")

TELL_SECONDS = 10.0
"""Between two words about what is still waited for."""

_REGISTERED = ("work pool", "deployment", "automation")

_TRIES = 3
"""Of registering: it is idempotent, and a database on a busy disk may refuse a request."""


@dataclass
class Wish:
    """What `relax up` is asked for; see ``start_ray`` and ``start_prefect``.

    Attributes:
        folder: working folder of flow runs, unless a worker has one already.
        register: the command that registers work pool and deployments; it finds the server in its environment, and is
            called in the working folder.
    """

    folder: str
    register: Sequence[str]
    host: str | None = None
    ray_port: int | None = None
    ray_ports: PortRange | None = None
    prefect_port: int | None = None
    worker: bool = True


@dataclass
class _Waits:
    """What is waited for, told now and then."""

    tell: Tell
    open: dict[str, float] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self.ended.wait(TELL_SECONDS):
            parts = [f"{what} ({time.monotonic() - began:.0f} s)" for what, began in list(self.open.items())]
            if parts:
                self.tell(f"waiting for {', '.join(parts)}")

    def start(self, what: str, work: Callable[[], Service]) -> Service:
        """Start a service, and tell of it."""
        began, before = time.monotonic(), recorded().values()
        service = self.during(what, work)
        seconds = time.monotonic() - began
        state = "stands already" if service in before else f"started in {seconds:.1f} s"
        self.tell(
            f"{service.name:8} {state}: {service.folder or service.address} (process {service.pid}, log {service.log})"
        )
        return service

    def during(self, what: str, work: Callable[[], T]) -> T:
        """Do something that may take long."""
        self.open[what] = time.monotonic()
        try:
            return work()
        finally:
            del self.open[what]


def raise_services(wish: Wish, tell: Tell) -> dict[str, Service]:
    """Start what is missing.

    Args:
        tell: gets a line at a time, from several threads.

    Returns:
        What stands now, by name.

    Raises:
        UserError: something did not come up.
    """
    waits = _Waits(tell)
    threading.Thread(target=waits.watch, name="telling", daemon=True).start()

    def prefect() -> None:
        server = waits.start("the Prefect server", lambda: services.start_prefect(wish.prefect_port, wish.host))
        registering = pool.submit(waits.during, "the deployments", lambda: tell(_register(wish, server)))
        if wish.worker:
            while not (registering.done() or services.has_pool(server)):  # a worker would make another pool
                time.sleep(0.1)
            waits.start("the worker", lambda: services.start_worker(server, wish.folder))
        registering.result()

    def ray() -> None:
        waits.start("the Ray head", lambda: services.start_ray(wish.ray_port, host=wish.host, ports=wish.ray_ports))

    try:
        with alone(), ThreadPoolExecutor(3) as pool:
            wish = replace(wish, folder=_folder(wish.folder))
            began = [pool.submit(ray), pool.submit(prefect)]
            errors = [error for one in began if (error := one.exception()) is not None]
    finally:
        waits.ended.set()
    for error in errors[1:]:
        tell(str(error))
    if errors:
        raise errors[0]
    return services.recorded()


def _folder(asked: str) -> str:
    """The working folder of flow runs: that of the worker, until `relax down`, wherever `relax up` is called; also of
    one that has died, whose runs go on there.

    Raises:
        UserError: a worker stands in a folder that is gone.
    """
    worker = remembered().get("worker")
    if worker is None or not worker.folder or os.path.isdir(worker.folder):
        return worker.folder if worker is not None and worker.folder else asked
    if worker.alive():
        raise UserError(
            f"The worker stands in {worker.folder}, which is gone.", "End it with `relax down`, then `relax up` again."
        )
    return asked


def _register(wish: Wish, server: Service) -> str:
    own = services.service_environment(services.prefect_environment(server))
    environment = processes.inherited(own, services.QUIET)
    log = log_of("register")
    log.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _TRIES + 1):
        with log.open("w") as output:
            done = subprocess.run(
                wish.register,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=wish.folder,
                check=False,
            )
        if done.returncode == 0:
            break
        if attempt == _TRIES:
            raise UserError("The deployments were not registered.", f"The log is {log}:", processes.tail(log))
        time.sleep(attempt)
    made = [line.removeprefix("registered ") for line in log.read_text().splitlines() if line.startswith("registered ")]
    return f"{'register':8} {_by_kind(made) if made else 'everything is registered already'}"


def _by_kind(made: list[str]) -> str:
    """`deployment a`, `deployment b` as `deployments a, b`; a line for each kind."""
    lines = []
    for kind in _REGISTERED:
        names = [one.removeprefix(f"{kind} ") for one in made if one.startswith(f"{kind} ")]
        if names:
            lines.append(f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}")
    return f"\n{'':9}".join([*lines, *(one for one in made if not one.startswith(_REGISTERED))])


def end_services(tell: Tell) -> list[Service]:
    """End what was started.

    Returns:
        What lived.
    """
    with alone():
        worker = services.recorded().get("worker")
        if worker is not None:
            _end_flow_runs(worker, tell)
        ended = []
        for name in reversed(services.NAMES):
            for service in services.stop([name]):
                tell(f"{service.name:8} ended (process {service.pid})")
                ended.append(service)
        return ended


def _end_flow_runs(worker: Service, tell: Tell) -> None:
    """Ask the flow runs of a worker to end, and wait: a driver reports its end to Prefect while that still stands."""
    members = {process.pid for process in processes.family(worker.pid)}
    driving = {driver.pid: driver for driver in drivers.living() if driver.pid in members}
    try:
        others = {child.pid for child in psutil.Process(worker.pid).children()}
    except psutil.NoSuchProcess:
        return
    above = {parent.pid for pid in driving for parent in _parents(pid)}
    asked = [*driving, *(others - above - set(driving))]
    if asked:
        tell(f"ending {len(asked)} flow run{'s' if len(asked) > 1 else ''} of the worker, in order")
    with processes.halted(worker.pid):  # it would take up at once what they put off
        processes.terminate(asked)
    for driver in driving.values():
        tell(f"run      {driver.run} ended; it goes on from its last finished stage with the next `relax up`")


def _parents(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).parents()
    except psutil.NoSuchProcess:
        return []
