"""The samples of a recorded step or evaluation, each with all that the run has stored of it.

Guarantee: a run is only read, also while it goes on; rows of different tables meet by ``sample_id``, never by position;
what a step does not have yet, or never records, is None and is said in ``missing``.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data.errors import UserError
from data.store import RunStore
from relax_core.replay.recorded import RecordedStep, recorded_steps

_SCALARS = (
    "sample_id",
    "group_id",
    "prompt",
    "response",
    "label",
    "prompt_length",
    "response_length",
    "status",
    "finish_reason",
    "weight_versions",
    "remove_sample",
    "abort_count",
)
_LISTS = ("tokens", "loss_mask", "rollout_log_probs", "token_versions")
_SCORES = ("reward", "raw_reward", "components", "outcome", "error", "judge_output")
_PASSES = ("old_log_probs", "ref_log_probs", "values")

NO_GAP = (
    "no log-prob gap by token: the step has no old_log_probs; `relax replay` makes them: docs/how-to/read-rollouts.md"
)


@dataclass
class Sample:
    """One sample. P prompt tokens, R response tokens; an array or number that is not known is None.

    Attributes:
        parts: what the reward function returned beside the score.
        trained: whether the batch has it; None: there is no batch yet.
        tokens: [P + R] ids.
        mask, log_probs, versions, advantages, old_log_probs, ref_log_probs, values: [R].
        gap: [R] ``old_log_probs - log_probs``: the trainer's log-probability of a token less the engine's. Where older
            weights made a token, what was learnt since is part of it.
        advantage: mean over the tokens that are trained on.
        gap_mean, gap_max: of ``|gap|`` over them.
    """

    sample_id: str
    group_id: str
    prompt: str
    response: str
    label: str | None
    prompt_length: int
    length: int
    status: str
    finish_reason: str
    weight_versions: list[int]
    remove_sample: bool
    abort_count: int
    reward: float | None = None
    raw_reward: float | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    outcome: str | None = None
    error: str | None = None
    judge_output: str | None = None
    trained: bool | None = None
    tokens: NDArray[Any] | None = None
    mask: NDArray[Any] | None = None
    log_probs: NDArray[Any] | None = None
    versions: NDArray[Any] | None = None
    advantages: NDArray[Any] | None = None
    old_log_probs: NDArray[Any] | None = None
    ref_log_probs: NDArray[Any] | None = None
    values: NDArray[Any] | None = None
    gap: NDArray[Any] | None = None
    advantage: float | None = None
    gap_mean: float | None = None
    gap_max: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Its scalars: a row of ``relax show --json``."""
        arrays = (*_PASSES, "tokens", "mask", "log_probs", "versions", "advantages", "gap")
        return {name: value for name, value in self.__dict__.items() if name not in arrays}

    def finish(self) -> None:
        """Work out ``gap`` and the means."""
        taken = None if self.mask is None else self.mask.astype(bool)
        if self.old_log_probs is not None and self.log_probs is not None:
            self.gap = self.old_log_probs.astype(np.float64) - self.log_probs
            apart = np.abs(_of(self.gap, taken))
            if len(apart):
                self.gap_mean, self.gap_max = float(apart.mean()), float(apart.max())
        if self.advantages is not None and len(found := _of(self.advantages, taken)):
            self.advantage = float(found.astype(np.float64).mean())


def _of(values: NDArray[Any], taken: NDArray[np.bool_] | None) -> NDArray[Any]:
    """Finite values of the tokens that are trained on."""
    values = values if taken is None else values[taken]
    return values[np.isfinite(values)]


@dataclass(frozen=True)
class Shown:
    """The samples of a step or evaluation.

    Attributes:
        title: e.g. ``step 12`` or ``evaluation gsm8k of step 12``.
        step: None: an evaluation beside the steps.
        samples: in the order of the rollout.
        missing: what is not known, and why, a line each.
    """

    title: str
    step: int | None
    samples: list[Sample]
    missing: list[str]


