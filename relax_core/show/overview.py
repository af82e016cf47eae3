"""The steps of a run in a line each, and the run in a few.

Guarantee: a run is only read, also while it goes on; a step that is not finished says which stages are; a number that
a run does not record is None.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from data.errors import UserError
from data.store import RunStore
from relax_core.replay.recorded import recorded_steps
from relax_core.show.evaluations import eval_sets

BLOCKS = "▁▂▃▄▅▆▇█"

METRICS = {
    "reward": "reward/mean",
    "length": "response_len/mean",
    "truncated": "truncated_ratio",
    "gap_mean": "train_rollout_logprob_abs_diff",
    "gap_max": "train_rollout_logprob_abs_diff_max",
    "loss": "loss",
}
"""Column of the overview -> metric."""

_FILES = {
    "rollout.parquet": "generate",
    "reward.parquet": "reward",
    "batch.parquet": "advantage",
    "train.json": "train",
}


@dataclass(frozen=True)
class StepRow:
    """A step.

    Attributes:
        reward, length, truncated, gap_mean, gap_max, loss: see ``METRICS``; lengths in tokens, truncated is a share.
        mixed: share of the groups whose rewards differ.
        seconds: of the whole step.
        finished: whether it is committed.
        stages: those that are done, of a step that is not.
    """

    step: int
    reward: float | None = None
    length: float | None = None
    truncated: float | None = None
    gap_mean: float | None = None
    gap_max: float | None = None
    mixed: float | None = None
    loss: float | None = None
    seconds: float | None = None
    finished: bool = True
    stages: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """A row of ``relax show --json``."""
        return asdict(self)


@dataclass(frozen=True)
class Overview:
    """A run.

    Attributes:
        rows: the last ones, or all.
        rewards: mean reward of every step that has one, in order.
        facts: what -> what there is to say, in order.
    """

    run: str
    rows: list[StepRow]
    steps: int
    rewards: list[float]
    facts: Mapping[str, str]


def read_overview(store: RunStore, last: int | None = None) -> Overview:
    """The steps of a run.

    Args:
        last: so many rows at most, of the newest steps; None: all.

    Raises:
        UserError: it holds no steps.
    """
    steps = recorded_steps(store)
    if not steps:
        raise _nothing(store)
    lines = [line for line in store.read_jsonl("metrics.jsonl") if isinstance(line, dict) and "step" in line]
    metrics = {line["step"]: line for line in lines}
    chosen = steps if last is None else steps[-last:]
    with ThreadPoolExecutor(16) as pool:  # a request each where the run is behind a URL
        manifests = dict(zip(chosen, pool.map(store.read_manifest, chosen), strict=True))
    rows = [_row(store, step, metrics.get(step, {}), manifests[step]) for step in chosen]
    rewards = [metrics[step]["reward/mean"] for step in steps if metrics.get(step, {}).get("reward/mean") is not None]
    return Overview(store.url, rows, len(steps), rewards, _facts(rows, metrics, manifests))


def _nothing(store: RunStore) -> UserError:
    """What is said of a folder without steps."""
    if sets := eval_sets(store):
        return UserError(
            f"There are no rollouts in {store.url}, only evaluations: {', '.join(sets)}.", f"Add --eval {sets[0]}."
        )
    known = "it has no step yet" if store.exists("config.yaml") else "it has no folder steps"
    return UserError(f"There are no rollouts in {store.url}: {known}.", "Name the --run-dir of a run.")


def _row(store: RunStore, step: int, metrics: Mapping[str, Any], manifest: Mapping[str, Any] | None) -> StepRow:
    found = {column: metrics.get(name) for column, name in METRICS.items()}
    alike = metrics.get("zero_std/fraction")
    stages: list[str] = []
    if manifest is None:
        there = store.ls(store.step_path(step, ""))
        stages = [stage for file, stage in _FILES.items() if file in there]
    return StepRow(
        step,
        **found,
        mixed=None if alike is None else 1 - alike,
        seconds=(manifest or {}).get("wall_seconds"),
        finished=manifest is not None,
        stages=stages,
    )


def _facts(
    rows: Sequence[StepRow], metrics: Mapping[int, Mapping[str, Any]], manifests: Mapping[int, Mapping[str, Any] | None]
) -> dict[str, str]:
    facts: dict[str, str] = {}
    going_on = [row for row in rows if not row.finished]
    newest = max((step for step, manifest in manifests.items() if manifest is not None), default=None)
    facts["finished"] = "no step yet" if newest is None else f"steps 0 to {newest}"
    for row in going_on:
        done = f"{', '.join(row.stages)} done" if row.stages else "samples are being generated"
        facts[f"step {row.step}"] = f"not finished: {done}"
    order = sorted(metrics)
    for name in dict.fromkeys(name for step in order for name in metrics[step]):
        if name == "reward/mean" or (name.startswith("eval/") and "/" not in name[5:] and "-" not in name[5:]):
            values = [metrics[step][name] for step in order if metrics[step].get(name) is not None]
            if values:
                first = f"{values[0]:.3f} -> " if len(values) > 1 else ""
                facts["reward" if name == "reward/mean" else name] = f"{first}{values[-1]:.3f}"
    last = manifests[newest] if newest is not None else None
    if last:
        counters = last.get("counters") or {}
        if "samples" in counters:
            facts["so far"] = f"{counters['samples']:,} samples, {counters.get('response_tokens', 0):,} response tokens"
        if (weights := last.get("weights") or {}).get("version") is not None:
            facts["weights"] = f"version {weights['version']}"
    return facts


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The curve of values as one line of blocks from the lowest to the highest; of more than ``width`` values the means
    of equal shares of them."""
    if not values:
        return ""
    if len(values) > width:
        edges = [round(at * len(values) / width) for at in range(width + 1)]
        values = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(values), max(values)
    if high == low:
        return BLOCKS[3] * len(values)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in values)
