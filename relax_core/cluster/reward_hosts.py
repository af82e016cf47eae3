"""Processes of reward functions below Ray actors: one ``RewardHost`` on each node.

Guarantee: as ``RewardPool``, on the whole cluster: all hosts together run at most as many processes as one pool may. A
host that dies, or does not answer for a minute, is replaced, and its calls go on as ``relax_core.rewards.spread`` says;
its processes end with it. A host that lives is found by its name, under a standing head by a new driver too. Calls
change nothing, so that they carry no epoch: those that an earlier driver has left end when it is silent for a while.
"""

import functools
import hashlib
import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import data
import relax_core
from data.errors import UserError
from relax_core import signs
from relax_core.cluster.actors import NAMESPACE, find, get_or_start, kill, result
from relax_core.rewards.host import Opening, RewardHost, Setting, machine
from relax_core.rewards.messages import Batch, Packed, Question, Result, Task, Tell, nobody
from relax_core.rewards.pool import RewardPool
from relax_core.rewards.pools import CallPool
from relax_core.rewards.process import Surroundings
from relax_core.rewards.spread import Reply, spread

KIND = "rewards"
"""What the names of hosts have behind the run's."""

SILENT_SECONDS = 60.0
"""How long a host may be silent; it answers each second."""

_START_SECONDS = 120.0
_POLL_SECONDS = 1.0
_CPUS = 0.01  # Ray does not look at the node that an actor wants which needs no processor
_THREADS = 64
"""Calls to a host that are answered at a time."""


def reward_pool(
    standing: bool | None, run_id: str, workers: int, seconds: float, variables: Mapping[str, str]
) -> CallPool:
    """Processes below the hosts of a run. Where no engine is needed, none is started for rewards: they are below this
    process then.

    Args:
        standing: whether the cluster outlives this process; None: it is connected to none.
        run_id: names of the hosts begin with it.
        workers, seconds, variables: see ``RewardPool``.
    """
    if standing is None:
        return RewardPool(workers, seconds, variables)
    return RayRewardPool(run_id, workers, seconds, variables)


@functools.cache
def code_hash() -> str:
    """SHA-256 of the source that hosts and their processes run."""
    found = hashlib.sha256()
    for package in (data, relax_core):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            found.update(f"{package.__name__}/{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()


class RewardActor(RewardHost):
    """A host to which questions and from which answers go packed: Ray's own packing costs several times as much."""

    def exchange_packed(self, call: str, questions: bytes, seconds: float, last: bool, opening: Any) -> bytes | None:
        """See ``RewardHost.exchange``."""
        answers = self.exchange(call, pickle.loads(questions), seconds, last, opening)
        return None if answers is None else pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)


