"""The trainer: one rank's model, optimiser and reference, and what may be done with them.

Guarantee: an update from ``base`` to ``target`` is applied at most once and only on ``base`` (``state.VersionGate``);
losses, gradients and weights do not depend on how samples are packed or divided over ranks, beyond rounding; in
float32 on one layout the same calls give the same bits, also across a save and a load in a new process.

Plain Python: every rank makes the same calls in the same order. ``status`` may be called from another thread while
another call runs; nothing else may.
"""

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import torch

from data.ragged import Ragged
from data.schema import FORWARD
from data.schema import table as make_table
from data.store import RunStore, TableRef
from relax_core.batching.slices import takes_slices
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import INPUTS, TrainingBatch
from relax_core.training.build import Parts, build_parts
from relax_core.training.critic import ValueStep, explained_variance
from relax_core.training.distributed import Layout, gather_parts, join, seed_all, together
from relax_core.training.errors import SliceRefused, VersionMismatch
from relax_core.training.hooks import loss_functions
from relax_core.training.loss import Scores
from relax_core.training.matmul_cpu import use_fastest_matmul
from relax_core.training.offload import Offload, expected_bytes, gradient_tensors, state_tensors, weight_tensors
from relax_core.training.optimizer import follow_options
from relax_core.training.push import push
from relax_core.training.reference import WeightCopy
from relax_core.training.roles import Role, actor_rests, role_config
from relax_core.training.slices import Accumulation, Phase, joined, leading, require_room
from relax_core.training.state import TrainResult, Update, VersionGate
from relax_core.training.step_loss import make_step_loss
from relax_core.training.stored import StoredBatch, opened
from relax_core.training.updates import Applied, MakeStep, apply_updates
from relax_core.training.work import divide, own_micro_batches, steps_per_rollout
from relax_core.weights.export import save_hf
from relax_core.weights.label import weight_label

Needs: TypeAlias = Literal["nothing", "weights", "state", "changes"]
"""What a call needs on the device; each needs what is before it too. ``changes``: the state, to change it."""


