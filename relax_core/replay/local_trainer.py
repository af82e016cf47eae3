"""A trainer on the CPU in a process of its own, without Ray: what a replay repeats updates and passes with.

Guarantee: it is the trainer that runs use (``relax_core.training.trainer.Trainer``), with one rank; Megatron, which
changes torch for its process, is imported in that process only. It ends with ``close``, or with the process that
started it.
"""

import multiprocessing
import os
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from data.errors import UserError
from data.store import TableRef
from relax_core.config import RelaxConfig
from relax_core.run.trainer_calls import TrainerCalls
from relax_core.training.roles import Role

_trainer: Any = None
"""In the process of the trainer."""


class LocalTrainer(TrainerCalls):
    """A ``TrainerPort`` at version 0.

    Args:
        config: resolved, of one rank (``relax_core.replay.changes.one_process``).

    Raises:
        UserError: a model or checkpoint that is not there or does not fit, or a process that died.
    """

    def __init__(self, config: RelaxConfig, role: Role = "actor") -> None:
        # no fork: threads of Arrow and torch would be copied in the middle of their work
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        self._role = role
        try:
            self._ask(_start, config, role)
        except BaseException:
            self.close()
            raise

    def _ask(self, function: Any, *arguments: Any) -> Any:
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise UserError(
                f"The process of the {self._role}'s trainer died.", "Is there memory for the model and its optimiser?"
            ) from error

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._ask(_call, method, arguments)

    def status(self) -> Mapping[str, Any]:
        return dict(self._call("status"))

    def train(self, base: int, target: int, batch: TableRef, store_url: str, weights_id: str) -> Mapping[str, Any]:
        return dict(self._call("train", base, target, batch, store_url, weights_id).to_json())

    def unlike(self, url: str, iteration: int) -> list[dict[str, Any]]:
        """Parameters that are not those of a checkpoint; the trainer has the checkpoint's weights afterwards.

        Returns:
            ``name``, ``values`` that differ (bit by bit) of ``size``, ``largest`` distance, and of the first of them
            ``place`` (flat), ``old`` (the checkpoint's) and ``new``.
        """
        found: list[dict[str, Any]] = self._ask(_unlike, url, iteration)
        return found

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _start(config: RelaxConfig, role: Role) -> None:
    global _trainer
    warnings.filterwarnings("ignore")  # of Megatron and torch about themselves
    # As ``relax_core.training.actor.trainer_environment``, so that sums are divided over as many threads.
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    os.environ |= {"OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    os.environ |= config.training.train_env_vars
    from relax_core.engines.meeting import LOOPBACK, meeting_place
    from relax_core.training.trainer import Trainer

    _trainer = Trainer(config, 0, 1, "cpu", role)
    _trainer.join(meeting_place(LOOPBACK))
    _trainer.initialise()


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_trainer, method)(*arguments)


def _unlike(url: str, iteration: int) -> list[dict[str, Any]]:
    mine = {name: value.detach().clone() for name, value in _trainer.model.named_parameters()}
    _trainer.load(url, iteration)
    found = []
    for name, saved in _trainer.model.named_parameters():
        old, new = saved.detach().flatten(), mine[name].flatten()
        apart = (old != new) & ~(old.isnan() & new.isnan())
        if apart.any():
            place = int(apart.nonzero()[0])
            found.append(
                {
                    "name": name.removeprefix("module."),
                    "values": int(apart.sum()),
                    "size": len(old),
                    "largest": float((old.float() - new.float()).abs().max()),
                    "place": place,
                    "old": float(old[place]),
                    "new": float(new[place]),
                }
            )
    return found