class RayRewardPool:
    """As ``RewardPool``, below actors. It works from several threads at once.

    Args:
        run_id: names of the actors begin with it.
        workers, seconds, variables: see ``RewardPool``.
        silent: how long a host may be silent, in seconds.
    """

    def __init__(
        self, run_id: str, workers: int, seconds: float, variables: Mapping[str, str], silent: float = SILENT_SECONDS
    ) -> None:
        self._run_id, self._seconds, self._variables, self.silent = run_id, seconds, dict(variables), silent
        self._client = uuid.uuid4().hex
        self._surroundings, self._machine = Surroundings(dict(os.environ), os.getcwd()), machine()
        self._nodes = _nodes()
        count = min(len(self._nodes), workers)
        self.shares: Sequence[int] = [workers // count + (number < workers % count) for number in range(count)]
        self._handles: list[Any] = [None] * count
        self._locks = [threading.Lock() for _ in range(count)]
        self._lock = threading.Lock()
        self._next = 0
        self.closed = False

    def run(
        self,
        tasks: Sequence[Task],
        seconds: Sequence[float] | None = None,
        until_failed: bool = False,
        tell: Tell = nobody,
    ) -> list[Result]:
        """See ``RewardPool.run``."""
        limits = seconds or [self._seconds] * len(tasks)
        functions = {task.function: task.function for task in tasks}

        def ask(places: Sequence[int]) -> list[Question]:
            packed = [Packed.of(task, functions[task.function]) for task in (tasks[place] for place in places)]
            return [Question((place,), one, limits[place]) for place, one in zip(places, packed, strict=True)]

        return self._spread(len(tasks), ask, not any(name.custom for name in functions), until_failed, tell)

    def run_batch(self, batch: Batch, tell: Tell = nobody) -> list[Result]:
        """See ``RewardPool.run_batch``: all of them run on one host."""

        def ask(places: Sequence[int]) -> list[Question]:
            some = replace(batch, calls=tuple(batch.calls[place] for place in places))
            return [Question(tuple(places), some, batch.seconds)]

        return self._spread(
            len(batch.calls), ask, not batch.function.custom, batch.until_failed, tell, batch.concurrency
        )

    def close(self) -> None:
        """Let the hosts end what this process has asked; they themselves live on."""
        self.closed = True
        left = [handle.leave.remote(self._client) for handle in self._handles if handle is not None]
        if left:
            ray.wait(left, num_returns=len(left), timeout=5)

    def _spread(
        self,
        count: int,
        ask: Callable[[Sequence[int]], Sequence[Question]],
        warm: bool,
        until_failed: bool,
        tell: Tell,
        together: int | None = None,
    ) -> list[Result]:
        """``together``: of calls that run on one host, how many at once."""
        if self.closed:
            raise RuntimeError("the pool is closed")
        with self._lock:
            first, self._next = self._next, (self._next + 1) % len(self.shares)
        settings = [
            Setting(self._client, warm, share, self._seconds, self._variables, self._surroundings, self._machine)
            for share in self.shares
        ]
        talk = _Talk(self, [Opening(setting, until_failed and together is None) for setting in settings])
        try:
            return spread(
                talk,
                count,
                ask,
                until_failed=until_failed,
                few=lambda host: together or self.shares[host],
                first=first,
                one=together is not None,
                closed=lambda: self.closed,
                tell=tell,
            )
        finally:
            talk.end()

    def handle(self, number: int, gone: Any = None) -> Any:
        """The actor of a host, which is started if there is none.

        Args:
            gone: one that is of no more use.

        Raises:
            UserError: it cannot be started.
        """
        with self._locks[number]:
            handle = self._handles[number]
            if handle is None or handle == gone:
                self._handles[number] = handle = self._found(number, gone)
            return handle

    def _found(self, number: int, gone: Any) -> Any:
        name = f"{self._run_id}.{KIND}-{number}"
        if gone is not None and _named(name) == gone:
            kill(name)  # it is dead, or does not answer
        found = find(name)
        if found is not None and not _fits(found, name):
            kill(name)
        try:
            return _started(name, self._nodes[number])
        except UserError:  # as when the node is lost
            return _started(name, self._nodes[0])


class _Talk:
    """The ``Hosts`` of one call."""

    def __init__(self, pool: RayRewardPool, openings: Sequence[Opening]) -> None:
        self.shares = pool.shares
        self._pool, self._openings, self._name = pool, openings, uuid.uuid4().hex
        self._known: dict[int, Any] = {}
        self._gone: dict[int, Any] = {}
        self._open: dict[Any, tuple[int, float]] = {}  # exchange -> host and since when

    def send(self, host: int, questions: Sequence[Question], last: bool) -> None:
        handle = self._pool.handle(host, self._gone.pop(host, None))
        opening = None if self._known.get(host) == handle else self._openings[host]
        self._known[host] = handle
        packed = pickle.dumps(list(questions), pickle.HIGHEST_PROTOCOL)
        exchange = handle.exchange_packed.remote(self._name, packed, _POLL_SECONDS, last, opening)
        self._open[exchange] = host, time.monotonic()

    def receive(self) -> list[Reply]:
        signs.alive()  # calls have a limit of their own, and hosts that do not answer are replaced
        ready, _ = ray.wait(list(self._open), timeout=_POLL_SECONDS)
        replies = []
        for exchange in ready:
            host, _ = self._open.pop(exchange)
            try:
                answers = ray.get(exchange)
            except RayTaskError:
                raise
            except RayError as error:
                replies.append(self._died(host, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"))
                continue
            if answers is None:
                del self._known[host]
            replies.append(Reply(host, None if answers is None else pickle.loads(answers)))
        now = time.monotonic()
        for exchange, (host, since) in list(self._open.items()):
            if now - since > self._pool.silent:
                del self._open[exchange]
                replies.append(self._died(host, f"it did not answer for {self._pool.silent:g} s."))
        return replies

    def _died(self, host: int, why: str) -> Reply:
        self._gone[host] = self._known.pop(host)
        return Reply(host, None, why)

    def halt(self) -> None:
        for handle in self._known.values():
            handle.halt.remote(self._name)

    def end(self) -> None:
        """The hosts may forget the call."""
        for handle in self._known.values():
            handle.end.remote(self._name)


def _started(name: str, node: str) -> Any:
    """A host on a node, if that lives, else anywhere."""
    handle, _ = get_or_start(
        RewardActor,
        name,
        args=(code_hash(),),
        num_cpus=_CPUS,
        max_concurrency=_THREADS,
        timeout=_START_SECONDS,
        options={"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)},
    )
    return handle


def _named(name: str) -> Any | None:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def _fits(handle: Any, name: str) -> bool:
    try:
        return bool(result(handle.fits.remote(code_hash()), SILENT_SECONDS, name))
    except UserError:  # it is dead, or does not answer
        return False


def _nodes() -> list[str]:
    """Ids of the live nodes that take work, that of this process first."""
    here = ray.get_runtime_context().get_node_id()
    ids = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")] or [here]
    return sorted(ids, key=lambda node: (node != here, node))
