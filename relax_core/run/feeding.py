"""Slices of a step on their way to the trainer while the step still generates (--num-iters-per-train-update).

Guarantee: a slice has whole groups that are generated and scored, and goes to the trainer in the step's own turn only;
whatever goes wrong here costs time and nothing else, since the update is made on the stored batch, of which the trainer
skips what it has accumulated already. The slices that are told at the end are those of the stored batch.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from data.errors import UserError
from data.schema import REWARD
from data.schema import table as schema_table
from relax_core.batching.slices import filled_slices, slice_numbers, slice_size, streams
from relax_core.config import RelaxConfig
from relax_core.config.derived import selects
from relax_core.config.forward import forward_needs
from relax_core.rewards.outcome import Outcome
from relax_core.run.advantage import batch_table
from relax_core.run.order import Stopped

log = logging.getLogger(__name__)


def feeds(config: RelaxConfig) -> bool:
    """Whether slices go to the trainer ahead of their batch. One slice that is a step's whole batch is never early."""
    if not config.backend.fully_async or streams(config) is not None or selects(config):
        return False
    if forward_needs(config):
        return False  # passes over the whole rollout come before the advantages
    return slice_size(config) < (config.rollout.rollout_batch_size or 0) * config.rollout.n_samples_per_prompt


class SliceFeeder:
    """Feeds the trainer with the slices of one step, in a thread of its own.

    Args:
        config: resolved.
        turn: returns when the step may use the trainer; raises ``Stopped`` where it never may.
        accumulate: hands slice ``number`` to the trainer, as rows of schema ``BATCH``.
        fed: told of each slice that the trainer has taken.
    """

    def __init__(
        self,
        config: RelaxConfig,
        turn: Callable[[], None],
        accumulate: Callable[[int, pa.Table], object],
        fed: Callable[[int, int], None] = lambda number, samples: None,
    ) -> None:
        self._config, self._turn, self._accumulate, self._fed = config, turn, accumulate, fed
        self._samples = config.rollout.n_samples_per_prompt
        self._last = config.cluster.num_iters_per_train_update
        self._rows: dict[str, list[pa.Table]] = {}
        self._scores: dict[str, Outcome] = {}
        self._members: dict[str, list[str]] = {}
        self._group_of: dict[str, str] = {}
        self._finished: list[str] = []
        self._slices: list[list[str]] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="slices", daemon=True)
        self._thread.start()

    def rows(self, rows: pa.Table) -> None:
        """Samples are generated: rows of schema ``ROLLOUT``. From any thread, and quick."""
        with self._changed:
            ids, groups = rows["sample_id"].to_pylist(), rows["group_id"].to_pylist()
            for place, (sample_id, group_id) in enumerate(zip(ids, groups, strict=True)):
                if sample_id in self._group_of:
                    continue  # a generation that is done again hands over what it had kept
                self._rows.setdefault(group_id, []).append(rows.slice(place, 1))
                self._members.setdefault(group_id, []).append(sample_id)
                self._group_of[sample_id] = group_id
            self._look(groups)

    def outcomes(self, ids: Sequence[str], outcomes: Sequence[Outcome] | BaseException) -> None:
        """Samples are scored. From any thread, and quick."""
        if isinstance(outcomes, BaseException):
            return
        with self._changed:
            self._scores.update(zip(ids, outcomes, strict=True))
            self._look([self._group_of[one] for one in ids if one in self._group_of])

    def end(self) -> Mapping[str, int]:
        """No more slices are handed on; returns when the trainer is not busy with one.

        Returns:
            The slice of each group of the step's first global batch, as far as it is known.
        """
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        return {group_id: number for number, groups in enumerate(self._slices) for group_id in groups}

    def _look(self, groups: Sequence[str]) -> None:
        """Note the groups that are whole now, and the slices that they fill."""
        for group_id in dict.fromkeys(groups):
            members = self._members[group_id]
            whole = len(members) == self._samples and all(one in self._scores for one in members)
            if whole and group_id not in self._finished:
                self._finished.append(group_id)
        numbers = slice_numbers(self._config, [self._samples] * len(self._finished))
        per_slice = slice_size(self._config) // self._samples
        counts = Counter(number for number in numbers if number is not None)
        for number in [number for number, count in counts.items() if count == per_slice][len(self._slices) :]:
            self._slices.append([one for one, of in zip(self._finished, numbers, strict=True) if of == number])
            self._changed.notify_all()

    def _serve(self) -> None:
        number = 0
        with suppress(Stopped):
            while number < self._last:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or len(self._slices) > number)  # noqa: B023
                    if self._ended:
                        return
                self._turn()
                if self._ended or not self._feed(number):
                    return
                number += 1

    def _feed(self, number: int) -> bool:
        """Hand a slice on; whether there is use in a further one."""
        try:
            rows = self._batch(number)
            self._accumulate(number, rows)
        except Exception as error:  # the whole batch is trained on in any case, and tells what is wrong
            problem = error.problem if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            log.info("no further slice goes to the trainer ahead of its batch: %s", problem)
            return False
        self._fed(number, rows.num_rows)
        return True

    def _batch(self, number: int) -> pa.Table:
        with self._changed:
            rows = pa.concat_tables([row for group_id in self._slices[number] for row in self._rows[group_id]])
            order = sorted(range(rows.num_rows), key=rows["index"].to_pylist().__getitem__)
            rows = rows.take(pa.array(order, pa.int64())).combine_chunks()
            scores = [self._scores[sample_id] for sample_id in rows["sample_id"].to_pylist()]
        table, _ = batch_table(rows, _reward_rows(rows, scores), None, self._config)
        return table


def with_slices(batch: pa.Table, config: RelaxConfig, known: Mapping[str, int]) -> pa.Table:
    """The batch of a step with the slice of each row.

    Args:
        batch: schema ``BATCH``.
        known: slices of groups that have gone to the trainer, or were about to.
    """
    groups = batch["group_id"].to_pylist()
    slices = filled_slices(config, list(dict.fromkeys(groups)), known)
    column = pa.array([slices.get(group_id) for group_id in groups], pa.int32())
    return batch.set_column(batch.schema.get_field_index("slice"), batch.schema.field("slice"), column)


def slices_of(batch: pa.Table) -> dict[str, int]:
    """The slice of each group of a stored batch that has one."""
    if "slice" not in batch.column_names:
        return {}
    pairs = zip(batch["group_id"].to_pylist(), batch["slice"].to_pylist(), strict=True)
    return {group_id: number for group_id, number in pairs if number is not None}


def _reward_rows(rollout: pa.Table, scores: Sequence[Outcome]) -> pa.Table:
    """As much of ``reward.parquet`` as advantages are made of."""
    return schema_table(
        REWARD,
        {
            "sample_id": rollout["sample_id"],
            "group_id": rollout["group_id"],
            "reward": pa.array([one.score for one in scores], pa.float32()),
            "raw_reward": pa.array([one.raw for one in scores], pa.float32()),
            "rm_type": [""] * len(scores),
            "error": pa.array([one.error for one in scores], pa.string()),
            "outcome": pa.array([one.kind for one in scores], pa.string()),
        },
    )
