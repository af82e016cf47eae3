"""Whether an answer is the label's.

Guarantee: True and False are decided exactly, or by ``approximate``; None is undecided. Comparing is symmetric but for
relations: an equation or a membership is graded on its right-hand side where the *label* is a bare value, and the
label's where it gives a name to a value. Nothing raises.
"""

from collections.abc import Iterable

from relax_core.rewards.answers import algebra
from relax_core.rewards.answers.algebra import Expression, NotRead, TooLarge, negative, proportional
from relax_core.rewards.answers.approximate import agree
from relax_core.rewards.answers.intervals import merge
from relax_core.rewards.answers.relations import TURNED, exact, gives_name, solutions, value_of, variable
from relax_core.rewards.answers.units import differ
from relax_core.rewards.answers.values import (
    Based,
    Collection,
    Matrix,
    Quantity,
    Relation,
    Sequence,
    Union,
    Value,
    Words,
)

_PAIRS = 400
"""Pairs of values of two sets that are looked at."""


def same(label: Value, answer: Value) -> bool | None:
    """Whether two values are equal; None where that is not decided here."""
    first, second = solutions(label), solutions(answer)
    if first is not None and second is not None:
        return same(first, second) if variable(label) == variable(answer) else False
    if (first is not None and not _is_relations(answer)) or (second is not None and not _is_relations(label)):
        return same(first or label, second or answer)
    if isinstance(label, Relation) or isinstance(answer, Relation):
        return _relations(label, answer)
    if isinstance(label, Collection) or isinstance(answer, Collection):
        return _collections(label, answer)
    if isinstance(label, Quantity) or isinstance(answer, Quantity):
        return _quantities(label, answer)
    if isinstance(label, Expression) and isinstance(answer, Expression):
        return _expressions(label, answer)
    if isinstance(label, Based) or isinstance(answer, Based):
        return _based(label, answer)
    if isinstance(label, Union) or isinstance(answer, Union):
        return _unions(label, answer)
    if isinstance(label, Sequence) and isinstance(answer, Sequence):
        return _sequences(label, answer)
    if isinstance(label, Matrix) and isinstance(answer, Matrix):
        if [len(row) for row in label.rows] != [len(row) for row in answer.rows]:
            return False
        return _all(
            same(first, second)
            for one, other in zip(label.rows, answer.rows, strict=True)
            for first, second in zip(one, other, strict=True)
        )
    if isinstance(label, Words) and isinstance(answer, Words):
        return label.text == answer.text
    return False


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """All of them: False as soon as one is."""
    decided = True
    for verdict in verdicts:
        if verdict is False:
            return False
        decided = decided and verdict is True
    return True if decided else None


def _expressions(a: Expression, b: Expression) -> bool | None:
    if a.key == b.key:
        return True
    if a.endless or b.endless:
        return False
    try:
        if not algebra.add(a, negative(b)).upper:
            return True
    except (NotRead, TooLarge):
        return agree(a, b)
    return agree(a, b) if a.opaque or b.opaque else False


def _quantities(a: Value, b: Value) -> bool | None:
    first = a if isinstance(a, Quantity) else Quantity(a)
    second = b if isinstance(b, Quantity) else Quantity(b)
    if differ(first.unit, second.unit):
        return False
    verdict = same(first.value, second.value)
    if verdict or first.percent == second.percent:
        return verdict
    percent, other = (first, second) if first.percent else (second, first)
    return verdict if not _is_percentage(percent.value, other.value) else True


def _is_percentage(fraction: Value, written: Value) -> bool:
    """Whether a number above 1 is a percentage whose sign was left out."""
    if not (isinstance(fraction, Expression) and isinstance(written, Expression)):
        return False
    share, number = fraction.rational, written.rational
    return share is not None and number is not None and abs(number) > 1 and share * 100 == number


def _based(a: Value, b: Value) -> bool:
    """A base may be left out; the digits are the same then."""
    if isinstance(a, Based) and isinstance(b, Based):
        if a.base == b.base:
            return a.digits == b.digits
        values = [_in_base(each) for each in (a, b)]
        return None not in values and values[0] == values[1]
    based, other = (a, b) if isinstance(a, Based) else (b, a)
    return isinstance(based, Based) and isinstance(other, Expression) and other.rational == based.digits


def _in_base(value: Based) -> int | None:
    try:
        return int(str(value.digits), value.base)
    except ValueError:
        return None


def _sequences(a: Sequence, b: Sequence) -> bool | None:
    if len(a.items) != len(b.items) or ((a.opening == ":") != (b.opening == ":")):
        return False
    if len(a.items) == 2 and (a.opening, a.closing) != (b.opening, b.closing):
        return False  # of more than two values the brackets mean nothing
    return _all(same(first, second) for first, second in zip(a.items, b.items, strict=True))


