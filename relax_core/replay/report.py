"""What a replay found, as values: of each stage whether it gave what was recorded, and what changed with other options.

Guarantee: ``to_json`` is plain JSON, in which NaN is null; ``equal`` is true only when every stage that was asked for
was repeated and gave what was recorded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from data.ragged import Ragged
from relax_core.replay.changes import REPLAYED, Change
from relax_core.replay.compare import Comparison, Difference

State = Literal["same", "close", "differs", "new", "recorded", "left out"]
"""Of a stage: bit for bit the same; within the tolerance; differs; made, with nothing recorded to compare with; taken
as recorded; it was to be repeated and could not be."""


@dataclass
class StageReport:
    """What became of a stage."""

    stage: str
    state: State
    comparison: Comparison | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        found = None if self.comparison is None else self.comparison.to_json()
        return {"stage": self.stage, "state": self.state, "comparison": found, "note": self.note}


@dataclass
class Report:
    """A replay.

    Attributes:
        changes: options that were set, and what followed from them.
        reached: the first stage whose output they may change; empty without any.
        notes: what else a person should know.
        rewards: see ``reward_changes``; empty when none were made again.
        advantages: see ``advantage_changes``; empty when none were made again.
        metrics: of ``train`` and ``train_critic``: name to the recorded and the new number, None where one is missing.
    """

    run: str
    step: int
    changes: Sequence[Change]
    stages: list[StageReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rewards: dict[str, Any] = field(default_factory=dict)
    advantages: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, dict[str, tuple[float | None, float | None]]] = field(default_factory=dict)
    out: str | None = None
    reached: str = ""

    @property
    def first(self) -> Difference | None:
        """The first difference, in the order of the stages, that no option that was set has made."""
        return _first(stage for stage in self.stages if not self.is_changed(stage.stage))

    @property
    def first_change(self) -> Difference | None:
        """The first difference in a stage whose output options that were set may change."""
        return _first(stage for stage in self.stages if self.is_changed(stage.stage))

    def is_changed(self, stage: str) -> bool:
        """Whether options that were set may change what a stage gives."""
        return bool(self.reached) and REPLAYED.index(stage) >= REPLAYED.index(self.reached)  # type: ignore[arg-type]

    @property
    def equal(self) -> bool:
        """Whether all that was asked for was repeated, and gave what was recorded."""
        return all(stage.state in ("same", "close", "recorded") for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "run": self.run,
            "step": self.step,
            "equal": self.equal,
            "first": None if self.first is None else asdict(self.first),
            "first_change": None if self.first_change is None else asdict(self.first_change),
            "changes": [asdict(change) for change in self.changes],
            "stages": [stage.to_json() for stage in self.stages],
            "rewards": self.rewards,
            "advantages": self.advantages,
            "metrics": self.metrics,
            "notes": self.notes,
            "out": self.out,
        }


def _first(stages: Iterable[StageReport]) -> Difference | None:
    found = (stage.comparison.first for stage in stages if stage.comparison is not None)
    return next((difference for difference in found if difference is not None), None)


def reward_changes(old: pa.Table, new: pa.Table) -> dict[str, Any]:
    """Scores side by side.

    Args:
        old, new: schema ``REWARD``, the same samples.

    Returns:
        ``samples``, ``old_mean`` and ``new_mean`` over scored samples (None without one), counts ``up``, ``down``,
        ``gained`` and ``lost`` a score, and ``changed``: ``sample_id``, ``old``, ``new`` of each that changed.
    """
    before = dict(zip(old["sample_id"].to_pylist(), old["reward"].to_pylist(), strict=True))
    pairs = [
        (sample_id, before.get(sample_id), score)
        for sample_id, score in zip(new["sample_id"].to_pylist(), new["reward"].to_pylist(), strict=True)
    ]
    scored = [(a, b) for _, a, b in pairs if a is not None and b is not None]
    return {
        "samples": len(pairs),
        "old_mean": _mean([a for _, a, _ in pairs if a is not None]),
        "new_mean": _mean([b for _, _, b in pairs if b is not None]),
        "up": sum(b > a for a, b in scored),
        "down": sum(b < a for a, b in scored),
        "gained": sum(a is None and b is not None for _, a, b in pairs),
        "lost": sum(a is not None and b is None for _, a, b in pairs),
        "changed": [{"sample_id": name, "old": a, "new": b} for name, a, b in pairs if not _alike(a, b)],
    }


def _alike(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and a != a and b != b)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def advantage_changes(old: pa.Table, new: pa.Table) -> dict[str, Any]:
    """Advantages of trained tokens side by side.

    Args:
        old, new: schema ``BATCH``, the same samples.

    Returns:
        ``old`` and ``new``: ``tokens`` that are trained on, and ``mean``, ``std``, ``min``, ``max`` of their advantages
        (None without one); of the tokens that both train on ``shared``, how many ``changed`` and ``turned`` their sign.
    """
    places = {sample_id: place for place, sample_id in enumerate(new["sample_id"].to_pylist())}
    ids = old["sample_id"].to_pylist()
    kept = [row for row, sample_id in enumerate(ids) if sample_id in places]
    a, b = _Trained(old, kept), _Trained(new, [places[ids[row]] for row in kept])
    shared: dict[str, Any] = {"shared": 0, "changed": 0, "turned": 0}
    if np.array_equal(a.offsets, b.offsets):
        both = a.mask & b.mask
        x, y = a.values[both], b.values[both]
        changed, turned = int((x != y).sum()), int((np.sign(x) * np.sign(y) < 0).sum())
        shared = {"shared": int(both.sum()), "changed": changed, "turned": turned}
    return {"old": a.statistics(), "new": b.statistics(), **shared}


class _Trained:
    """Advantages of some rows of a batch."""

    def __init__(self, batch: pa.Table, rows: list[int]) -> None:
        column = Ragged.from_arrow(batch["advantages"]).take(rows)
        self.values, self.offsets = column.values, column.offsets
        self.mask = Ragged.from_arrow(batch["loss_mask"]).take(rows).values != 0

    def statistics(self) -> dict[str, Any]:
        values = self.values[self.mask].astype(np.float64)
        if not len(values):
            return {"tokens": 0, "mean": None, "std": None, "min": None, "max": None}
        measures = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
        return {"tokens": len(values), **{name: float(value) for name, value in measures.items()}}


def metric_changes(old: dict[str, float], new: dict[str, float]) -> dict[str, tuple[float | None, float | None]]:
    """Numbers side by side, by name."""
    return {name: (old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])}
