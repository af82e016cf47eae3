"""Samples of a step in an order, those that are asked for, and what holds of all.

Guarantee: a sample without a value of the key that is sorted by comes last, whichever way the order runs; of equal ones
those come first from which most was learnt (the larger ``|advantage|``), then those with the smaller id.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from data.store import RunStore
from relax_core.show.reading import Sample, read_step

Key = Literal["reward", "length", "gap"]
KEYS: tuple[Key, ...] = ("reward", "length", "gap")

TRIMMED = 400
"""Characters of a text in ``best_and_worst``."""


def value_of(sample: Sample, key: Key) -> float | None:
    """What a key sorts by: the reward, the response's tokens, or the largest gap of a token that is trained on."""
    return {"reward": sample.reward, "length": float(sample.length), "gap": sample.gap_max}[key]


def in_order(samples: Sequence[Sample], key: Key, ascending: bool = False) -> list[Sample]:
    """Largest first (or smallest); equal ones by ``|advantage|``, largest first, and id; those without a value last."""

    def place(sample: Sample) -> tuple[bool, float, float, str]:
        value = value_of(sample, key)
        known = 0.0 if value is None else value if ascending else -value
        return value is None, known, -abs(sample.advantage or 0.0), sample.sample_id

    return sorted(samples, key=place)


def chosen(
    samples: Sequence[Sample], sample: str | None = None, group: str | None = None, prompt: str | None = None
) -> list[Sample]:
    """Those with this id, of this group, and with this text in the prompt (small and capital letters alike).

    Raises:
        UserError: there is none.
    """
    found = [
        one
        for one in samples
        if (sample is None or one.sample_id == sample)
        and (group is None or one.group_id == group)
        and (prompt is None or prompt.casefold() in one.prompt.casefold())
    ]
    if not found and samples:
        given = {"--sample": sample, "--group": group, "--prompt": prompt}
        flags = " ".join(f"{flag} {value}" for flag, value in given.items() if value is not None)
        raise UserError(
            f"{flags}: none of the {len(samples)} samples is that.",
            f"Ids look like {samples[0].sample_id} (sample) and {samples[0].group_id} (group).",
        )
    return found


def best_and_worst(store: RunStore, step: int, n: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The ``n`` samples with the highest rewards, highest first, and the ``n`` with the lowest, lowest first; none is
    in both, and none without a score is in either.

    Returns:
        Dictionaries with ``sample_id``, ``prompt``, ``response``, ``reward``, ``label`` and ``length`` (tokens); texts
        are trimmed to ``TRIMMED`` characters.

    Raises:
        UserError: the step has no rollout.
    """
    first, last = ends(read_step(store, step).samples, "reward", n)
    return [_brief(sample) for sample in first], [_brief(sample) for sample in last]


def ends(samples: Sequence[Sample], key: Key, n: int) -> tuple[list[Sample], list[Sample]]:
    """The first ``n`` in the order of a key, and of the rest the last ``n``, last first; both only of those with a
    value. Of equal ones, one of each group comes before a second of any."""
    known = [sample for sample in samples if value_of(sample, key) is not None]
    first = _groups_in_turn(in_order(known, key), key)[:n]
    taken = {sample.sample_id for sample in first}
    rest = [sample for sample in known if sample.sample_id not in taken]
    return first, _groups_in_turn(in_order(rest, key, ascending=True), key)[:n]


def _groups_in_turn(ordered: Sequence[Sample], key: Key) -> list[Sample]:
    """The same order of values; of equal ones the first of each group, then the second of each."""
    values: dict[float | None, list[tuple[int, Sample]]] = {}
    turns: Counter[tuple[float | None, str]] = Counter()
    for sample in ordered:
        value = value_of(sample, key)
        turns[value, sample.group_id] += 1
        values.setdefault(value, []).append((turns[value, sample.group_id], sample))
    return [sample for equal in values.values() for _, sample in sorted(equal, key=lambda pair: pair[0])]


def _brief(sample: Sample) -> dict[str, Any]:
    return {
        "sample_id": sample.sample_id,
        "prompt": trimmed(sample.prompt),
        "response": trimmed(sample.response),
        "reward": sample.reward,
        "label": sample.label,
        "length": sample.length,
    }


def trimmed(text: str, most: int = TRIMMED) -> str:
    """The text, or its beginning and end with a mark between them."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    return f"{text[:head]} … {text[len(text) - (most - head - 3) :]}"


def trained_values(samples: Sequence[Sample], name: str) -> list[NDArray[Any]]:
    """A column of each sample that has it, of the tokens that are trained on."""
    found = []
    for sample in samples:
        values = getattr(sample, name)
        if values is not None:
            found.append(values if sample.mask is None else values[sample.mask.astype(bool)])
    return found


def facts(samples: Sequence[Sample]) -> dict[str, str]:
    """What holds of all samples of the step, those included that the page leaves out."""
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    gaps = [sample for sample in samples if sample.gap_mean is not None]
    found = {"samples": str(len(samples))}
    if rewards:
        spread: dict[str, set[float]] = {}
        for sample in samples:
            if sample.reward is not None:
                spread.setdefault(sample.group_id, set()).add(sample.reward)
        mixed = sum(len(values) > 1 for values in spread.values())
        found["reward"] = f"{np.mean(rewards):.3f}"
        found["groups mixed"] = f"{mixed} of {len({sample.group_id for sample in samples})}"
    if unscored := sum(sample.reward is None for sample in samples):
        found["without a score"] = str(unscored)
    if samples:
        found["tokens"] = f"{np.mean([sample.length for sample in samples]):.1f}"
        found["truncated"] = f"{sum(sample.status == 'truncated' for sample in samples) / len(samples):.0%}"
    if gaps:
        found["gap"] = f"mean {_mean_gap(gaps):.3g}, max {max(sample.gap_max or 0.0 for sample in gaps):.3g}"
    return found


def _mean_gap(samples: Sequence[Sample]) -> float:
    """Over tokens, not over samples."""
    return float(np.abs(np.concatenate(trained_values(samples, "gap"))).mean())
