"""The trainer's ranks as Ray actors, led by rank 0.

Guarantee: a driver makes one call to rank 0, which makes it on every rank, so that a killed driver never leaves some
ranks waiting for others. Calls that change something run one at a time and only for the newest driver; ``status``
answers meanwhile. When a rank dies or one fails while others wait for it, the call ends with that error, the group
counts as broken, and ``start_trainer`` replaces it.

This module is imported by drivers too: Megatron, which changes torch for its process, is imported by actors only.
"""

import concurrent.futures
import os
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import ray

from data.errors import Lost, UserError
from data.store import TableRef
from relax_core.cluster.actors import NAMESPACE, find, get_or_start, kill, named, result
from relax_core.cluster.machine import here, is_here
from relax_core.cluster.placement import Place
from relax_core.config.derived import trainer_world_size
from relax_core.config.options import OPTIONS, Option, get_option, json_values, passed_values
from relax_core.config.sections import RelaxConfig
from relax_core.engines.meeting import meeting_place
from relax_core.run.transport.base import handed_on
from relax_core.tracking.actor_logs import keep_log
from relax_core.training.errors import DirtyTrainer, StaleDriver
from relax_core.training.roles import STAGE_OF, Role

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

_ALSO_READ = (
    "advantage_estimator",
    "colocate",
    "n_samples_per_prompt",
    "opd_type",
    "resource",
    "rollout_batch_size",
    "rollout_num_gpus_per_engine",
    "use_opd",
)
"""Options that a trainer reads although they take effect elsewhere."""

NAMES: Mapping[Role, str] = MappingProxyType({"actor": "the trainer", "critic": "the critic"})
"""What people are told that a role's trainer is."""

GRACE_SECONDS = 30.0
"""How long the other ranks may take to end a call that failed on one."""