@dataclass
class _Clock:
    """Wall-clock seconds of named phases."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin


class Trainer:
    """One rank.

    Args:
        config: resolved options.
        rank, world_size: of the trainer's ranks.
        device: ``cpu`` or ``cuda`` (the one device that this process may use).
        role: which of the run's models it trains.
    """

    def __init__(
        self, config: RelaxConfig, rank: int, world_size: int, device: str = "cpu", role: Role = "actor"
    ) -> None:
        self.config, self.role, self.rank, self.world_size = role_config(config, role), role, rank, world_size
        self.device = torch.device(device if device == "cpu" or ":" in device else f"{device}:0")
        self._gate = VersionGate()
        self._layout: Layout | None = None
        self._built: Parts | None = None
        self._offload = Offload(self.device)
        self._busy: str | None = None
        self._checkpoint: str | None = None
        self._unfinished: str | None = None
        self._accumulation: Accumulation | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    def join(self, init_method: str) -> None:
        """Meet the other ranks; see ``distributed.join``."""
        if self.device.type == "cpu":
            use_fastest_matmul()
        self._layout = join(self.config, self.rank, self.world_size, self.device, init_method)

    def initialise(self) -> None:
        """Go to version 0: the weights that the run starts from, a fresh optimiser, reference and teacher where used.

        Raises:
            UserError: a model folder or checkpoint that is not there, damaged or of another shape.
        """
        with self._doing("initialise", "nothing"):
            self._finish_save()
            self._offload.complete()  # else what is on its way might come into memory that is the new model's by then
            self._built = self._accumulation = None  # before the new ones: two models may not fit
            self._offload = Offload(self.device)
            gc.collect()  # Megatron's objects know each other
            seed_all(self.config.optimizer.seed)
            self._built = build_parts(self.config, self.layout, self.device, self.role)
            if self.device.type == "cuda" and self.config.cluster.offload_train:
                self._offload.reserve(expected_bytes(self._built.model, self._built.optimizer))
            self._checkpoint = None
            self._gate.reset()

    @property
    def layout(self) -> Layout:
        """This rank's place; after ``join``."""
        if self._layout is None:
            raise RuntimeError("join() comes first")
        return self._layout

    @property
    def _parts(self) -> Parts:
        if self._built is None:
            raise RuntimeError("initialise() comes first")
        return self._built

    @property
    def model(self) -> torch.nn.Module:
        """The policy, or the critic, in Megatron's data-parallel wrapper."""
        return self._parts.model

    def status(self) -> dict[str, Any]:
        """Where the trainer is; also while another call runs."""
        last = self._gate.last
        return {
            "version": self._gate.version,
            "optimizer_step": self._gate.optimizer_step,
            "last_batch_sha256": last.batch_sha256 if last else None,
            "weights_id": last.weights_id if last else None,
            "busy_with": self._busy,
            "dirty": bool(self._gate.dirty) or self._built is None,
            "offloaded": self._offload.away,
            "moved": self._offload.report,
            "pid": os.getpid(),
            "world_size": self.world_size,
            "checkpoint": self._checkpoint,
        }

    # -- training ------------------------------------------------------------------------------------------------

    def accumulate(self, version: int, rows: Any, number: int, weights_id: str = "") -> dict[str, Any]:
        """Forward and backward over a slice of the next update's first global batch, before its batch is stored.

        Weights and optimiser stay as they are: ``train`` alone applies an update, of its stored batch, and passes over
        the leading slices that are there already, if their content is the same. The gradients are dropped by an update,
        ``load``, ``initialise`` and ``offload``; nothing else minds them.

        Args:
            version: of the weights.
            rows: schema ``BATCH``, whole groups; or what gives them when its ``open`` is called here.
            number: of the slice, from 0. 0 begins anew; a slice that is there is not computed again.
            weights_id: the caller's name for the weights.

        Returns:
            ``accumulated``, slices that are there, and ``seconds`` that this took.

        Raises:
            SliceRefused: another slice is the next one, there is no room for it, or the options need whole batches
                (``relax_core.batching.slices.takes_slices``). What was there stays.
            VersionMismatch, DirtyTrainer: the weights are not those of ``version``.
        """
        with self._doing("accumulate"):
            self._gate.require(version, weights_id)
            reason = "a critic learns from whole batches" if self.role == "critic" else takes_slices(self.config)
            if reason is not None:
                raise SliceRefused(reason)
            clock, held = _Clock(), self._accumulation
            with clock.phase("all"):
                data = together(lambda: TrainingBatch.from_table(opened(rows)))
                assert data is not None
                there = [] if held is None else held.slices
                if not (0 <= number < len(there) and there[number].key == data.fingerprint()):
                    if number not in (0, len(there)):
                        raise SliceRefused(f"it is number {number}, and number {len(there)} comes next")
                    require_room(self.config, there if number else [], data)
                    self._accumulation = held = self._accumulated(held if number else None, [data], clock)
            return {"accumulated": len(held.slices) if held else 0, "seconds": clock.seconds["all"]}

    def _accumulated(self, held: Accumulation | None, slices: Sequence[TrainingBatch], clock: _Clock) -> Accumulation:
        """``held``, or a new one, with further slices; where one fails, all of them are lost."""
        self._accumulation = None
        if held is None:
            functions = together(lambda: loss_functions(self.config))
            assert functions is not None
            scores = partial(self._scores, updates=steps_per_rollout(self.config))
            held = Accumulation(self.config, self.layout, self._parts, functions, scores)
        for data in slices:
            held.add(data, clock.phase)
        return held

    def train(self, base: int, target: int, batch: TableRef, store_url: str, weights_id: str = "") -> TrainResult:
        """Train on a stored batch, once. An actor that rests (``roles.actor_rests``) becomes ``target`` as it is.

        The batch is divided in file order into ``--num-steps-per-rollout`` optimiser steps; rows with a ``slice`` are
        the first one's, slice by slice (not where ``takes_slices`` tells why the options need whole ones). The old
        policy of the ratio is, in this order: the current one itself (``--true-on-policy-mode``: the ratio is 1 in
        every step); the engine's (``--use-rollout-logprobs``); with one optimiser step the current one itself, which
        has the same weights; else the trainer's own from a pass before the first step. That pass is made also where
        ``--use-tis`` or ``--get-mismatch-metrics`` compares it with the engine's log-probs, and is not where
        ``--disable-compute-advantages-and-returns`` says that no ratio weights advantages.

        Args:
            base, target: versions before and after; ``target`` is ``base + 1``.
            batch: schema ``BATCH``, in the store at ``store_url``.
            weights_id: the caller's name for the weights that this update makes, kept with them.

        Returns:
            What was done, or, for an update that the trainer has made, what it did then (``already_done``).

        Raises:
            VersionMismatch: the weights are of another version, or made from another batch. Nothing has changed.
            NonFiniteUpdate: loss or gradient is not finite. That optimiser step was not applied; when an earlier one
                of the same rollout step was, the trainer is dirty.
            DirtyTrainer: an earlier update failed halfway.
        """
        with self._doing("train", "weights"):
            self._finish_save(wait=False)
            done = self._gate.find(base, target, batch.sha256, weights_id)
            if done is not None:
                return done
            clock, parts, interval = _Clock(), self._parts, self.config.algorithm.ref_update_interval
            with self._gate.updating() as update:
                applied, tokens, streamed = Applied({}, 0), 0, 0
                held, self._accumulation = self._accumulation, None
                if self.role == "critic" or not actor_rests(self.config, base):
                    applied, tokens, streamed = self._learn(target, batch, store_url, clock, update, held)
                if interval is not None and parts.reference is not None and target % interval == 0:
                    parts.reference.take(parts.model)
                result = TrainResult(
                    version=target,
                    batch_sha256=batch.sha256,
                    weights_id=weights_id,
                    optimizer_step=self._gate.optimizer_step + applied.steps,
                    metrics=applied.metrics,
                    tokens=tokens,
                    seconds=clock.seconds,
                    streamed=streamed,
                )
                self._gate.commit(result)
            if self._offload.used:
                self._offload.keep(*self._kept_tensors())  # beside what follows, until others want the device
            return result

    def _learn(
        self,
        target: int,
        batch: TableRef,
        store_url: str,
        clock: _Clock,
        update: Update,
        held: Accumulation | None,
    ) -> tuple[Applied, int, int]:
        """The optimiser steps of an update, the tokens of its batch, and how many slices of ``held`` are in it."""
        functions = together(lambda: loss_functions(self.config))
        assert functions is not None
        with clock.phase("read"):
            stored = self._read_to_learn(batch, store_url)
            data = stored.whole
            work = divide(self.config, self.layout, data, self.role)
        make_step: MakeStep = partial(ValueStep, self.config, data)
        first, streamed = None, 0
        score = partial(self._scores, phase=clock.phase, updates=len(work))
        if self.role == "actor":
            if stored.slices:
                streamed = leading(held, stored.slices)
                whole = self._accumulated(held if streamed else None, stored.slices[streamed:], clock)
                first, rest = whole.finish, [] if stored.rest is None else [stored.rest]
                scores = joined([part.scores for part in whole.slices] + [score(part) for part in rest])
            else:
                scores = score(data)
            make_step = make_step_loss(self.config, data, scores, functions, gather_parts)
        ready = self._ready_to_change
        applied = apply_updates(
            self.config, self._parts, data, work, make_step, target, update, clock.phase, ready, first
        )
        if self.role == "critic":
            applied.metrics.update(explained_variance(data))
        return applied, len(data.tokens.values), streamed

    def log_probs(self, batch: TableRef, store_url: str) -> Ragged:
        """Log-probability of every response token under the present weights, float32, rows as in the batch."""
        with self._doing("log_probs", "weights"):
            self._gate.require_clean()
            data = self._read(batch, store_url)
            return Ragged(self._passes_over(data).numpy(), data.response_offsets)

    def forward(
        self, version: int, rollout: TableRef, store_url: str, columns: Sequence[str], weights_id: str = ""
    ) -> pa.Table:
        """Passes without gradient over a stored rollout (or batch), for what is needed before the advantages.

        Args:
            version: which the weights must be.
            columns: of a critic ``values``; of a policy ``old_log_probs`` (the present weights), ``ref_log_probs`` (the
                reference's) and ``teacher_log_probs`` (those of the teacher in the trainer).
            weights_id: the caller's name for these weights.

        Returns:
            Schema ``FORWARD``, with these columns, rows as in the rollout.

        Raises:
            VersionMismatch, DirtyTrainer: the weights are not those of ``version``.
        """
        with self._doing("forward", "weights"):
            self._gate.require(version, weights_id)
            data = self._read(rollout, store_url, INPUTS)
            found = {}
            for column in columns:
                with self._weights_of(column):
                    found[column] = Ragged(self._passes_over(data).numpy(), data.response_offsets)
            lengths = data.response_lengths.astype("int32")
            ids = {"sample_id": data.sample_ids, "group_id": data.group_ids, "response_length": lengths}
            return make_table(FORWARD, {**ids, **found})

    def _weights_of(self, column: str) -> AbstractContextManager[None]:
        """The model with the weights that a column of ``FORWARD`` is computed with."""
        if column == ("values" if self.role == "critic" else "old_log_probs"):
            return nullcontext()
        copies = {"ref_log_probs": self._parts.reference, "teacher_log_probs": self._parts.teacher}
        copy = copies.get(column)
        if copy is None:
            raise ValueError(f"this trainer has no weights for {column}")
        return copy.in_place_of(self._parts.model)

    def _passes_over(self, data: TrainingBatch) -> torch.Tensor:
        """[R] float32 of a pass without gradient over all samples."""
        own = own_micro_batches(self.config, self.layout, data, range(len(data)), scoring=True)
        return self._parts.passes.score(data, own)

    def _read(self, batch: TableRef, store_url: str, columns: Sequence[str] | None = None) -> TrainingBatch:
        read = together(lambda: TrainingBatch.from_table(RunStore(store_url).read_table(batch, columns)))
        assert read is not None
        return read

    def _read_to_learn(self, batch: TableRef, store_url: str) -> StoredBatch:
        sliced = self.role == "actor" and takes_slices(self.config) is None
        samples = self.config.batch.global_batch_size if sliced else None
        read = together(lambda: StoredBatch.from_table(RunStore(store_url).read_table(batch), samples))
        assert read is not None
        return read

    def _scores(self, data: TrainingBatch, phase: Phase, updates: int) -> Scores:
        """The passes without gradient that the loss asks for and that are not stored with the batch."""
        algorithm = self.config.algorithm
        itself = self.config.backend.true_on_policy_mode
        engines = algorithm.use_rollout_logprobs and not itself
        compares = algorithm.use_tis or algorithm.get_mismatch_metrics
        moves = updates > 1 and not algorithm.disable_compute_advantages_and_returns  # else there is no ratio
        trainer, reference = data.stored.get("old_log_probs"), None
        if trainer is None and (compares or (not engines and not itself and moves)):
            with phase("old_log_probs"):
                trainer = self._passes_over(data)
        if algorithm.use_kl_loss:
            reference = data.stored.get("ref_log_probs")
            if reference is None:
                with phase("ref_log_probs"), self._weights_of("ref_log_probs"):
                    reference = self._passes_over(data)
        old = data.rollout_log_probs if engines else None if itself else trainer
        return Scores(old, reference, trainer)

    # -- what goes out and comes in ------------------------------------------------------------------------------

    def save(self, url: str, iteration: int) -> dict[str, Any]:
        """Write a checkpoint of the present version, which is ``iteration + 1``.

        With --async-save it is written in the background, after one that still is. It is complete after a later
        ``train`` that finds it written, or after ``finish_save``.

        Returns:
            ``seconds`` that this took, and ``bytes`` of a checkpoint that is complete.

        Raises:
            VersionMismatch, DirtyTrainer: the weights are not those of this iteration.
        """
        with self._doing("save", "state"):
            self._finish_save()
            self._gate.require(iteration + 1)
            last = self._gate.last
            if last is None:
                raise VersionMismatch(iteration + 1, self._gate.version, "nothing has been trained yet")
            state = {
                "role": self.role,
                "version": self._gate.version,
                "optimizer_step": self._gate.optimizer_step,
                "weights_id": last.weights_id,
                "last": last.to_json(),
                "hf_checkpoint": self.config.checkpoint.hf_checkpoint,
                "ref_load": self.config.checkpoint.ref_load,
            }
            with_optimizer = not self.config.checkpoint.no_save_optim
            written = self._parts.checkpointer.save(
                url, iteration, state, with_optimizer, self._kept_reference(), self.config.checkpoint.async_save
            )
            path = f"{url.rstrip('/')}/iter_{iteration:07d}"
            if "bytes" in written:
                self._checkpoint = path
            else:
                self._unfinished = path
            return written

    def finish_save(self) -> dict[str, Any]:
        """Wait for the checkpoint that is being written; ``bytes`` of it, nothing when there is none."""
        with self._doing("finish_save", "nothing"):
            size = self._finish_save()
            return {} if size is None else {"bytes": size}

    def _finish_save(self, wait: bool = True) -> int | None:
        if self._built is None:
            return None
        size = self._built.checkpointer.finish(wait)
        if size is not None:
            self._checkpoint = self._unfinished
        return size

    def load(self, url: str, iteration: int) -> None:
        """Become what was saved as ``iteration``: weights, optimiser, schedule, version and the last update's answer.

        Raises:
            UserError: there is no such complete checkpoint; nothing has changed then.
        """
        with self._doing("load"), self._gate.updating() as update:
            self._accumulation = None
            self._finish_save()
            parts = self._parts
            marker = parts.checkpointer.load(url, iteration, self._kept_reference(), update)
            follow_options(parts.optimizer, self.config)
            parts.schedule.step(0)
            self._checkpoint = f"{url.rstrip('/')}/iter_{iteration:07d}"
            self._gate.reset(marker["version"], marker["optimizer_step"], TrainResult.from_json(marker["last"]))

    def _kept_reference(self) -> WeightCopy | None:
        """The reference where it is a part of the trainer's state, and not what it was at version 0."""
        return None if self.config.algorithm.ref_update_interval is None else self._parts.reference

    def push_weights(self, version: int, urls: Sequence[str], weights_id: str = "") -> dict[str, Any]:
        """Bring the engines at ``urls`` to ``version``. Collective; global rank 0 sends.

        Args:
            weights_id: the caller's name for these weights; engines keep it beside the version.

        Raises:
            VersionMismatch, DirtyTrainer: the weights are not those of ``version``; nothing was sent.
        """
        with self._doing("push_weights", "nothing"):  # no engine may want them
            self._gate.require(version, weights_id)
            return push(self.config, self._resident_model, weight_label(version, weights_id), urls)

    def export_hf(self, folder: str) -> None:
        """Write the weights as a Hugging Face folder. Collective."""
        with self._doing("export_hf", "weights"):
            self._gate.require_clean()
            save_hf(self.model, str(self.config.checkpoint.hf_checkpoint), folder)

    # -- the device's memory -------------------------------------------------------------------------------------

    def offload(self) -> int:
        """Leave the device to others: all that lasts between two updates goes to host memory, gradients are dropped.

        Whatever needs the weights afterwards brings them back itself. A repeated call does nothing.

        Returns:
            Bytes that were freed on this rank.
        """
        with self._doing("offload", "nothing"):
            if self._built is None:
                return 0
            self._accumulation = None
            return self._offload.leave(*self._kept_tensors(), gradient_tensors(self._built.model))

    def onload(self) -> int:
        """Take the device's memory again, now rather than in the next call that needs it; bytes of this rank. The
        optimiser's state goes on coming back beside what is computed."""
        with self._doing("onload", "nothing"):
            return self._offload.come_back()

    def _kept_tensors(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        return weight_tensors(self._parts.model), state_tensors(self._parts.optimizer)

    def _ready_to_change(self) -> None:
        self._offload.complete()
        self._offload.changed()

    def _resident_model(self) -> torch.nn.Module:
        self._offload.come_back()
        return self.model

    @contextmanager
    def _doing(self, what: str, needs: Needs = "changes") -> Iterator[None]:
        """Round a call."""
        self._busy = what
        try:
            if needs != "nothing":
                self._offload.come_back()
            if needs == "state":
                self._offload.complete()
            if needs == "changes":
                self._ready_to_change()
            yield
        finally:
            self._busy = None
