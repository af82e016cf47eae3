"""Engines as Ray actors: found by name under a standing head, started where they are missing.

Guarantee: ``ensure`` returns live engines or says which did not come up and why; calling it again costs milliseconds
when all live. Control calls go to each engine; nothing here goes through a router.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import ray

from data.errors import UserError
from data.store import RunStore
from relax_core.cluster import services
from relax_core.cluster.actors import NAMESPACE, find, get_or_start, kill, named, result
from relax_core.cluster.handles import CONTROL_TIMEOUT, RayEngines, RayTrainer
from relax_core.cluster.head import connected, standing_address
from relax_core.cluster.machine import gpus_here, here, is_here, require_gpus
from relax_core.cluster.placement import VISIBLE, RunDevices
from relax_core.cluster.reward_hosts import reward_pool
from relax_core.config import RelaxConfig
from relax_core.config.derived import num_engines, trainer_world_size
from relax_core.config.devices import devices_in_all, shared_places
from relax_core.config.environment import read_environment_file
from relax_core.config.problems import raise_problems
from relax_core.engines.actor import SGLangEngine
from relax_core.engines.control import EngineControl
from relax_core.engines.judge import judge_spec, num_judges
from relax_core.engines.spec import Device, EngineSpec, engine_spec
from relax_core.rewards.pools import CallPool
from relax_core.tracking.events import NO_EVENTS
from relax_core.training.actor import start_trainer
from relax_core.training.roles import Role
from relax_core.weights.label import weight_label

_ACTORS: Mapping[Role, str] = MappingProxyType({"actor": "trainer", "critic": "critic"})
"""What the names of a role's actors begin with, behind the run's."""

FRESH = "default"
"""Weight version of an SGLang server that was never told one: it holds what it loaded from its folder."""


@dataclass(frozen=True)
class _Fleet:
    """Engines of one kind.

    Attributes:
        kind: what the names of their actors have behind the run's.
        role: as --resource names it.
        count: how many.
        gpus: devices of each.
        spec: describes one by its number.
    """

    kind: str
    role: str
    count: int
    gpus: int
    spec: Callable[..., EngineSpec]


_KINDS = (".engine-", ".genrm-")
"""What the names of engines' actors have behind the run's."""


def _is_engine(name: str) -> bool:
    return any(kind in name for kind in _KINDS)


def _end(name: str) -> None:
    """End an engine: its server first, which would not notice its actor's death while it hangs."""
    with contextlib.suppress(UserError, ValueError):
        result(ray.get_actor(name, namespace=NAMESPACE).stop.remote(), CONTROL_TIMEOUT, name)
    kill(name)


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
        self._rollout_only = False
        self.timeline = NO_EVENTS
        self._told: set[str] = set()
        self._names: dict[str, str] = {}  # of an engine's actor, by its address
        # of every actor: an actor that was started with other ones does not fit and is replaced
        self._variables, problems = read_environment_file(config.run.env_file)
        raise_problems(problems)

    def connect(self) -> None:
        if self._standing is None:
            run_dir = str(self._config.run.run_dir)
            if run_dir.startswith("memory:"):
                raise UserError(
                    f"--run-dir {run_dir}: memory is seen by one process only, and the trainer is another one.",
                    "Give a folder, or the URL of an object store.",
                )
            self._standing = self._stack.enter_context(connected(self._config.run.ray_address))
            self._found_engines = bool(named(f"{self._run_id}."))

    @cached_property
    def _devices(self) -> RunDevices:
        """Where the actors work; on a CPU there is nothing to share out."""
        places = shared_places(self._config) if self.device == "cuda" else None
        return RunDevices(places, f"{self._run_id}.devices", self._config.run.engine_start_timeout)

    def _make_room(self) -> None:
        """Let a start find its devices free: what is running on them gives up its memory. Later turns give it back."""
        if not self._devices.shared or self._rollout_only:  # nobody would send weights again
            return
        for role in _ACTORS:
            if (handle := find(f"{self._run_id}.{_ACTORS[role]}-rank-0")) is not None:
                with contextlib.suppress(UserError):  # a broken one is replaced by whoever needs it
                    self._trainer(handle, role).offload()
        for name in filter(_is_engine, named(f"{self._run_id}.")):
            if (handle := find(name)) is not None:
                with contextlib.suppress(UserError):
                    RayEngines([handle], []).release()

    def ensure_rollout(self, weights_id: str) -> RayEngines:
        self.connect()
        self._rollout_only = True
        label = weight_label(0, weights_id)
        for index, url in enumerate(self._ensure_engines().urls):
            with EngineControl(url, timeout=CONTROL_TIMEOUT) as control:
                if control.weight_version() not in (label, FRESH):
                    kill(self._engine_name(index))  # it holds other weights
        engines = self._ensure_engines()
        for url in engines.urls:
            with EngineControl(url, timeout=CONTROL_TIMEOUT) as control:
                control.set_weight_version(label)
        return engines

    def ensure_trainer(self, critic: bool = False) -> RayTrainer:
        self.connect()
        if self._devices.shared:  # one after another: each needs the memory that the others give up
            trainer = self._ensure_trainer("actor")
            if critic:
                self._ensure_trainer("critic")
            return trainer
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self._ensure_trainer, "critic") if critic else None
            trainer = self._ensure_trainer("actor")
            if other is not None:
                other.result()
            return trainer

    def ensure_critic(self) -> RayTrainer:
        self.connect()
        return self._ensure_trainer("critic")

    def ensure(self, critic: bool = False) -> tuple[RayTrainer, RayEngines]:
        self.connect()
        if self.device == "cuda":
            require_gpus(devices_in_all(self._config))
        self._rollout_only = False
        if self._devices.shared:
            found = self._ensure_engines()
            return self.ensure_trainer(critic), found
        with ThreadPoolExecutor(1) as pool:  # all take tens of seconds, mostly imports
            engines = pool.submit(self._ensure_engines)
            return self.ensure_trainer(critic), engines.result()

    @property
    def device(self) -> Device:
        return "cuda" if gpus_here() else "cpu"

    def _ensure_trainer(self, role: Role) -> RayTrainer:
        name = f"{self._run_id}.{_ACTORS[role]}"
        before = find(f"{name}-rank-0")
        places = [self._devices.place(role, rank) for rank in range(trainer_world_size(self._config, role))]
        handle = start_trainer(
            self._config,
            name,
            device=self.device,
            timeout=self._config.run.engine_start_timeout,
            variables=self._variables,
            role=role,
            places=tuple(filter(None, places)),
            prepare=self._make_room,
        )
        known = self._trainer(handle, role)
        why = "" if handle == before else "it was not there" if before is None else "dead, or made with other options"
        self._tell(_ACTORS[role], why)
        return known

    def _trainer(self, handle: Any, role: Role) -> RayTrainer:
        """The trainer behind a handle, to which this driver attaches once."""
        known = self._trainers.get(role)
        if known is None or handle != known.handle:
            known = self._trainers[role] = RayTrainer(handle, role)
        return known

    def _tell(self, who: str, started: str) -> None:
        """Tell the timeline of an actor that was started, and why, or found for the first time."""
        if started:
            self.timeline.add("actor_started", who=who, cause=started)
        elif who not in self._told:
            self.timeline.add("actor_found", who=who)
        self._told.add(who)

    def end_engine(self, url: str) -> None:
        if (name := self._names.pop(url, None)) is not None:
            _end(name)

    def ensure_genrm(self) -> RayEngines:
        self.connect()
        gpus = self._config.genrm.genrm_num_gpus_per_engine
        return self._ensure_engines(_Fleet("genrm", "genrm", num_judges(self._config), gpus, judge_spec))

    def reward_pool(self, workers: int, seconds: float, variables: Mapping[str, str]) -> CallPool:
        return reward_pool(self._standing, self._run_id, workers, seconds, {**self._variables, **variables})

    def _rollout(self) -> _Fleet:
        gpus = self._config.cluster.rollout_num_gpus_per_engine
        return _Fleet("engine", "rollout", num_engines(self._config), gpus, engine_spec)

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
        found = self._find_or_start(name, index, fleet)
        self._names[found[1]] = name
        return found

    def _find_or_start(self, name: str, index: int, fleet: _Fleet) -> tuple[Any, str]:
        spec = fleet.spec(self._config, index, self.device, self.log_dir(), self._variables)
        place = self._devices.place(fleet.role, index)
        if place is not None:
            spec = spec.seeing({VISIBLE: place.devices_first})
        handle, who, why = find(name), f"{fleet.kind}-{index}", "it was not there"
        if handle is not None:
            try:
                if not is_here(handle):
                    why = "on another machine than the driver"
                elif result(handle.fits.remote(spec), CONTROL_TIMEOUT, name):
                    found = handle, result(handle.info.remote(), CONTROL_TIMEOUT, name).url
                    self._tell(who, "")
                    return found
                else:
                    why = "dead, or made with other options"
            except UserError as error:  # its server died, or hangs
                why = error.problem
            _end(name)
        timeout = self._config.run.engine_start_timeout
        where: dict[str, Any] = {"num_gpus": fleet.gpus if self.device == "cuda" else 0, **here()}
        environment = self._variables
        if place is not None:
            where, environment = {"options": place.options}, {**environment, **place.environment}
            self._make_room()
        handle, _ = get_or_start(SGLangEngine, name, args=(spec,), env=environment, timeout=timeout, **where)
        try:
            started = handle, result(handle.start.remote(), timeout + 30, name).url
            self._tell(who, why)
            return started
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
            self.connect()
        for name in named(f"{self._run_id}."):
            if _is_engine(name):
                _end(name)
            else:
                kill(name)
        if self._devices.shared:
            self._devices.give_back()

    def release_own(self) -> None:
        if not self._found_engines:
            self.release()

    def close(self) -> None:
        if self._standing is False:
            self.release()
        self._stack.close()
