"""The processes of reward functions, as a configuration wants them.

Guarantee: none is started before a call needs one; all are ended when this is closed.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeAlias

from relax_core.config.sections import RelaxConfig
from relax_core.proxy import proxy_environment
from relax_core.rewards.judge.client import service_environment
from relax_core.rewards.messages import Batch, Result, Task, Tell, nobody
from relax_core.rewards.pool import RewardPool

Services: TypeAlias = Mapping[str, Sequence[str]]
"""Addresses of what rewards may ask, by its name: ``genrm``, the judge's engines."""

NO_SERVICES: Services = MappingProxyType({})


class CallPool(Protocol):
    """Processes that make calls, wherever they are: ``RewardPool`` has them on this machine."""

    def run(
        self,
        tasks: Sequence[Task],
        seconds: Sequence[float] | None = None,
        until_failed: bool = False,
        tell: Tell = nobody,
    ) -> list[Result]:
        """See ``RewardPool.run``."""

    def run_batch(self, batch: Batch, tell: Tell = nobody) -> list[Result]:
        """See ``RewardPool.run_batch``."""

    def close(self) -> None:
        """End what this process has asked; ``run`` then raises ``RuntimeError``."""


StartPool: TypeAlias = Callable[[int, float, Mapping[str, str]], CallPool]
"""Makes one for at most so many processes at once, a time limit of a call in seconds, and environment variables."""


class Pools:
    """The processes of reward functions, made when a call first needs one and kept for the next.

    Args:
        config: how many, and their time limit.
        start: makes the pool.
    """

    def __init__(self, config: RelaxConfig, start: StartPool = RewardPool) -> None:
        self._start = start
        self._options, self._proxy = config.reward, config.debug.http_proxy
        self._sampling = config.genrm.genrm_sampling_config
        self._services: Services = {}
        self._pool: CallPool | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> "Pools":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get(self, services: Services = NO_SERVICES) -> CallPool:
        """The pool; a new one where the processes know other services."""
        with self._lock:
            if self._pool is not None and self._services != services:
                self._pool.close()
                self._pool = None
            if self._pool is None:
                self._services = dict(services)
                judge = service_environment(services.get("genrm", ()), self._sampling)
                variables = {**proxy_environment(self._proxy, os.environ), **judge}
                options = self._options
                self._pool = self._start(options.reward_num_workers, options.reward_timeout, variables)
            return self._pool

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None
