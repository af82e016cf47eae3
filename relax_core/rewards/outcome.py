"""What a reward function returned, checked.

Guarantee: 0, "no score" (None), NaN and a call that failed stay four different things; anything that is not a number,
None or a dict with the named key is an error that names function and sample.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from data.errors import UserError
from relax_core.rewards.types import RewardInput, RewardSpec

FLOAT32_MAX = (2 - 2**-23) * 2.0**127
"""The largest number that a score's column holds."""

MAX_TEXT = 200
"""Characters that are kept of a text beside a score."""


WHOLE = ("judge_prompt", "judge_output")
"""Keys of texts that are kept whole, in columns of their own; with a part's name and / before them in a sum."""


def valid_text(text: str) -> str:
    """The text as a plain ``str`` that UTF-8 can hold: a lone surrogate, which no table takes, becomes an escape."""
    return str.encode(text, errors="backslashreplace").decode()


def error_text(error: Exception) -> str:
    """What an error of a function says, valid."""
    try:
        return valid_text(str(error))
    except BaseException:  # its own ``__str__``, which may raise anything
        return "its text cannot be read"


Kind = Literal["scored", "no_score", "nan", "failed"]
"""There is a score; the function says that there is none; it returned NaN, which is neither; or it failed, or the
sample did, so that nobody knows."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Outcome:
    """Result for one sample.

    Attributes:
        score: None is no score; NaN is what the function returned.
        raw: the score for metrics: ``metadata["raw_reward"]`` where the function has put it, else the score.
        components: the other numbers and texts of a dict; None for a number that is not finite.
        error: why there is no score, or no true one.
        kind: see there.
        seconds: that the call took; None where there was none.
        texts: the texts of ``WHOLE``.
    """

    score: float | None = None
    raw: float | None = None
    components: dict[str, float | str | None] = field(default_factory=dict)
    error: str | None = None
    kind: Kind = "scored"
    seconds: float | None = None
    texts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        components = {
            valid_text(key): valid_text(entry) if isinstance(entry, str) else entry
            for key, entry in self.components.items()
        }
        object.__setattr__(self, "components", components)
        object.__setattr__(self, "texts", {key: valid_text(text) for key, text in self.texts.items()})
        object.__setattr__(self, "error", None if self.error is None else valid_text(self.error))


def outcome_of(spec: RewardSpec, sample: RewardInput, value: Any, reward_key: str | None) -> Outcome:
    """The outcome of a sample for which a function returned ``value``.

    Raises:
        UserError: it is nothing that a reward may be; the text says what it is.
    """
    who = f"The reward {spec.name} returned"
    components: dict[str, float | str | None] = {}
    texts: dict[str, str] = {}
    if isinstance(value, dict):
        named = "--reward-key" if reward_key is not None and spec.custom else "key"
        # one option for rows of several built-in rewards; a sum's keys are its parts, of which it takes no other
        elsewhere = not spec.custom and spec.split is None and spec.key in value and reward_key not in value
        reward_key = spec.key if reward_key is None or elsewhere else reward_key
        if reward_key is None:
            raise UserError(
                f"{who} a dict for sample {sample.sample_id}, with the keys {_names(value)}.",
                "Name the key of the score with --reward-key.",
            )
        if reward_key not in value:
            raise UserError(
                f"{who} a dict without the {named} {reward_key!r} for sample {sample.sample_id}; "
                f"its keys are {_names(value)}.",
                "Change --reward-key (of a part of a sum, its key), or return that key.",
            )
        for key, entry in value.items():
            if key == reward_key:
                continue
            if isinstance(entry, str) and (whole := str(key).rpartition("/")[2]) in WHOLE:
                texts[whole] = f"{texts[whole]}\n\n{entry}" if whole in texts else entry
            elif isinstance(entry, str) or _is_number(entry):
                components[str(key)] = entry[:MAX_TEXT] if isinstance(entry, str) else _finite(entry)
        value = value[reward_key]
    elif reward_key is not None and spec.custom and value is not None:
        raise UserError(
            f"{who} a {type(value).__name__} for sample {sample.sample_id}, "
            f"but --reward-key {reward_key!r} expects a dict.",
            "Return a dict with that key, or leave --reward-key out.",
        )
    if value is None:
        return Outcome(components=components, error="the reward returned no score", kind="no_score", texts=texts)
    score = _score(spec, sample, value, "returned")
    raw = sample.metadata.get("raw_reward")
    raw = score if raw is None else _score(spec, sample, raw, "set metadata.raw_reward to")
    if math.isnan(score):
        return Outcome(score, raw, components, error="the reward returned NaN", kind="nan", texts=texts)
    return Outcome(score, raw, components, texts=texts)


def _score(spec: RewardSpec, sample: RewardInput, value: Any, verb: str) -> float:
    number = _number(value)
    if number is None:
        raise UserError(
            f"The reward {spec.name} {verb} {str(value)[:80]!r}, a {type(value).__name__}, "
            f"for sample {sample.sample_id}.",
            "Expected a number, None (no score), or a dict with --reward-key.",
        )
    if abs(number) > FLOAT32_MAX:  # False for NaN
        raise UserError(
            f"The reward {spec.name} {verb} {value!s:.40} for sample {sample.sample_id}, which float32 cannot hold.",
            "Return a finite number, or None where a sample cannot be scored.",
        )
    return number


def _number(value: Any) -> float | None:
    """A Python, NumPy or zero-dimensional tensor number as a float; None for anything else."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond float64
        return float("inf")


def _is_number(value: Any) -> bool:
    return _number(value) is not None


def _finite(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and math.isfinite(number) else None


def _names(value: dict[Any, Any]) -> str:
    return ", ".join(map(repr, value)) or "none"