def read_step(store: RunStore, step: int, forward: pa.Table | None = None) -> Shown:
    """The samples of a step, as far as it has got.

    Args:
        forward: rows of schema ``FORWARD`` that stand in for a forward table of the step.

    Raises:
        UserError: there is no rollout of the step yet, or a table is damaged.
    """
    recorded = RecordedStep(store, step)
    rollout = recorded.table("rollout")
    if rollout is None:
        going_on = "The stage generate writes it when all samples are there"
        raise UserError(f"{store.url} has no rollout of step {step} yet.", f"{going_on}, or name another --step.")
    missing = []
    reward, batch = recorded.table("reward"), recorded.table("batch")
    if reward is None:
        missing.append("no rewards yet: the stage reward is not finished")
    if batch is None:
        missing.append("no advantages and loss masks yet: the stage advantage is not finished")
    if forward is None:
        forward = recorded.table("forward")
    samples = joined(rollout, reward, batch, forward)
    if batch is not None and not any(sample.gap is not None for sample in samples):
        missing.append(NO_GAP)
    if reward is not None and (without := _lacking(rollout, reward)):
        missing.append(f"no reward row of {without} samples")
    path = recorded.path("buffer.parquet")
    if store.exists(path) and (rows := store.read_table(path, ["sample_id"]).num_rows):
        missing.append(f"{rows} further samples were begun and wait in buffer.parquet for the next step")
    return Shown(f"step {step}", step, samples, missing)


def step_of(store: RunStore, name: str) -> int | None:
    """The step whose rollout has a sample or group of this id; None where none has. An id begins with the step in which
    it was begun; one that was broken off is in the rollout of a later one."""
    first, dash, _ = name.partition("-")
    if not (dash and first.isdigit()):
        return None
    for step in recorded_steps(store):
        path = store.step_path(step, "rollout.parquet")
        if step >= int(first) and store.exists(path):
            ids = store.read_table(path, ["sample_id", "group_id"])
            if name in ids["sample_id"].to_pylist() or name in ids["group_id"].to_pylist():
                return step
    return None


def joined(
    rollout: pa.Table, reward: pa.Table | None, batch: pa.Table | None, forward: pa.Table | None
) -> list[Sample]:
    """One sample a row of ``rollout`` (schema ``ROLLOUT`` or ``EVAL``), with what the other tables have of its id."""
    ids = rollout["sample_id"]
    scalars = {name: rollout[name].to_pylist() for name in _SCALARS}
    scalars["length"] = scalars.pop("response_length")
    columns: dict[str, list[Any]] = dict(scalars)
    if reward is not None:
        places = _places(reward, ids)
        for name in _SCORES:
            if name in reward.column_names:
                found = reward[name].to_pylist()
                columns[name] = [None if at is None else found[at] for at in places]
        texts = columns.pop("components", [None] * len(ids))
        columns["parts"] = [json.loads(text) if text else {} for text in texts]
        for name in ("reward", "raw_reward"):
            columns[name] = [_finite(value) for value in columns[name]]
    own: list[int | None] = list(range(len(ids)))
    lists = {name: _arrays(rollout, name, own) for name in _LISTS}
    if batch is not None:
        places = _places(batch, ids)
        columns["trained"] = [at is not None for at in places]
        for name in ("advantages", "loss_mask", *_PASSES):
            lists[name] = _either(_arrays(batch, name, places), lists.get(name))
    if forward is not None:
        places = _places(forward, ids)
        for name in _PASSES:
            lists[name] = _either(lists.get(name), _arrays(forward, name, places))
    samples = []
    for row in range(len(ids)):
        sample = Sample(**{name: column[row] for name, column in columns.items()})
        sample.tokens = lists["tokens"][row]
        for name, column in lists.items():
            array = column[row]
            if name != "tokens" and array is not None and len(array) == sample.length:
                setattr(sample, _NAMES.get(name, name), array)
        sample.finish()
        samples.append(sample)
    return samples


_NAMES = {"loss_mask": "mask", "rollout_log_probs": "log_probs", "token_versions": "versions"}


def _places(table: pa.Table, ids: pa.ChunkedArray) -> list[int | None]:
    """[N] the row of each id in a table."""
    places: list[int | None] = pc.index_in(ids, value_set=table["sample_id"].combine_chunks()).to_pylist()
    return places


def _lacking(rollout: pa.Table, other: pa.Table) -> int:
    return sum(at is None for at in _places(other, rollout["sample_id"]))


def _arrays(table: pa.Table, name: str, places: Sequence[int | None]) -> list[NDArray[Any] | None]:
    """[N] views of a list column's rows at ``places``; None where there is no row, or it is null."""
    if name not in table.column_names:
        return [None] * len(places)
    column = table[name].combine_chunks()
    values = column.values.to_numpy(zero_copy_only=False)
    offsets, there = column.offsets.to_numpy(), column.is_valid().to_pylist()
    return [None if at is None or not there[at] else values[offsets[at] : offsets[at + 1]] for at in places]


def _either(
    first: Sequence[NDArray[Any] | None] | None, second: Sequence[NDArray[Any] | None] | None
) -> list[NDArray[Any] | None]:
    if first is None or second is None:
        return list(first or second or [])
    return [b if a is None else a for a, b in zip(first, second, strict=True)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
