"""The values that an option may have by itself.

Guarantee: every numeric option is declared with one of these (a test sees to it), so that no negative count and no
probability of 2 gets as far as a GPU. A range says the same in words, in code and, where it can, in JSON Schema.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Range:
    """A condition on one value.

    Args:
        holds: the condition; it is never asked about None.
        text: its wording, which ends `must be ...`.
        schema: what of it JSON Schema can say.
    """

    holds: Callable[[Any], bool]
    text: str
    schema: dict[str, Any] = field(default_factory=dict)


def at_least(low: float) -> Range:
    """``value >= low``."""
    return Range(lambda value: value >= low, f"{low} or more", {"minimum": low})


def above(low: float) -> Range:
    """``value > low``."""
    return Range(lambda value: value > low, f"above {low}", {"exclusiveMinimum": low})


def between(low: float, high: float) -> Range:
    """``low <= value <= high``."""
    return Range(lambda value: low <= value <= high, f"between {low} and {high}", {"minimum": low, "maximum": high})


ANY = Range(lambda value: True, "any number")
COUNT = at_least(1)
NOT_NEGATIVE = at_least(0)
PROBABILITY = Range(lambda value: 0 < value <= 1, "above 0 and at most 1", {"exclusiveMinimum": 0, "maximum": 1})
DECAY = Range(lambda value: 0 <= value < 1, "0 or more and below 1", {"minimum": 0, "exclusiveMaximum": 1})
FRACTION = between(0, 1)
OFF_OR_COUNT = Range(lambda value: value == -1 or value >= 1, "-1 (off) or 1 and more", {"minimum": -1})
PORT = between(1, 65535)
TOKEN_IDS = Range(lambda ids: bool(ids) and all(token >= 0 for token in ids), "token ids, 0 or more")
STEPS = Range(lambda steps: bool(steps) and all(step >= 0 for step in steps), "step numbers, 0 or more")
