"""The processes of reward functions, as a configuration wants them.

Guarantee: none is started before a call needs one; all are ended when this is closed.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from relax_core.config.sections import RelaxConfig
from relax_core.proxy import proxy_environment
from relax_core.rewards.judge.client import service_environment
from relax_core.rewards.pool import RewardPool

Services: TypeAlias = Mapping[str, Sequence[str]]
"""Addresses of what rewards may ask, by its name: ``genrm``, the judge's engines."""

NO_SERVICES: Services = MappingProxyType({})


class Pools:
    """The processes of reward functions, made when a call first needs one and kept for the next.

    Args:
        config: how many, and their time limit.
    """

    def __init__(self, config: RelaxConfig) -> None:
        self._options, self._proxy = config.reward, config.debug.http_proxy
        self._sampling = config.genrm.genrm_sampling_config
        self._services: Services = {}
        self._pool: RewardPool | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> "Pools":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get(self, services: Services = NO_SERVICES) -> RewardPool:
        """The pool; a new one where the processes know other services."""
        with self._lock:
            if self._pool is not None and self._services != services:
                self._pool.close()
                self._pool = None
            if self._pool is None:
                self._services = dict(services)
                judge = service_environment(services.get("genrm", ()), self._sampling)
                variables = {**proxy_environment(self._proxy, os.environ), **judge}
                self._pool = RewardPool(self._options.reward_num_workers, self._options.reward_timeout, variables)
            return self._pool

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
                self._pool = None
