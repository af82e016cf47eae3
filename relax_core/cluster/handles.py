"""The trainer and the engines of a run behind their Ray actors.

Guarantee: each is what ``relax_core.run.ports`` says, and an error that was raised inside an actor arrives as itself;
nothing is remembered here of what an actor holds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from relax_core.cluster.actors import result
from relax_core.engines.actor import PARTS
from relax_core.run.trainer_calls import TrainerCalls
from relax_core.training.actor import NAMES
from relax_core.training.roles import Role
from relax_core.waiting import told
from relax_core.weights.transport import stale_engines

CONTROL_TIMEOUT = 60.0
MEMORY_TIMEOUT = 300.0
"""Seconds until an engine has given up its memory or has it again: requests end first, and weights may be copied."""


class RayTrainer(TrainerCalls):
    """The trainer of a role behind its leading actor, rank 0. Every mutating call carries this driver's epoch."""

    def __init__(self, handle: Any, role: Role = "actor") -> None:
        self.handle, self._name = handle, NAMES[role]
        self._epoch = result(handle.attach.remote(), CONTROL_TIMEOUT, self._name)

    def _call(self, method: str, *arguments: Any) -> Any:
        return result(getattr(self.handle, method).remote(self._epoch, *arguments), None, self._name)

    def status(self) -> Mapping[str, Any]:
        return dict(result(self.handle.status.remote(), CONTROL_TIMEOUT, self._name))


class RayEngines:
    """SGLang engines behind their actors."""

    def __init__(self, handles: Sequence[Any], urls: Sequence[str]) -> None:
        self._handles = list(handles)
        self.urls = list(urls)

    def _each(self, method: str, *args: Any, timeout: float = CONTROL_TIMEOUT) -> list[Any]:
        calls = [getattr(handle, method).remote(*args) for handle in self._handles]
        return [result(call, timeout, f"engine {i}") for i, call in enumerate(calls)]

    def abort_all(self) -> None:
        self._each("abort_all")

    def check(self) -> None:
        self._each("info")

    def stale(self, label: str) -> bool:
        with told("the engines' versions", "the new weights"):
            return bool(stale_engines(self.urls, label))

    def release(self, parts: Sequence[str] = PARTS) -> None:
        self._each("release", list(parts), timeout=MEMORY_TIMEOUT)

    def resume(self, parts: Sequence[str] = PARTS) -> None:
        self._each("resume", list(parts), timeout=MEMORY_TIMEOUT)
