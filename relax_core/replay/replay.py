"""A recorded step, computed again from its stored tables.

Guarantee: nothing is generated, and the run directory is only read; a stage takes what the stage before it gave, or
what was recorded where that one is not repeated or gave the same; a stage that cannot be repeated (a judge without
engines, a model that is gone) is said to be so, with the reason, and the recorded output takes its place.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from data.errors import UserError
from data.store import RunStore, TableRef
from relax_core.config.forward import forward_needs
from relax_core.engines.judge import has_judge
from relax_core.replay.changes import changed_config, first_reached, refuse_idle, shown_changes, with_model
from relax_core.replay.columns import EXACT, Tolerance
from relax_core.replay.compare import Comparison, compare_tables, compare_values
from relax_core.replay.identity import why_other
from relax_core.replay.local_trainer import LocalTrainer
from relax_core.replay.models import MakeTrainer, Models
from relax_core.replay.recorded import (
    TABLE_OF,
    RecordedStep,
    numbers_of,
    only,
    open_step,
    out_store,
    recorded_config,
)
from relax_core.replay.report import Report, StageReport, State, advantage_changes, metric_changes, reward_changes
from relax_core.replay.span import Stage, stages_again
from relax_core.replay.weights import compare_weights
from relax_core.rewards.pools import Pools
from relax_core.rewards.score import score_timed
from relax_core.run.advantage import batch_table
from relax_core.run.feeding import feeds, slices_of, with_slices
from relax_core.run.forward import joined, require_finite

ROUNDING = Tolerance(rtol=1e-5, atol=1e-6)
"""Of stages that ask a model, unless something else is said: another machine, or another number of threads or of ranks,
adds in another order."""

_OF_MODELS = ("forward", "train_critic", "train")


class Replay:
    """A replay of one step; ``run`` does it, or call the functions of ``work`` in their order.

    Args:
        url: run directory.
        step: of the run.
        first, last: the stages to repeat, with all between; None: ``last`` is advantage, or ``first`` if that is later.
        changes: options that count otherwise than in the run, ``OPTION=VALUE`` each.
        tolerance: for all stages; None: exact, and ``ROUNDING`` for those that ask a model.
        out: folder or URL for the tables and the report; None: they are not kept.
        model: the folder of the model where it is not where the run had it.
        make_trainer: another way to a trainer (tests).

    Raises:
        UserError: no such run or step, tables that are missing, or options that are wrong or cannot change anything.
    """

    def __init__(
        self,
        url: str,
        step: int,
        *,
        first: Stage = "reward",
        last: Stage | None = None,
        changes: Sequence[str] = (),
        tolerance: Tolerance | None = None,
        out: str | None = None,
        model: str | None = None,
        make_trainer: MakeTrainer = LocalTrainer,
    ) -> None:
        self._first = first
        self._step: RecordedStep = open_step(url, step)
        self._out = None if out is None else out_store(self._step.store, out)
        recorded, _ = recorded_config(self._step.store)
        config, names = changed_config(url, recorded, changes)
        self.again = stages_again(first, last, config)
        refuse_idle(recorded, config, names, self.again)
        self._base, self._config, self._changed = recorded, config, bool(names)
        shown = shown_changes(recorded, config, names) if names else []
        reached = first_reached(recorded, config, self.again) if names else ""
        self.report = Report(self._step.store.url, step, shown, out=out, reached=reached)
        self.url = url
        self._tolerance = tolerance
        self._temporary = tempfile.TemporaryDirectory(prefix="relax-replay-")
        self._scratch = RunStore(self._temporary.name)
        own, new = with_model(recorded, model), with_model(config, model)
        self._models = Models(self._step.store, step, own, new, self._temporary.name, make_trainer, self._note)
        self._tables: dict[str, pa.Table | None] = {}
        self._say_what_is_not_as_named()

    @property
    def work(self) -> dict[str, Callable[[], None]]:
        """Stage -> what repeats it, in the order of the step."""
        every = {
            "reward": self._reward,
            "forward": self._forward,
            "advantage": self._advantage,
            "train_critic": self._train_critic,
            "train": self._train,
        }
        return {stage: every[stage] for stage in self.again}

    def run(self) -> Report:
        """Do all of it, and close."""
        with self:
            for function in self.work.values():
                function()
            return self.finish()

    def finish(self) -> Report:
        """The report, written to ``out`` where there is one."""
        if self._out is not None:
            self._out.write_json("replay.json", self.report.to_json())
        return self.report

    def __enter__(self) -> "Replay":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the trainers, and delete what was only needed on the way."""
        self._models.close()
        self._temporary.cleanup()

    # -- the stages ----------------------------------------------------------------------------------------------

    def _reward(self) -> None:
        rollout, config = self._step.needed("rollout"), self._config
        if has_judge(config):
            self._left("reward", "a judge scores (--genrm-model-path), and a replay starts no engine")
            return
        table = self._recorded_scores()
        if table is None:
            with Pools(config) as pools:
                table, _ = score_timed(rollout, config, pools)
        self._made("reward", "reward", table)
        old = self._step.table("reward")
        if old is not None:
            self.report.rewards = reward_changes(old, table)

    def _recorded_scores(self) -> pa.Table | None:
        """Those that samples of --load-debug-rollout-data carry."""
        if not self._config.debug.load_debug_rollout_data:
            return None
        from relax_core.run.debug_data import read_recorded  # here: it may read torch's files

        return read_recorded(self._config, self._step.step).reward

    def _forward(self) -> None:
        needs, step = forward_needs(self._config), self._step.step
        rollout = self._scratch.write_table("rollout.parquet", self._step.needed("rollout"))
        parts = []
        with self._or_recorded("forward"):
            if needs.policy:
                trainer, name = self._models.at_step("actor"), self._models.history("actor").weights_id(step)
                parts.append(trainer.forward(step, rollout, self._scratch.url, needs.policy, name))
            if needs.critic:
                trainer, name = self._models.at_step("critic"), self._models.history("critic").weights_id(step)
                parts.append(trainer.forward(step, rollout, self._scratch.url, needs.critic, name))
            recorded = self._step.table("forward")
            if needs.service:
                if recorded is None:
                    raise UserError("the teacher's log-probs are not recorded, and its server is not asked")
                parts.append(only(recorded, needs.service))
            table = joined(parts)
            for name in needs.columns:
                require_finite(table, name)
            self._made("forward", "forward", table, only(recorded, needs.columns))

    def _advantage(self) -> None:
        scores, needs = self._input("reward"), forward_needs(self._config)
        assert scores is not None
        forward = only(self._input("forward"), needs.columns)
        have = [] if forward is None else [c for c in needs.columns if forward[c].null_count < forward.num_rows]
        missing = [column for column in needs.columns if column not in have]
        if missing:
            raise UserError(
                f"The advantages need {', '.join(missing)}, which {self._step.store.url} has not of step"
                f" {self._step.step}.",
                "Add --to train: it starts the trainer, which makes the passes.",
            )
        if needs and "forward" not in self.again and self._first != "advantage":
            self.report.stages.append(
                StageReport("forward", "recorded", note="its columns are taken as recorded; --to train repeats them")
            )
        table, metrics = batch_table(self._step.needed("rollout"), scores, forward, self._config)
        old, record = self._step.table("batch"), self._step.record("advantage")
        if old is not None and feeds(self._config) and (slices := slices_of(old)):
            table = with_slices(table, self._config, slices)  # which group finished when is not told again
        numbers = None
        if record is not None and old is not None:
            numbers = compare_values("advantage", record.values.get("metrics", {}), metrics, self._limit("advantage"))
        self._made("advantage", "batch", table, numbers=numbers)
        if old is not None:
            self.report.advantages = advantage_changes(old, table)

    def _train_critic(self) -> None:
        self._update("train_critic", "critic")

    def _train(self) -> None:
        self._update("train", "actor")

    def _update(self, stage: str, role: Any) -> None:
        """One update of a model on the batch."""
        step, batch = self._step.step, self._input("batch")
        assert batch is not None
        with self._or_recorded(stage):
            trainer = self._models.at_step(role)
            reference = self._scratch.write_table("batch.parquet", batch)
            result = trainer.train(step, step + 1, reference, self._scratch.url, "replay")
            self._keep_json(f"{stage}.json", result)
            self._say_if_trained_otherwise(stage, reference)
            old, new = self._step.update(stage), numbers_of(result)
            before = None if old is None else numbers_of(old)
            found = None if before is None else compare_values(stage, before, new, self._limit(stage))
            self._found(stage, found)
            self.report.metrics[stage] = metric_changes(before or {}, new)
            if found is not None and found.same and not self._changed:
                weights = compare_weights(trainer, self._models.history(role), step, stage, strict=found.exact)
                if weights is not None:
                    self._found(weights.stage, weights)

    # -- what a stage reads and leaves ---------------------------------------------------------------------------

    def _input(self, name: str) -> pa.Table | None:
        """A table that was made again and is not the recorded one, else the recorded one."""
        if name not in self._tables:
            needed = name != "forward"
            self._tables[name] = self._step.needed(name) if needed else self._step.table(name)
        return self._tables[name]

    def _made(
        self,
        stage: str,
        name: str,
        table: pa.Table,
        old: pa.Table | None = None,
        numbers: Comparison | None = None,
    ) -> None:
        """Keep and compare a table."""
        if self._out is not None:
            self._out.write_table(f"{name}.parquet", table)
        old = self._step.table(name) if old is None else old
        found = None if old is None else compare_tables(stage, old, table, self._limit(stage))
        if found is not None and found.same and numbers is not None and not numbers.same:
            found = numbers
        self._found(stage, found)
        close = found is not None and found.same and not self.report.is_changed(stage)
        self._tables[name] = old if close else table  # rounding of one stage is no difference of the next

    def _found(self, stage: str, found: Comparison | None) -> None:
        state: State = "new" if found is None else "same" if found.exact else "close" if found.same else "differs"
        note = "nothing was recorded to compare with" if found is None else ""
        if state == "differs" and not self.report.is_changed(stage):
            note = why_other(self._step, stage, self._base)
        self.report.stages.append(StageReport(stage, state, found, note))

    def _left(self, stage: str, why: str) -> None:
        self.report.stages.append(StageReport(stage, "left out", note=why))

    @contextlib.contextmanager
    def _or_recorded(self, stage: str) -> Iterator[None]:
        """A stage whose model cannot be had is left out, with the reason."""
        try:
            yield
        except UserError as error:
            self._left(stage, str(error).strip())

    def _limit(self, stage: str) -> Tolerance:
        if self._tolerance is not None:
            return self._tolerance
        return ROUNDING if stage in _OF_MODELS else EXACT

    def _keep_json(self, name: str, content: Mapping[str, Any]) -> None:
        if self._out is not None:
            self._out.write_json(name, dict(content))

    # -- what else a person should know --------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self.report.notes.append(text)

    def _say_what_is_not_as_named(self) -> None:
        if not self._step.manifest:
            self._note(
                f"step {self._step.step} is not finished: what it has is compared; `relax train` with --run-dir"
                f" {self._step.store.url} goes on with it"
            )
        for name in TABLE_OF:
            if not self._step.as_named(name):
                self._note(f"{name}.parquet is not the file that the step's manifest names: it was changed, or is gone")

    def _say_if_trained_otherwise(self, stage: str, batch: TableRef) -> None:
        record = self._step.record(stage)
        trained = None if record is None else record.values.get("batch_sha256")
        if trained not in (None, batch.sha256) and not self._changed:
            self._note(f"{stage}: the recorded update was made from another batch")
