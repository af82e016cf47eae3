"""The open run: configuration, run directory, prompts, engines.

Guarantee: opening is cheap and checks everything that can be checked without an engine (configuration against the run
directory, model and data files, a writable store) before anything expensive starts; all that later steps need to know
is derived from the run directory, so that a second process goes on where the first one was killed.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from data.cursor import Cursor
from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig, Source, Stage, options_hash, run_file, stage_options, with_options
from relax_core.config.derived import ACTOR_FOLDER, CRITIC_FOLDER, epoch_steps, needs_critic
from relax_core.rewards.choice import training_choice
from relax_core.rewards.judge.rows import check_judged
from relax_core.rewards.pools import Pools
from relax_core.rewards.scored import calls_of_step
from relax_core.rewards.stream import RewardStream, TableOf
from relax_core.run.clock import StepClock
from relax_core.run.engines import BackendFactory, Mode, RunEngines
from relax_core.run.feeding import SliceFeeder, feeds
from relax_core.run.lock import DriverLock
from relax_core.run.order import StepOrder
from relax_core.run.ownership import claim
from relax_core.run.prompts import RunPrompts
from relax_core.run.records import StageRecords, fingerprint
from relax_core.run.recovery import History
from relax_core.run.start import critic_start_id, pin_load, start_id
from relax_core.run.transport.base import Transport
from relax_core.run.transport.select import open_transport
from relax_core.tracking.events import EventLog
from relax_core.tracking.tensorboard import TensorBoard, open_board

log = logging.getLogger(__name__)


def run_id(url: str) -> str:
    """Name of a run in Ray and Prefect: the last part of its folder and a hash of the whole address."""
    address = url if "://" in url else os.path.realpath(url)
    name = address.rstrip("/").rsplit("/", 1)[-1]
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:40]
    return f"{safe}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"


_CLOCKS = 64
"""Steps whose clocks are kept."""

_GIVING_SECONDS = 30.0
"""For which a run that ends waits for engines that are giving up memory."""


class RunSession(RunPrompts, RunEngines):
    """An open run.

    Args:
        config: resolved and validated configuration with ``run.run_dir`` set.
        sources: origin of each option, written to ``config.yaml``.
        make_backend: makes the way to engines from the final configuration and the run's name.
        progress: what is told of the stages (see ``relax_core.tracking.progress``).
        training: False for a look at a run: its ``config.yaml`` stays as it is.
    """

    def __init__(
        self,
        config: RelaxConfig,
        sources: Mapping[str, Source],
        make_backend: BackendFactory,
        progress: Any,
        training: bool = True,
    ) -> None:
        if config.run.run_dir is None:
            raise UserError("--run-dir is not set.", "Name a folder or an fsspec URL.")
        super().__init__(make_backend)
        self.config = config
        self.progress = progress
        self.store = RunStore(config.run.run_dir)
        self.id = run_id(config.run.run_dir)
        self.records = StageRecords(self.store)
        self.store.check_writable()
        self._lock = DriverLock(self.store, self.config.run.takeover, lambda text: self.progress.note(text))
        if training:
            self._keep_configuration(sources)
        self.config = pin_load(self.config, self.store, keep=training)
        if training:
            self.total_steps, self.steps_per_epoch = self._length()
            # The schedule of the learning rate, inside the trainer, needs the length of the run.
            self.config = with_options(self.config, {"num_rollout": self.total_steps})
            if self.config.debug.load_debug_rollout_data_subsample is not None:
                self.config = with_options(self.config, {"global_batch_size": None})  # it counts all samples
        self.redone: list[int] = []
        self._next_step: int | None = None
        self._clocks: dict[int, StepClock] = {}
        self.events = EventLog(self.store if training else None)
        self._streams: dict[int, RewardStream] = {}
        self._feeders: dict[int, SliceFeeder] = {}
        self._training = training

    def _keep_configuration(self, sources: Mapping[str, Source]) -> None:
        started = self.store.exists("steps") and self.store.exists("config.yaml")
        if self.store.exists("steps") and not started:
            log.warning(
                "%s has steps but no config.yaml: whether they fit these options is not checked", self.store.url
            )
        if started:
            old = run_file.load(self.store.read_bytes("config.yaml").decode(errors="replace"))[0]
            run_file.refuse_other_configuration(old, self.config)
            if moved := run_file.other_layout(old, self.config):
                self.progress.note(moved)
        text = run_file.dump(self.config, sources).encode()
        self.store.write_bytes("config.yaml", text, private=run_file.holds_secrets(self.config))

    # Prompts

    def check_prompts(self) -> None:
        """Read all prompts now, so that a bad row is an error before an engine starts."""
        if self.mode != "train":
            check_judged(self.config, self.prompts, self.evaluation_sets)

    def evaluates_before(self, step: int) -> bool:
        """Whether the weights before ``step`` are scored: the first ones, unless that is switched off."""
        options = self.config.eval
        wanted = step == 0 and bool(options.eval_interval) and not options.skip_eval_before_train
        return wanted and self.mode != "train" and bool(self.evaluation_sets)

    # Where the run is

    @property
    def mode(self) -> Mode:
        """How much of the loop this run has."""
        debug = self.config.debug
        if debug.debug_train_only or debug.load_debug_rollout_data:
            return "train"
        return "rollout" if debug.debug_rollout_only else "whole"

    def _length(self) -> tuple[int, int | None]:
        """Steps of the run and, where --num-epoch decides them, of an epoch."""
        rollout = self.config.rollout
        if rollout.num_rollout is not None:
            return rollout.num_rollout, None
        steps = epoch_steps(self.config, len(self.prompts))
        if steps == 0:
            raise UserError(
                f"--num-epoch {rollout.num_epoch}: an epoch of {len(self.prompts)} prompts has no whole step of "
                f"--rollout-batch-size {rollout.rollout_batch_size}.",
                "Lower --rollout-batch-size, or give --num-rollout.",
            )
        return steps * int(rollout.num_epoch or 0), steps

    def next_step(self) -> int:
        """First step that is not finished. Steps that a checkpoint covers need no tables any more, only manifests."""
        if self._next_step is None:
            self._next_step = self._find_next_step()
        return self._next_step

    def check_driver(self) -> None:
        """Call it before a stage begins or is recorded.

        Raises:
            Superseded: another driver has taken the run over.
        """
        self._lock.check()

    def committed(self, step: int) -> None:
        """The manifest of ``step`` is written."""
        self._next_step = step + 1
        if "transport" in self.__dict__:
            self.transport.clear(step)

    def _find_next_step(self) -> int:
        if self._training and self.mode != "rollout":
            for history in self.histories:
                claim("--critic-save" if history.name == "critic" else "--save", history)
        newest = {history.name: history.newest_finished() for history in self.histories}
        covered = min(newest.values())  # by a checkpoint of each model: one that is behind needs the stored batches
        last = self.store.last_complete_step(first=covered + 1, say=self._set_aside)
        done = covered if last is None else last
        if done < max(newest.values()):
            behind, ahead = sorted(newest, key=lambda name: newest[name])
            most = f"up to step {covered}" if covered >= 0 else "of no step"
            raise UserError(
                f"{self.store.url} has checkpoints of the {behind} {most} and of the {ahead} up to step"
                f" {newest[ahead]}, but not all tables of step {done + 1}, from which the {behind} would learn again.",
                f"Restore steps/{done + 1:06d}, or the checkpoints of the {behind}, or start a new run directory.",
            )
        return done + 1

    def _set_aside(self, step: int, text: str) -> None:
        log.warning(text)
        self.events.add("set_aside", step, who="step", cause=text)

    def cursor(self, step: int) -> Cursor:
        """Where the prompts of ``step`` begin: where those of the step before it end, which has been generated."""
        if step == 0:
            return Cursor()
        before = self.records.last(step - 1, "generate")
        if before is not None:
            return Cursor.from_json(before.values["cursor"])
        manifest = self.store.read_manifest(step - 1)
        if manifest is None:
            raise UserError(
                f"The manifest of step {step - 1} is missing from {self.store.url}.", "Restore it, or start a new run."
            )
        return Cursor.from_json(manifest["cursor"])

    @cached_property
    def history(self) -> History:
        return History(self.store, self.records, self.checkpoint_url, start_id(self.config))

    @property
    def has_critic(self) -> bool:
        """Whether this run trains a critic beside the policy; an evaluation needs none, nor does a rollout alone."""
        return self._training and self.mode != "rollout" and needs_critic(self.config)

    @cached_property
    def critic_history(self) -> History:
        """The critic's, in a run that has one."""
        url = self.config.checkpoint.critic_save or self.store.uri(CRITIC_FOLDER)
        first = critic_start_id(self.config)
        return History(self.store, self.records, url, first, stage="train_critic", entry="critic", name="critic")

    @property
    def histories(self) -> list[History]:
        """Of the models that this run trains: the policy, and the critic if it has one."""
        return [self.history, self.critic_history] if self.has_critic else [self.history]

    def step_order(self, trained: bool = False) -> StepOrder:
        """Turns of the steps that are left.

        Args:
            trained: the update of the first one is made, and is not made anew: engines begin with its weights.
        """
        first = self.next_step()

        def tell(step: int, oldest: int, seconds: float) -> None:
            cause = f"--max-staleness {self.config.cluster.max_staleness}: step {oldest} had not trained"
            self.events.add("staleness_wait", step, "generate", cause, seconds=round(seconds, 3))

        return StepOrder(first, self.config.cluster.max_staleness, first + trained, tell)

    @property
    def overlaps(self) -> bool:
        """Whether a step generates while others train."""
        return self.config.backend.fully_async and self.mode == "whole"

    def base_version(self, step: int) -> int:
        """Version of the weights that ``step`` begins to generate with; where steps overlap, the oldest that it may.

        One an update, if this run trains; with --update-weights-interval the newest of those that the engines get.
        """
        if self.mode == "rollout":
            return 0
        return self.sent_version(max(0, step - self.config.cluster.max_staleness) if self.overlaps else step)

    def sent_version(self, version: int) -> int:
        """The newest version up to this one that the engines get."""
        while version and not self.sync_due(version - 1):
            version -= 1
        return version

    @property
    def checkpoint_url(self) -> str:
        return self.config.checkpoint.save or self.store.uri(ACTOR_FOLDER)

    # Identity of stages

    def stage_key(self, stage: Stage, step: int, inputs: Mapping[str, Any]) -> str:
        """Identity of a stage: its options, its inputs, its place in the run."""
        options = options_hash(stage_options(self.config, stage))
        return fingerprint({"stage": stage, "step": step, "options": options, "inputs": dict(inputs)})

    # When

    def checkpoint_due(self, step: int) -> bool:
        """Whether ``step`` is saved."""
        return self.config.checkpoint.rotate_ckpt or self.export_due(step)

    def export_due(self, step: int) -> bool:
        """Whether ``step`` would be saved without --rotate-ckpt: only such steps are exported."""
        interval, epoch = self.config.checkpoint.save_interval, self.steps_per_epoch
        periods = [interval, epoch] if interval and epoch else [interval] if interval else []
        return step + 1 == self.total_steps or any((step + 1) % period == 0 for period in periods)

    def sync_due(self, step: int) -> bool:
        """Whether the engines get the weights that ``step`` makes: each --update-weights-interval steps, and for an
        evaluation."""
        regular = (step + 1) % self.config.rollout.update_weights_interval == 0
        return regular or self.evaluation_due(step)

    def evaluation_due(self, step: int) -> bool:
        """Whether the weights that ``step`` makes are scored."""
        interval = self.config.eval.eval_interval
        return bool(interval and (step + 1) % interval == 0) and self.mode == "whole"

    @cached_property
    def board(self) -> TensorBoard | None:
        """Where TensorBoard reads; None without --use-tensorboard."""
        return open_board(self.config, self.id, self.next_step())

    @cached_property
    def reward_pools(self) -> Pools:
        """Processes of reward functions, kept for all steps."""
        return Pools(self.config, self.backend.reward_pool)

    def feed_trainer(self, step: int, order: StepOrder) -> None:
        """From now on slices of a step go to the trainer while the step generates, where that is possible."""
        if not feeds(self.config) or self.records.last(step, "advantage") is not None:
            return

        def accumulate(number: int, rows: pa.Table) -> None:
            ticket = self.transport.put(step, number, rows)
            self.trainer.accumulate(step, ticket, number, self.history.weights_id(step))

        def fed(number: int, samples: int) -> None:
            self.events.add("slice_accumulated", step, "trainer", slice=number, samples=samples)

        self._feeders[step] = SliceFeeder(self.config, lambda: order.wait_to_train(step), accumulate, fed)

    def connect(self) -> None:
        """Reach the cluster, and open the way of slices to the trainer, from a thread that lasts as long as the run."""
        self.backend.connect()
        if feeds(self.config):
            _ = self.transport

    def end_feeder(self, step: int) -> Mapping[str, int]:
        """No further slice of a step goes to the trainer.

        Returns:
            The slices of its groups, as far as they are known: see ``SliceFeeder``.
        """
        feeder = self._feeders.pop(step, None)
        return {} if feeder is None else feeder.end()

    @cached_property
    def transport(self) -> Transport:
        """The way of slices to the trainer."""
        return open_transport(self.config, self.id)

    def stream_rewards(self, step: int, table: TableOf) -> Callable[[Any], None] | None:
        """Who takes finished samples of a step, to score them while others are generated; None where the step has
        scores, which may be those of the same samples.

        Args:
            table: see ``RewardStream``.
        """
        self.end_stream(step)
        if self.records.last(step, "reward") is not None:
            return None
        choice = training_choice(self.config)
        # as they were when the step began: the start of another judge would take the engines' memory now
        kept = partial(calls_of_step, self.store, step)
        pools, services = self.reward_pools, self.known_services
        stream = RewardStream(choice, self.config, pools, services, table, kept, shared=self.overlaps)
        self._streams[step] = stream
        feeder = self._feeders.get(step)
        if feeder is None:
            return stream.add
        stream.watch(feeder.outcomes)

        def add(rows: pa.Table) -> None:
            feeder.rows(rows)
            stream.add(rows)

        return add

    def reward_stream(self, step: int) -> RewardStream | None:
        """The stream of a step's samples, if this process has generated them."""
        return self._streams.get(step)

    def end_stream(self, step: int) -> None:
        """End the stream of a step, if there is one, with what it has under way."""
        stream = self._streams.pop(step, None)
        if stream is not None:
            stream.close()

    def clock(self, step: int) -> StepClock:
        """What the stages of a step took in this process; begun when first asked for."""
        if step not in self._clocks:
            self._clocks = {other: clock for other, clock in self._clocks.items() if other > step - _CLOCKS}
            self._clocks[step] = StepClock()
            self._clocks[step].begin()
        return self._clocks[step]

    def close(self) -> None:
        """End what this process owns, and let another driver in."""
        self.ended.set()
        if self.__dict__.get("board") is not None:
            self.__dict__["board"].close()
        for step in list(self._feeders):
            self.end_feeder(step)
        if "transport" in self.__dict__:
            self.transport.close()
        for step in list(self._streams):
            self.end_stream(step)
        if "reward_pools" in self.__dict__:
            self.reward_pools.close()
        if self.giving is not None:  # in a thread, that needs the way to the engines
            wait([self.giving], _GIVING_SECONDS)
        if self._backend is not None:
            self._backend.close()
        self._lock.release()
