"""What relations say of a value: the side that counts, the set of numbers that inequalities mean.

Guarantee: no side is evaluated; what is of another form gives None.
"""

from relax_core.rewards.answers.algebra import INFINITY, Expression, Function, negative, symbol
from relax_core.rewards.answers.approximate import real
from relax_core.rewards.answers.intervals import line_without
from relax_core.rewards.answers.values import Collection, Relation, Sequence, Union, Value, Words

TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
"""Inequalities, read from the other side."""
_GIVING = ("=", r"\in", r"\approx")
_INFINITY = symbol(INFINITY)


def value_of(relation: Relation) -> Value | None:
    """The side on which an equation or a membership is graded: the last, but the value of ``5 = x``."""
    if any(operator not in _GIVING for operator in relation.operators):
        return None
    first, last = relation.sides[0], relation.sides[-1]
    if is_symbol(last) and isinstance(first, Expression) and first.rational is not None:
        return first
    return last


def exact(relation: Relation) -> Relation:
    """A chain without the approximation at its end: ``x = \\pi \\approx 3.14`` is ``x = \\pi``."""
    if len(relation.operators) > 1 and relation.operators[-1] == r"\approx":
        return Relation(relation.operators[:-1], relation.sides[:-1])
    return relation


def is_symbol(value: Value) -> bool:
    """Whether a value is a symbol alone."""
    return isinstance(value, Expression) and value.symbol is not None


def gives_name(relation: Relation) -> bool:
    """Whether a relation is ``x = ...``, ``f(x) = ...``, ``x \\in ...``."""
    first = relation.sides[0]
    if not isinstance(first, Expression):
        return isinstance(first, Sequence | Words)  # (x, y) = (1, 2), \\det A = 5
    return is_name(first) or (first.rational is not None and is_symbol(relation.sides[-1]))


def is_name(value: Value) -> bool:
    """Whether an expression names a value: ``x``, ``f(x)``, ``AB``, ``\\cos A``, ``|AB|``; not ``x^2`` or ``2x``."""
    if not isinstance(value, Expression) or len(value.upper) != 1 or len(value.lower) != 1:
        return False
    ((monomial, factor),) = value.upper.items()
    return (
        factor == 1
        and 0 < len(monomial) <= 2
        and all(
            exponent == 1
            and (isinstance(atom, str) or (isinstance(atom, Function) and atom.name not in ("root", "power")))
            for atom, exponent in monomial
        )
    )


def interval_of(value: Value) -> Sequence | None:
    """The interval of ``x < 1``, ``0 <= x < 1``; None for other relations."""
    if not isinstance(value, Relation) or any(operator not in TURNED for operator in value.operators):
        return None
    operators, sides = value.operators, value.sides
    if not all(isinstance(side, Expression) for side in sides):
        return None
    if len(sides) == 2:
        if is_symbol(sides[1]) and not is_symbol(sides[0]):
            operators, sides = (TURNED[operators[0]],), sides[::-1]
        if not is_symbol(sides[0]) or is_symbol(sides[1]):
            return None
        if operators[0] in ("<", r"\le"):
            return Sequence("(", ")" if operators[0] == "<" else "]", (negative(_INFINITY), sides[1]))
        return Sequence("(" if operators[0] == ">" else "[", ")", (sides[1], _INFINITY))
    if len(sides) != 3 or not is_name(sides[1]) or sides[1].opaque:  # type: ignore[union-attr]
        return None
    if operators[0] in (">", r"\ge"):
        operators, sides = tuple(TURNED[each] for each in operators[::-1]), sides[::-1]
    if any(operator not in ("<", r"\le") for operator in operators):
        return None
    return Sequence("(" if operators[0] == "<" else "[", ")" if operators[1] == "<" else "]", (sides[0], sides[2]))


def variable(value: Value) -> Value | None:
    """The unknown of an inequality, or of the first of several."""
    if isinstance(value, Collection):
        value = value.items[0]
    if not isinstance(value, Relation):
        return None
    return value.sides[1] if len(value.sides) == 3 else next(filter(is_symbol, value.sides[::-1]), None)


def solutions(value: Value) -> Sequence | Union | None:
    """The numbers of which inequalities in one unknown are true; None of anything else.

    Several are true together, but for those with "or" between them, and for bounds that leave nothing between them.
    """
    if isinstance(value, Relation):
        return _solution(value)
    if not isinstance(value, Collection) or len(value.items) < 2:
        return None
    found = [_solution(each) if isinstance(each, Relation) else None for each in value.items]
    sets = [each for each in found if each is not None]
    if len(sets) < len(found) or len({variable(each) for each in value.items if isinstance(each, Relation)}) > 1:
        return None
    either = Union(tuple(part for each in sets for part in (each.parts if isinstance(each, Union) else (each,))))
    return either if value.either else _together(sets, either)


def _solution(relation: Relation) -> Sequence | Union | None:
    if relation.operators == (r"\in",):
        inside = relation.sides[1]
        is_set = isinstance(inside, Union) or (isinstance(inside, Sequence) and len(inside.items) == 2)
        return inside if is_set and is_symbol(relation.sides[0]) else None  # type: ignore[return-value]
    if relation.operators != (r"\ne",):
        return interval_of(relation)
    named, value = relation.sides if is_symbol(relation.sides[0]) else relation.sides[::-1]
    parts = line_without([value]) if is_symbol(named) and isinstance(value, Expression) else None
    return None if parts is None else Union(parts)


def _together(sets: list[Sequence | Union], either: Union) -> Sequence | Union | None:
    intervals = [each for each in sets if isinstance(each, Sequence)]
    if not intervals:
        points = [part.items[1] for each in sets for part in getattr(each, "parts", ())[:1]]
        parts = line_without(points)
        return None if parts is None else Union(parts)
    if len(intervals) != 2 or len(sets) != 2:
        return None
    below = next((each for each in intervals if _endless(each.items[0])), None)
    above = next((each for each in intervals if _endless(each.items[1])), None)
    if below is None or above is None or below is above:
        return None
    low, high = above.items[0], below.items[1]
    if not isinstance(low, Expression) or not isinstance(high, Expression):
        return None
    left, right = real(low), real(high)
    if left is not None and right is not None and left > right:
        return either
    return Sequence(above.opening, below.closing, (low, high))


def _endless(value: Value) -> bool:
    return isinstance(value, Expression) and value.endless
