"""Engines as Ray actors: found by name under a standing head, started where they are missing.

Guarantee: ``ensure`` returns live engines or says which did not come up and why; calling it again costs milliseconds
when all live. Control calls go to each engine; nothing here goes through a router.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import ray

from data.errors import UserError
from data.store import RunStore, TableRef
from relax_core.cluster import services
from relax_core.cluster.actors import NAMESPACE, find, get_or_start, kill, named, result
from relax_core.cluster.head import connected, standing_address
from relax_core.config import RelaxConfig
from relax_core.config.derived import num_engines
from relax_core.config.environment import read_environment_file
from relax_core.config.problems import raise_problems
from relax_core.engines.actor import SGLangEngine
from relax_core.engines.control import EngineControl
from relax_core.engines.judge import judge_spec, num_judges
from relax_core.engines.spec import Device, EngineSpec, engine_spec
from relax_core.training.actor import NAMES, start_trainer
from relax_core.training.roles import Role
from relax_core.weights.label import weight_label

_CONTROL_TIMEOUT = 60.0

_ACTORS: Mapping[Role, str] = MappingProxyType({"actor": "trainer", "critic": "critic"})
"""What the names of a role's actors begin with, behind the run's."""

FRESH = "default"
"""Weight version of an SGLang server that was never told one: it holds what it loaded from its folder."""


class RayTrainer:
    """The trainer of a role behind its leading actor, rank 0. Every mutating call carries this driver's epoch."""

    def __init__(self, handle: Any, role: Role = "actor") -> None:
        self.handle, self._name = handle, NAMES[role]
        self._epoch = result(handle.attach.remote(), _CONTROL_TIMEOUT, self._name)

    def _call(self, method: str, *args: Any) -> Any:
        return result(getattr(self.handle, method).remote(self._epoch, *args), None, self._name)

    def status(self) -> Mapping[str, Any]:
        return dict(result(self.handle.status.remote(), _CONTROL_TIMEOUT, self._name))

    def initialise(self) -> None:
        self._call("initialise")

    def train(self, base: int, target: int, batch: TableRef, store_url: str, weights_id: str) -> Mapping[str, Any]:
        return dict(self._call("train", base, target, batch, store_url, weights_id))

    def forward(
        self, version: int, rollout: TableRef, store_url: str, columns: Sequence[str], weights_id: str
    ) -> pa.Table:
        return self._call("forward", version, rollout, store_url, list(columns), weights_id)

    def save(self, url: str, iteration: int) -> Mapping[str, Any]:
        return dict(self._call("save", url, iteration))

    def finish_save(self) -> Mapping[str, Any]:
        return dict(self._call("finish_save"))

    def load(self, url: str, iteration: int) -> None:
        self._call("load", url, iteration)

    def push_weights(self, version: int, urls: Sequence[str], weights_id: str) -> Mapping[str, Any]:
        return dict(self._call("push_weights", version, list(urls), weights_id))

    def export_hf(self, folder: str) -> None:
        self._call("export_hf", folder)


class RayEngines:
    """SGLang engines behind their actors."""

    def __init__(self, handles: Sequence[Any], urls: Sequence[str]) -> None:
        self._handles = list(handles)
        self.urls = list(urls)

    def _each(self, method: str) -> list[Any]:
        calls = [getattr(handle, method).remote() for handle in self._handles]
        return [result(call, _CONTROL_TIMEOUT, f"engine {i}") for i, call in enumerate(calls)]

    def abort_all(self) -> None:
        self._each("abort_all")

    def check(self) -> None:
        self._each("info")


@dataclass(frozen=True)
class _Fleet:
    """Engines of one kind.

    Attributes:
        kind: what the names of their actors have behind the run's.
        count: how many.
        gpus: devices of each.
        spec: describes one by its number.
    """

    kind: str
    count: int
    gpus: int
    spec: Callable[..., EngineSpec]


_KINDS = (".engine-", ".genrm-")
"""What the names of engines' actors have behind the run's."""


