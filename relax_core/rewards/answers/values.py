"""What an answer may be: a number or expression, alone or in a set, tuple, interval, matrix, relation; or words.

Guarantee: plain immutable data. ``compare`` says when two are equal.
"""

from dataclasses import dataclass

from relax_core.rewards.answers.algebra import Expression


@dataclass(frozen=True)
class Quantity:
    """A value with a unit, see ``units.unit``, or a percentage, whose value is the fraction."""

    value: "Value"
    unit: frozenset[str] = frozenset()
    percent: bool = False


@dataclass(frozen=True)
class Based:
    """A number written in a base, ``1011_2``."""

    digits: int
    base: int


@dataclass(frozen=True)
class Words:
    """Text, in lower case, with single spaces."""

    text: str


@dataclass(frozen=True)
class Sequence:
    """Values in brackets whose order counts: a tuple, a point, a vector, an interval."""

    opening: str
    closing: str
    items: "tuple[Value, ...]"


@dataclass(frozen=True)
class Collection:
    """Values whose order does not count: a set, or solutions with commas between them; ``either`` with "or"."""

    items: "tuple[Value, ...]"
    either: bool = False


@dataclass(frozen=True)
class Union:
    """Sets and intervals taken together."""

    parts: "tuple[Value, ...]"


@dataclass(frozen=True)
class Matrix:
    """Rows of values."""

    rows: "tuple[tuple[Value, ...], ...]"


@dataclass(frozen=True)
class Relation:
    """Sides with operators between them: an equation, an inequality, a membership."""

    operators: tuple[str, ...]
    sides: "tuple[Value, ...]"


Value = Expression | Quantity | Based | Words | Sequence | Collection | Union | Matrix | Relation
