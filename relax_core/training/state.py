"""Which version a trainer is at, and whether a call may change it: compare and swap.

Guarantee: an update from ``base`` to ``target`` is applied at most once however often it is asked for, and only on
``base``; what failed before it changed a weight leaves the version as it was, what failed later makes the trainer
refuse everything until it is loaded or initialised again. Pure Python.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from relax_core.training.errors import DirtyTrainer, VersionMismatch


@dataclass(frozen=True)
class TrainResult:
    """What one rollout step of training did."""

    version: int
    """Version of the weights that it made."""
    batch_sha256: str
    """Hash of the batch that it trained on."""
    weights_id: str
    """The caller's name for the weights that it made."""
    optimizer_step: int
    """Optimiser steps since version 0."""
    metrics: dict[str, float]
    """Means over the optimiser steps; see ``relax_core.training.loss``."""
    tokens: int
    """Tokens of the batch, prompts included."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds of each phase on rank 0."""
    streamed: int = 0
    """Slices of the batch whose gradient was there already."""
    already_done: bool = False
    """This answers a repeated call; nothing was trained."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "TrainResult":
        """From ``to_json()``'s object; keys of newer versions are ignored."""
        return cls(**{name: obj[name] for name in cls.__dataclass_fields__ if name in obj})


class Update:
    """An update in progress. ``begun`` is set when the first weight is about to change."""

    def __init__(self) -> None:
        self.begun = False


class VersionGate:
    """The version of the weights and the update that made them."""

    def __init__(self) -> None:
        self.version = 0
        self.optimizer_step = 0
        self.last: TrainResult | None = None
        self.dirty: str = ""

    def reset(self, version: int = 0, optimizer_step: int = 0, last: TrainResult | None = None) -> None:
        """The weights were replaced by those of ``version``; the gate is clean again."""
        self.version, self.optimizer_step, self.last, self.dirty = version, optimizer_step, last, ""

    def require_clean(self) -> None:
        """Raises ``DirtyTrainer`` after an update that failed halfway."""
        if self.dirty:
            raise DirtyTrainer(self.dirty)

    def require(self, version: int, weights_id: str = "") -> None:
        """Raises ``VersionMismatch`` unless the weights are those of ``version``, ``DirtyTrainer`` if of none.

        Args:
            weights_id: what the caller calls them; empty, or version 0, which no update made: not compared.
        """
        self.require_clean()
        if self.version != version:
            raise VersionMismatch(version, self.version)
        if weights_id and self.last is not None and self.last.weights_id != weights_id:
            raise VersionMismatch(version, self.version, "they were made from another batch or other options")

    def find(self, base: int, target: int, batch_sha256: str, weights_id: str) -> TrainResult | None:
        """The stored result when this very update has been made, None when it is to be made now.

        Raises:
            VersionMismatch: the weights are neither those of ``base`` nor those that this update makes.
            DirtyTrainer: an earlier update failed halfway.
        """
        self.require_clean()
        if target != base + 1:
            raise ValueError(f"an update goes one version forward, not from {base} to {target}")
        if self.version == base:
            return None
        last = self.last
        if self.version == target and last is not None:
            if last.batch_sha256 == batch_sha256 and last.weights_id == weights_id:
                return replace(last, already_done=True)
            raise VersionMismatch(base, self.version, f"version {target} was made from another batch or other options")
        raise VersionMismatch(base, self.version)

    @contextmanager
    def updating(self) -> Iterator[Update]:
        """Round an update: an error after ``begun`` makes the gate dirty."""
        update = Update()
        try:
            yield update
        except BaseException as error:
            if update.begun:
                self.dirty = f"{type(error).__name__}: {error}"
            raise

    def commit(self, result: TrainResult) -> None:
        """The update is complete."""
        self.version, self.optimizer_step, self.last = result.version, result.optimizer_step, result