class RayBackend:
    """Starts or finds the trainer and the engines of a run.

    Args:
        run_id: names of the actors begin with it.

    Raises:
        UserError: the file of environment variables cannot be used.
    """

    def __init__(self, config: RelaxConfig, run_id: str) -> None:
        self._config = config
        self._run_id = run_id
        self._stack = contextlib.ExitStack()
        self._standing: bool | None = None
        self._found_engines = False
        self._trainers: dict[Role, RayTrainer] = {}
        # of every actor: an actor that was started with other ones does not fit and is replaced
        self._variables, problems = read_environment_file(config.run.env_file)
        raise_problems(problems)

    def _connect(self) -> None:
        # On the driver's own thread: what Ray starts here ends with the thread that started it.
        if self._standing is None:
            run_dir = str(self._config.run.run_dir)
            if run_dir.startswith("memory:"):
                raise UserError(
                    f"--run-dir {run_dir}: memory is seen by one process only, and the trainer is another one.",
                    "Give a folder, or the URL of an object store.",
                )
            self._standing = self._stack.enter_context(connected(self._config.run.ray_address))
            self._found_engines = bool(named(f"{self._run_id}."))

    def ensure_rollout(self, weights_id: str) -> RayEngines:
        self._connect()
        label = weight_label(0, weights_id)
        for index, url in enumerate(self._ensure_engines().urls):
            with EngineControl(url) as control:
                if control.weight_version() not in (label, FRESH):
                    kill(self._engine_name(index))  # it holds other weights
        engines = self._ensure_engines()
        for url in engines.urls:
            with EngineControl(url) as control:
                control.set_weight_version(label)
        return engines

    def ensure_trainer(self, critic: bool = False) -> RayTrainer:
        self._connect()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self._ensure_trainer, "critic") if critic else None
            trainer = self._ensure_trainer("actor")
            if other is not None:
                other.result()
            return trainer

    def ensure_critic(self) -> RayTrainer:
        self._connect()
        return self._ensure_trainer("critic")

    def ensure(self, critic: bool = False) -> tuple[RayTrainer, RayEngines]:
        self._connect()
        with ThreadPoolExecutor(1) as pool:  # all take tens of seconds, mostly imports
            engines = pool.submit(self._ensure_engines)
            return self.ensure_trainer(critic), engines.result()

    @property
    def device(self) -> Device:
        return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"

    def _ensure_trainer(self, role: Role) -> RayTrainer:
        handle = start_trainer(
            self._config,
            f"{self._run_id}.{_ACTORS[role]}",
            device=self.device,
            timeout=self._config.run.engine_start_timeout,
            variables=self._variables,
            role=role,
        )
        known = self._trainers.get(role)
        if known is None or handle != known.handle:
            known = self._trainers[role] = RayTrainer(handle, role)
        return known

    def ensure_genrm(self) -> RayEngines:
        self._connect()
        gpus = self._config.genrm.genrm_num_gpus_per_engine
        return self._ensure_engines(_Fleet("genrm", num_judges(self._config), gpus, judge_spec))

    def _rollout(self) -> _Fleet:
        gpus = self._config.cluster.rollout_num_gpus_per_engine
        return _Fleet("engine", num_engines(self._config), gpus, engine_spec)

    def _ensure_engines(self, fleet: _Fleet | None = None) -> RayEngines:
        fleet = fleet or self._rollout()
        count = fleet.count
        wanted = {self._engine_name(index, fleet.kind) for index in range(count)}
        for name in named(f"{self._run_id}.{fleet.kind}-"):
            if name not in wanted:
                kill(name)  # of a time when the run had more engines
        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(lambda index: self._ensure_engine(index, fleet), range(count)))
        return RayEngines([handle for handle, _ in found], [url for _, url in found])

    def _engine_name(self, index: int, kind: str = "engine") -> str:
        return f"{self._run_id}.{kind}-{index}"

    def _ensure_engine(self, index: int, fleet: _Fleet) -> tuple[Any, str]:
        name = self._engine_name(index, fleet.kind)
        spec = fleet.spec(self._config, index, self.device, self.log_dir(), self._variables)
        handle = find(name)
        if handle is not None:
            try:
                if result(handle.fits.remote(spec), _CONTROL_TIMEOUT, name):
                    return handle, result(handle.info.remote(), _CONTROL_TIMEOUT, name).url
            except UserError:
                pass  # its server died, or hangs
            kill(name)
        timeout = self._config.run.engine_start_timeout
        gpus = fleet.gpus if self.device == "cuda" else 0
        environment = self._variables
        handle, _ = get_or_start(SGLangEngine, name, args=(spec,), env=environment, num_gpus=gpus, timeout=timeout)
        try:
            return handle, result(handle.start.remote(), timeout + 30, name).url
        except UserError:
            kill(name)
            raise

    def log_dir(self) -> str:
        """Folder of the engines' logs: in the run directory where that is a local folder."""
        local = RunStore(str(self._config.run.run_dir)).local_path("logs")
        folder = local or str(services.home() / "logs" / self._run_id)
        os.makedirs(folder, exist_ok=True)
        return folder

    def release(self) -> None:
        """End the run's actors, also under a standing head: a finished run needs none."""
        if self._standing is None:
            if standing_address(self._config.run.ray_address) is None:
                return  # nothing can be there
            self._connect()
        for name in named(f"{self._run_id}."):
            if any(kind in name for kind in _KINDS):
                with contextlib.suppress(UserError, ValueError):
                    handle = ray.get_actor(name, namespace=NAMESPACE)
                    result(handle.stop.remote(), _CONTROL_TIMEOUT, name)
            kill(name)

    def release_own(self) -> None:
        if not self._found_engines:
            self.release()

    def close(self) -> None:
        if self._standing is False:
            self.release()
        self._stack.close()
