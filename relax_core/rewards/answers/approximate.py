"""Whether two values with functions in them agree, to many digits, at fixed points.

Guarantee: True and False are certain but for coincidences to 30 digits; None where no number comes out, or where the
points cannot tell. Arguments beyond bounds are not looked at, so that no value takes long. Works in any thread.
"""

import hashlib
import threading
from fractions import Fraction
from typing import Any

from relax_core.rewards.answers.algebra import IMAGINARY, INFINITY, PI, Atom, E, Expression, Function, Polynomial

_DIGITS = 100
_CLOSE = 30  # digits that must agree
_POINTS = 9
_ENOUGH = 3  # points at which both sides are real
_FINEST = 10**20  # the largest denominator of a decimal that may equal a value with functions in it
_HUGE = 1e6
_local = threading.local()

Point = dict[Atom, Any]
"""Values of symbols, and of the functions that were needed."""


class _NoNumber(Exception):
    """No value at this point, or one beyond the bounds."""


_ERRORS = (_NoNumber, ValueError, ArithmeticError)


def agree(a: Expression, b: Expression) -> bool | None:
    """Whether two values are equal wherever both have a value: functions of real numbers must be real, as √x is not for
    a negative x, where symbols are in them.
    """
    for one, other in ((a, b), (b, a)):
        known = one.rational
        if known is not None and _is_decimal(known) and known.denominator > _FINEST and other.rational is None:
            return False  # digits that were copied from a calculator agree and are not equal
    names = sorted(_names(a) | _names(b))
    compared = 0
    for index in range(_POINTS if names else 1):
        point: Point = {name: _point(name, index) for name in names}
        try:
            first, second = _value(a, point), _value(b, point)
        except _ERRORS:
            continue
        if not close(first, second):
            return False
        compared += 1
    return True if compared >= (_ENOUGH if names else 1) else None


def _is_decimal(value: Fraction) -> bool:
    return 10 ** value.denominator.bit_length() % value.denominator == 0


def real(value: Expression) -> Any:
    """The real number that a value is, or an infinity; None where it is none."""
    if value.endless:
        return _mp().inf * int(next(iter(value.upper.values())))
    if _names(value):
        return None
    try:
        number = _value(value, Point())
    except _ERRORS:
        return None
    return _mp().re(number) if _is_real(number) else None


def close(a: Any, b: Any) -> bool:
    """Whether two numbers are the same to 30 digits."""
    if not (_mp().isfinite(a) and _mp().isfinite(b)):
        return bool(a == b)
    return bool(abs(a - b) <= _mp().mpf(10) ** -_CLOSE * max(1, abs(a), abs(b)))


def _mp() -> Any:
    """The arithmetic of this thread: mpmath changes the precision of a context while it works."""
    if not hasattr(_local, "context"):
        import mpmath

        _local.context = mpmath.MPContext()
        _local.context.dps = _DIGITS
    return _local.context


def _names(value: Expression) -> set[str]:
    found: set[str] = set()
    seen: set[Function] = set()
    waiting = [value]
    while waiting:
        for atom in waiting.pop().atoms():
            if isinstance(atom, Function):
                if atom not in seen:
                    seen.add(atom)
                    waiting += atom.arguments
            elif isinstance(atom, str) and atom not in (PI, E, IMAGINARY, INFINITY):
                found.add(atom)
    return found


def _point(name: str, index: int) -> Any:
    """A number that depends on the name: positive at the first points, negative at the next, then either."""
    digest = int.from_bytes(hashlib.sha256(f"{name} {index}".encode()).digest()[:8])
    value = _mp().mpf(digest) / 2**64 * 3 + _mp().mpf("0.2")
    return -value if index in (4, 5) or (index > 5 and digest % 2) else value


def _is_real(value: Any) -> bool:
    return abs(_mp().im(value)) <= _mp().mpf(10) ** -_CLOSE * max(1, abs(value))


def _value(value: Expression, point: Point) -> Any:
    return _bounded(_sum(value.upper, point) / _sum(value.lower, point))


def _sum(polynomial: Polynomial, point: Point) -> Any:
    mp = _mp()
    total = mp.mpf(0)
    for monomial, factor in polynomial.items():
        term = _fraction(factor)
        for atom, exponent in monomial:
            term *= _power(_atom(atom, point), _fraction(exponent))
        total += term
    return total


def _fraction(value: Fraction | int) -> Any:
    return _mp().mpf(value.numerator) / value.denominator


def _bounded(value: Any) -> Any:
    if not _mp().isfinite(value):
        raise _NoNumber
    return value


def _atom(atom: Atom, point: Point) -> Any:
    mp = _mp()
    if isinstance(atom, int):
        return mp.mpf(atom)
    if isinstance(atom, str):
        if atom == INFINITY:
            raise _NoNumber
        return {PI: +mp.pi, E: +mp.e, IMAGINARY: mp.mpc(0, 1)}.get(atom) or point[atom]
    if atom not in point:
        arguments = [_value(argument, point) for argument in atom.arguments]
        value = _bounded(_function(atom.name, arguments))
        if _has_symbols(point) and all(map(_is_real, arguments)) and not _is_real(value):
            raise _NoNumber
        point[atom] = value
    return point[atom]


def _has_symbols(point: Point) -> bool:
    return isinstance(next(iter(point), None), str)  # they were put in first


def _power(base: Any, exponent: Any) -> Any:
    mp = _mp()
    if not base:
        raise _NoNumber
    if abs(exponent) > _HUGE or abs(exponent * mp.log(base)) > _HUGE:
        raise _NoNumber
    return mp.power(base, exponent)


def _function(name: str, arguments: list[Any]) -> Any:
    mp = _mp()
    first = arguments[0]
    if any(abs(argument) > _HUGE for argument in arguments):
        raise _NoNumber
    if name == "power":
        return _power(first, arguments[1])
    if name == "root":
        degree = int(arguments[1])
        if degree % 2 and _is_real(first) and mp.re(first) < 0:
            return -mp.root(-mp.re(first), degree)
        return mp.root(first, degree)
    if name == "log":
        return mp.log(first) / mp.log(arguments[1])
    if name in (r"\lfloor", r"\lceil"):
        near = mp.nint(mp.re(first))
        if not _is_real(first) or abs(first - near) < mp.mpf(10) ** -_CLOSE:
            raise _NoNumber  # on the edge
        return mp.floor(mp.re(first)) if name == r"\lfloor" else mp.ceil(mp.re(first))
    if name == "factorial":
        return mp.gamma(first + 1)
    if name == "binomial":
        return mp.binomial(first, arguments[1])
    if name == "abs":
        return abs(first)
    known = _NAMES.get(name)
    if known is None:
        raise _NoNumber
    return getattr(mp, known)(first)


_NAMES = {name: name for name in ["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "ln"]} | {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot"
}  # fmt: skip
