"""A trainer in another process, as one object.

Guarantee: each method of ``TrainerPort`` is the call of that name there, whatever carries the calls; nothing is
remembered here.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from data.store import TableRef


class TrainerCalls(ABC):
    """A ``TrainerPort`` but for ``status``."""

    @abstractmethod
    def _call(self, method: str, *arguments: Any) -> Any:
        """What the trainer's method returns; raises what it raises."""

    def initialise(self) -> None:
        self._call("initialise")

    def train(self, base: int, target: int, batch: TableRef, store_url: str, weights_id: str) -> Mapping[str, Any]:
        return dict(self._call("train", base, target, batch, store_url, weights_id))

    def accumulate(self, version: int, rows: Any, number: int, weights_id: str = "") -> Mapping[str, Any]:
        return dict(self._call("accumulate", version, rows, number, weights_id))

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

    def offload(self) -> int:
        return int(self._call("offload"))

    def onload(self) -> int:
        return int(self._call("onload"))