def _collections(label: Value, answer: Value) -> bool | None:
    if isinstance(label, Union) or isinstance(answer, Union):
        return _unions(label, answer)
    first = _distinct(label.items if isinstance(label, Collection) else (label,))
    second = _distinct(answer.items if isinstance(answer, Collection) else (answer,))
    if isinstance(label, Collection) and isinstance(answer, Collection):
        first, second = _named(first), _named(second)
    if len(first) * len(second) > _PAIRS:
        if set(first) == set(second):
            return True
        return (
            False
            if all(isinstance(each, Expression) and each.rational is not None for each in first + second)
            else None
        )
    return _all([_among(one, second, False) for one in first] + [_among(other, first, True) for other in second])


def _among(value: Value, others: tuple[Value, ...], is_answer: bool) -> bool | None:
    """Whether one of the others equals a value."""
    verdict: bool | None = False
    for other in others:
        one = same(other, value) if is_answer else same(value, other)
        if one:
            return True
        verdict = None if one is None else verdict
    return verdict


def _distinct(items: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(items))


def _named(items: tuple[Value, ...]) -> tuple[Value, ...]:
    """``x = 1, 2`` as 1, 2: a name before the first of several bare values."""
    first = items[0] if items else None
    if isinstance(first, Relation) and not any(isinstance(each, Relation) for each in items[1:]) and len(items) > 1:
        value = value_of(first)
        return items if value is None else (value, *items[1:])
    return items


def _relations(label: Value, answer: Value) -> bool | None:
    if isinstance(label, Relation) and isinstance(answer, Relation):
        return _two_relations(label, answer)
    relation, other = (label, answer) if isinstance(label, Relation) else (answer, label)
    assert isinstance(relation, Relation)
    if isinstance(other, Collection) and len(other.items) > 1 and relation.operators != (r"\in",):
        value = value_of(relation)  # x = \pm 2 was read as two equations; this is one
        if not isinstance(value, Collection):
            return False
    if relation is label and not gives_name(relation):
        return False
    value, before = value_of(relation), value_of(exact(relation))
    if value is None or before is None:
        return False
    verdicts = [same(each, other) if relation is label else same(other, each) for each in (before, value)]
    return True if True in verdicts else None if None in verdicts else False


def _two_relations(a: Relation, b: Relation) -> bool | None:
    a, b = exact(a), exact(b)
    if set(a.operators) | set(b.operators) <= {r"\in"}:
        return _all(same(one, other) for one, other in zip(a.sides, b.sides, strict=False))
    if set(a.operators) | set(b.operators) <= {"=", r"\approx"}:
        return True if _all(same(a.sides[i], b.sides[i]) for i in (0, -1)) else _proportional(a, b, None)
    if len(a.operators) == len(b.operators) == 1:
        return _proportional(a, b, a.operators[0] == b.operators[0])
    return True if a == b else None


def _proportional(a: Relation, b: Relation, same_operator: bool | None) -> bool | None:
    """Whether two equations (``same_operator`` None) or inequalities say the same, one a multiple of the other."""
    sides = [side for relation in (a, b) for side in (relation.sides[0], relation.sides[-1])]
    if not all(isinstance(side, Expression) for side in sides):
        return _all(same(one, other) for one, other in zip(sides[:2], sides[2:], strict=True))
    try:
        left, right = (algebra.add(one, negative(other)) for one, other in (sides[:2], sides[2:]))  # type: ignore[arg-type]
        ratio = proportional(left, right) if left.upper and right.upper else None
    except (NotRead, TooLarge):
        return None
    if ratio is None:
        return None if left.opaque or right.opaque else False
    if same_operator is None:
        return True
    turned = TURNED.get(a.operators[0], a.operators[0]) == b.operators[0]
    return same_operator if ratio > 0 else turned


def _unions(label: Value, answer: Value) -> bool | None:
    first, second = _parts(label), _parts(answer)
    if len(first) * len(second) <= _PAIRS and _all(
        [_among(one, second, False) for one in first] + [_among(other, first, True) for other in second]
    ):
        return True
    merged, others = merge(first), merge(second)
    if merged is None or others is None:
        return None
    return len(merged) == len(others) and all(a.meets(b) for a, b in zip(merged, others, strict=True))


def _parts(value: Value) -> tuple[Value, ...]:
    if isinstance(value, Relation):
        value = value_of(value) or value
    parts = value.parts if isinstance(value, Union) else value.items if isinstance(value, Collection) else (value,)
    return tuple(parts)


def _is_relations(value: Value) -> bool:
    return isinstance(value.items[0] if isinstance(value, Collection) and value.items else value, Relation)
