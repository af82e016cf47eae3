"""What a run needs of its engines, as protocols.

Guarantee: everything above (tasks, flows, recovery) talks to a trainer and to rollout engines through these methods
only, so that the real actors, a fake trainer in a test and an engine with immediate answers in a benchmark are
exchangeable.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from data.store import TableRef
from relax_core.engines.spec import Device
from relax_core.rewards.pools import CallPool
from relax_core.tracking.events import EventLog


class TrainerPort(Protocol):
    """The trainer as one object, however many ranks it has. Versions count the rollout steps that were trained."""

    def status(self) -> Mapping[str, Any]:
        """``version``, ``last_batch_sha256`` and ``weights_id`` (None at first), ``dirty``, ..."""

    def initialise(self) -> None:
        """Go to version 0: the weights that the run starts from, a fresh optimiser."""

    def train(self, base: int, target: int, batch: TableRef, store_url: str, weights_id: str) -> Mapping[str, Any]:
        """Train on a stored batch, from version ``base`` to ``target``; answers again for an update that it has made.

        Returns ``metrics`` (name to float) and ``optimizer_step``. Raises ``VersionMismatch`` for another base.
        """

    def accumulate(self, version: int, rows: Any, number: int, weights_id: str = "") -> Mapping[str, Any]:
        """Compute a slice's gradient ahead of its batch, which ``train`` then need not: weights stay as they are.

        Args:
            rows: schema ``BATCH``, whole groups of the first global batch; or what gives them by its ``open``.
            number: of the slice: 0, 1, ...; one that is there already is not computed again, and 0 begins anew.

        Returns:
            ``accumulated``, slices that are there, and ``seconds``.

        Raises:
            SliceRefused, VersionMismatch, UserError: it was not taken, or failed. The caller may go on without slices.
        """

    def forward(
        self, version: int, rollout: TableRef, store_url: str, columns: Sequence[str], weights_id: str
    ) -> pa.Table:
        """Passes without gradient over a stored rollout with the weights of ``version``: schema ``FORWARD``."""

    def save(self, url: str, iteration: int) -> Mapping[str, Any]:
        """Write the checkpoint of the current version, which is ``iteration + 1``; begin to, with --async-save."""

    def finish_save(self) -> Mapping[str, Any]:
        """Wait for a checkpoint that is being written in the background (--async-save), if one is."""

    def load(self, url: str, iteration: int) -> None:
        """Become what was saved as ``iteration``."""

    def push_weights(self, version: int, urls: Sequence[str], weights_id: str) -> Mapping[str, Any]:
        """Bring the engines to ``version``, which must be the trainer's own; engines that have it are left alone."""

    def export_hf(self, folder: str) -> None:
        """Write the weights as a Hugging Face folder."""

    def offload(self) -> int:
        """Give up device memory; whatever needs the weights takes it again. Bytes, 0 where it was given up before."""

    def onload(self) -> int:
        """Take the device memory again; bytes, 0 where it was there."""


class EnginesPort(Protocol):
    """The rollout engines, or the judge's."""

    @property
    def urls(self) -> list[str]:
        """Addresses of the live engines."""

    def abort_all(self) -> None:
        """End what a former driver left running in the engines."""

    def check(self) -> None:
        """Raise ``UserError`` naming an engine that is not alive, with the end of its log."""

    def stale(self, label: str) -> bool:
        """Whether an engine has other weights than those called ``label``."""

    def release(self, parts: Sequence[str]) -> None:
        """Give up parts of the device memory: ``weights``, which are gone then, ``kv_cache``; as far as held."""

    def resume(self, parts: Sequence[str]) -> None:
        """Take parts of the device memory, as far as they were given up."""


class Backend(Protocol):
    """Starts or finds the engines."""

    timeline: EventLog
    """Told of what is started or found."""

    def connect(self) -> None:
        """Reach the cluster, or start one. On a thread that lasts as long as the run: what Ray starts here ends with
        the thread that started it."""

    @property
    def device(self) -> Device:
        """What the actors compute on."""

    def ensure(self, critic: bool = False) -> tuple[TrainerPort, EnginesPort]:
        """Live trainer and engines; what is missing or dead is started anew, all at a time.

        Args:
            critic: the critic's trainer too, which ``ensure_critic`` then finds.
        """

    def ensure_trainer(self, critic: bool = False) -> TrainerPort:
        """A live trainer alone, or with the critic's."""

    def ensure_critic(self) -> TrainerPort:
        """The critic's live trainer."""

    def ensure_rollout(self, weights_id: str) -> EnginesPort:
        """Live engines alone, with the weights of ``--hf-checkpoint``: version 0, called ``weights_id``."""

    def ensure_genrm(self) -> EnginesPort:
        """Live engines of the judge (--genrm-model-path); those that live already are found."""

    def reward_pool(self, workers: int, seconds: float, variables: Mapping[str, str]) -> CallPool:
        """Processes for rewards, see ``StartPool``: below actors as soon as this process has looked for engines."""

    def end_engine(self, url: str) -> None:
        """End the rollout engine at this address, however it hangs; ``ensure`` starts another one."""

    def release(self) -> None:
        """End the run's engines, also standing ones: a finished run needs none."""

    def release_own(self) -> None:
        """End the run's engines unless some stood before this process came."""

    def close(self) -> None:
        """End what this process owns; standing engines stay."""
