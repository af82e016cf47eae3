"""Unions of intervals and points on the real line.

Guarantee: two unions have the same merged form exactly if they are the same set of numbers.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from relax_core.rewards.answers.algebra import INFINITY, negative, symbol
from relax_core.rewards.answers.approximate import close, real
from relax_core.rewards.answers.values import Expression, Sequence, Value

REAL_LINE = Sequence("(", ")", (negative(symbol(INFINITY)), symbol(INFINITY)))


@dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``, with the ends that are ``closed`` to the left and to the right."""

    low: Any
    high: Any
    closed: tuple[bool, bool]

    def meets(self, other: "Interval") -> bool:
        """Whether it is the same interval."""
        return self.closed == other.closed and close(self.low, other.low) and close(self.high, other.high)


def merge(parts: tuple[Value, ...]) -> list[Interval] | None:
    """The intervals of a union, in order, none of which meet; None where a part is no interval and no number."""
    intervals = []
    for part in parts:
        if (interval := _interval(part)) is None:
            return None
        if interval.low < interval.high or (interval.low == interval.high and interval.closed == (True, True)):
            intervals.append(interval)
    merged: list[Interval] = []
    for interval in sorted(intervals, key=lambda each: (each.low, not each.closed[0])):
        last = merged[-1] if merged else None
        if last is None or not _touch(last, interval):
            merged.append(interval)
            continue
        if close(last.high, interval.high):
            end, closed = last.high, last.closed[1] or interval.closed[1]
        else:
            wider = last if last.high > interval.high else interval
            end, closed = wider.high, wider.closed[1]
        merged[-1] = Interval(last.low, end, (last.closed[0], closed))
    return merged


def _touch(left: Interval, right: Interval) -> bool:
    """Whether two intervals, the first of which begins first, leave no number between them out."""
    if close(left.high, right.low):
        return left.closed[1] or right.closed[0]
    return bool(left.high > right.low)


def _interval(part: Value) -> Interval | None:
    if isinstance(part, Expression):
        number = real(part)
        return None if number is None else Interval(number, number, (True, True))
    if not isinstance(part, Sequence) or len(part.items) != 2:
        return None
    ends = [real(item) if isinstance(item, Expression) else None for item in part.items]
    if None in ends:
        return None
    return Interval(ends[0], ends[1], (part.opening == "[", part.closing == "]"))


def line_without(points: list[Expression]) -> tuple[Sequence, ...] | None:
    """The real line without some numbers; None where a point is none."""
    numbers = {real(point): point for point in points}
    if None in numbers:
        return None
    ends = [REAL_LINE.items[0], *(numbers[each] for each in sorted(numbers)), REAL_LINE.items[1]]
    return tuple(Sequence("(", ")", pair) for pair in pairwise(ends))