class TrainerActor:
    """One rank; rank 0 leads. Methods that take an ``epoch`` are for drivers and exist on rank 0 only.

    Args:
        config: resolved options.
        rank, world_size: of the trainer's ranks.
        device: ``cpu`` or ``cuda``.
        variables: those of the run that its process was started with.
        role: which of the run's models it trains.
        devices: of all ranks, where they share them with others.
    """

    def __init__(
        self,
        config: RelaxConfig,
        rank: int,
        world_size: int,
        device: str,
        variables: Mapping[str, str] = NO_VARIABLES,
        role: Role = "actor",
        devices: Sequence[str] = (),
    ) -> None:
        self._variables, self._role, self._devices = dict(variables), role, devices
        self._config, self._rank, self._world_size, self._device = config, rank, world_size, device
        self._trainer: Any = None
        self._peers: list[Any] = []
        # One thread for all of the model's work: libraries keep a pool of threads for each thread that calls them.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        self._lock = threading.Lock()
        self._epoch = 0
        self._broken = ""
        keep_log(config.run.run_dir, f"{'critic' if role == 'critic' else 'trainer'}-rank-{rank}")

    # -- forming the group ---------------------------------------------------------------------------------------

    def form(self, peers: Sequence[Any], host: str) -> None:
        """Rank 0: join all ranks and go to version 0.

        Args:
            peers: handles of ranks 1, 2, ...
            host: address of this machine that the other ranks reach.
        """
        with self._lock:
            self._peers = list(peers)
            self._everywhere("join", meeting_place(host))
            self._everywhere("initialise")

    def fits(self, options: dict[str, Any]) -> bool:
        """Whether the group is sound and was made with these options."""
        sound = self._trainer is not None and not self._broken
        return sound and trainer_options(self._config, self._variables, self._role, self._devices) == options

    def local(self, method: str, *args: Any) -> Any:
        """Run a method of this rank's trainer; called by rank 0."""
        return self._submit(method, args).result()

    # -- for drivers ---------------------------------------------------------------------------------------------

    def attach(self, epoch: int | None = None) -> int:
        """Take over the trainer: the next epoch, or again the one that this driver has.

        Raises:
            StaleDriver: a newer driver has taken over since.
        """
        with_next = self._epoch + 1 if epoch is None else epoch
        self._require(with_next)
        self._epoch = with_next
        return with_next

    def status(self) -> dict[str, Any]:
        """Where rank 0 is; also during a long call. ``dirty`` is true as well for a group that is broken."""
        trainer = self._trainer
        if trainer is None:
            return {"version": 0, "last_batch_sha256": None, "weights_id": None, "dirty": True, "busy_with": "start"}
        status = dict(trainer.status())
        return {**status, "dirty": status["dirty"] or bool(self._broken), "broken": self._broken, "epoch": self._epoch}

    def initialise(self, epoch: int) -> None:
        """See ``Trainer.initialise``."""
        self._lead(epoch, "initialise")

    def train(
        self, epoch: int, base: int, target: int, batch: TableRef, store_url: str, weights_id: str = ""
    ) -> dict[str, Any]:
        """See ``Trainer.train``; the result as a dictionary."""
        done: dict[str, Any] = self._lead(epoch, "train", base, target, batch, store_url, weights_id).to_json()
        return done

    def accumulate(self, epoch: int, version: int, rows: Any, number: int, weights_id: str = "") -> dict[str, Any]:
        """See ``Trainer.accumulate``; a table goes to the other ranks through Ray's object store, once."""
        self._require(epoch)
        rows = handed_on(rows, 1 + len(self._peers))
        return dict(self._lead(epoch, "accumulate", version, rows, number, weights_id))

    def forward(
        self, epoch: int, version: int, rollout: TableRef, store_url: str, columns: Sequence[str], weights_id: str = ""
    ) -> Any:
        """See ``Trainer.forward``."""
        return self._lead(epoch, "forward", version, rollout, store_url, columns, weights_id)

    def save(self, epoch: int, url: str, iteration: int) -> dict[str, Any]:
        """See ``Trainer.save``."""
        return dict(self._lead(epoch, "save", url, iteration))

    def finish_save(self, epoch: int) -> dict[str, Any]:
        """See ``Trainer.finish_save``."""
        return dict(self._lead(epoch, "finish_save"))

    def load(self, epoch: int, url: str, iteration: int) -> None:
        """See ``Trainer.load``."""
        self._lead(epoch, "load", url, iteration)

    def push_weights(self, epoch: int, version: int, urls: list[str], weights_id: str = "") -> dict[str, Any]:
        """See ``Trainer.push_weights``."""
        return dict(self._lead(epoch, "push_weights", version, urls, weights_id))

    def export_hf(self, epoch: int, folder: str) -> None:
        """See ``Trainer.export_hf``."""
        self._lead(epoch, "export_hf", folder)

    def offload(self, epoch: int) -> int:
        """See ``Trainer.offload``; the bytes of rank 0."""
        return int(self._lead(epoch, "offload"))

    def onload(self, epoch: int) -> int:
        """See ``Trainer.onload``; the bytes of rank 0."""
        return int(self._lead(epoch, "onload"))

    # -- inside --------------------------------------------------------------------------------------------------

    def _require(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise StaleDriver(epoch, self._epoch)

    def _lead(self, epoch: int, method: str, *args: Any) -> Any:
        with self._lock:
            self._require(epoch)  # after the wait: another driver may have come meanwhile
            self._epoch = max(epoch, self._epoch)  # a trainer that was replaced meets a driver that was not
            if self._broken:
                raise DirtyTrainer(self._broken)
            return self._everywhere(method, *args)

    def _everywhere(self, method: str, *args: Any) -> Any:
        """The method on all ranks; rank 0's result."""
        shared = [ray.put(value) if self._peers and isinstance(value, pa.Table) else value for value in args]
        calls: list[Future[Any]] = [peer.local.remote(method, *shared).future() for peer in self._peers]
        calls.insert(0, self._submit(method, args))
        _, waiting = concurrent.futures.wait(calls, return_when=concurrent.futures.FIRST_EXCEPTION)
        if waiting:
            _, waiting = concurrent.futures.wait(calls, timeout=GRACE_SECONDS)
        errors = {rank: error for rank, call in enumerate(calls) if call.done() and (error := call.exception())}
        if not errors:
            return calls[0].result()
        rank, error = min(errors.items(), key=lambda item: _blame(item[1]))
        cause = getattr(error, "cause", None) or error  # Ray wraps what a peer raised
        if waiting or len(errors) < len(calls) or isinstance(error, ray.exceptions.RayActorError):
            self._broken = f"{method} failed on rank {rank}: {_line(cause)}"
            for peer in self._peers:
                ray.kill(peer)
        if isinstance(cause, UserError):
            raise cause
        details = "".join(traceback.format_exception(error))
        who = NAMES[self._role].capitalize()
        kind = Lost if self._broken or _of_the_machine(cause) else UserError
        raise kind(f"{who}'s rank {rank} failed in {method}: {_line(cause)}", details=details)

    def _submit(self, method: str, args: Sequence[Any]) -> Future[Any]:
        return self._worker.submit(self._run, method, args)

    def _run(self, method: str, args: Sequence[Any]) -> Any:
        if self._trainer is None:
            from relax_core.training.trainer import Trainer

            self._trainer = Trainer(self._config, self._rank, self._world_size, self._device, self._role)
        return getattr(self._trainer, method)(*args)


def _of_the_machine(error: BaseException) -> bool:
    """Whether memory, a device or a connection failed, not a program: another start may go well."""
    torch_class = type(error).__module__.partition(".")[0] == "torch"  # out of memory, CUDA, NCCL
    return torch_class or isinstance(error, MemoryError | ConnectionError | TimeoutError)


def trainer_options(
    config: RelaxConfig,
    variables: Mapping[str, str] = NO_VARIABLES,
    role: Role = "actor",
    devices: Sequence[str] = (),
) -> dict[str, Any]:
    """The options that a role's trainer is made with: with other ones it has to be made anew."""
    names = [name for name, option in OPTIONS.items() if _makes(option, role)]
    options = {name: get_option(config, name) for name in (*names, *_ALSO_READ)}
    options |= passed_values(config, "megatron")
    return {**json_values(options), "variables": dict(variables), "role": role, "devices": list(devices)}


def _makes(option: Option, role: Role) -> bool:
    """Whether a role's trainer depends on an option: one of its own stage, or one of training and of neither stage."""
    stages = set(option.details.stages)
    in_training = (option.effect or "").startswith("relax_core/training/")
    return STAGE_OF[role] in stages or (in_training and stages.isdisjoint(STAGE_OF.values()))


def start_trainer(
    config: RelaxConfig,
    name: str,
    *,
    namespace: str = NAMESPACE,
    device: str = "cpu",
    timeout: float = 600.0,
    variables: Mapping[str, str] = NO_VARIABLES,
    role: Role = "actor",
    places: Sequence[Place] = (),
    prepare: Callable[[], object] = lambda: None,
) -> Any:
    """Find the trainer or start it: actors ``<name>-rank-<r>``, joined and at version 0.

    A group of which a rank is gone, that is broken, or that was made with other options is ended and replaced.

    Args:
        timeout: seconds that the start may take.
        variables: environment variables of every rank; what a rank cannot do without wins over them.
        role: which of the run's models it trains; it has the ranks of that role.
        places: of its ranks, where they share devices with others; else Ray gives each a device of its own.
        prepare: called before it is started, not where it is found.

    Returns:
        The handle of rank 0.

    Raises:
        UserError: it did not come up; the text says why.
    """
    world, what = trainer_world_size(config, role), NAMES[role]
    names = [f"{name}-rank-{rank}" for rank in range(world)]
    devices = tuple(place.devices for place in places)
    options = trainer_options(config, variables, role, devices)
    handles = [find(actor, namespace) for actor in names]
    leader = handles[0]
    if leader is not None and all(handle is not None for handle in handles):
        try:
            if all(map(is_here, handles)) and result(leader.fits.remote(options), 60, what):
                return leader
        except UserError:
            pass  # it died, or hangs
    _end(name, namespace)
    prepare()
    env = trainer_environment(config, variables, role)

    def start(rank: int) -> Any:
        place = places[rank] if places else None
        own = {"num_gpus": 1 if device == "cuda" else 0, **here()}
        handle, _ = get_or_start(
            TrainerActor,
            names[rank],
            namespace=namespace,
            args=(config, rank, world, device, dict(variables), role, devices),
            env={**env, **place.environment} if place else env,
            timeout=timeout,
            **({"options": place.options} if place else own),
        )
        return handle

    with ThreadPoolExecutor(world) as pool:
        leader, *peers = pool.map(start, range(world))
    try:
        result(leader.form.remote(peers, "127.0.0.1"), timeout, what)
    except BaseException:
        _end(name, namespace)
        raise
    return leader


def _end(name: str, namespace: str) -> None:
    """End all ranks of a group, also those of a former, larger one."""
    for actor in named(f"{name}-rank-", namespace):
        kill(actor, namespace)


def trainer_environment(
    config: RelaxConfig, variables: Mapping[str, str] = NO_VARIABLES, role: Role = "actor"
) -> dict[str, str]:
    """Of every rank: a share of the cores, collectives over loopback (all ranks are on one machine), the run's
    variables, what a rank cannot do without, and then --train-env-vars, which win."""
    threads = str(max(1, (os.cpu_count() or 1) // trainer_world_size(config, role)))
    # Passive: threads that spin while they wait take the cores from the engine and from each other.
    env = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads), "OMP_WAIT_POLICY": "passive"}
    env["GLOO_SOCKET_IFNAME"] = "lo"
    return {**env, **variables, "NCCL_CUMEM_ENABLE": "0", **config.training.train_env_vars}


def _blame(error: BaseException) -> int:
    """Which of several ranks' errors tells the cause: a death, then our own errors, then what a lost peer causes."""
    if isinstance(error, ray.exceptions.RayActorError):
        return 0
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, UserError):
        return 1
    text = str(cause)
    return 3 if "onnection" in text or "gloo" in text or "NCCL" in text else 2


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
