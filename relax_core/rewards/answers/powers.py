"""Powers and roots of ``algebra.Expression``.

Guarantee: roots of integers come out in simplest form: √18 is 3 √2, whatever way it was written. A power beyond
``algebra.MAX_BITS`` raises ``TooLarge``; a root of a number with large prime factors raises ``NotRead``.
"""

import math
from fractions import Fraction
from functools import cache, lru_cache

from relax_core.rewards.answers.algebra import (
    IMAGINARY,
    MAX_BITS,
    MAX_TERMS,
    ONE,
    UNIT,
    Atom,
    Expression,
    NotRead,
    TooLarge,
    bounded,
    content,
    divide,
    function,
    multiply,
    negative,
    number,
    symbol,
)

_MAX_PRIME = 31_623  # of a factor that is looked for: numbers below its square are factored in full


def power(base: Expression, exponent: Expression) -> Expression:
    """base ^ exponent."""
    if base.endless or exponent.endless:
        raise NotRead("a power with infinity")
    value = exponent.rational
    if value is None or value.denominator > 100:
        return function("power", base, exponent)
    if abs(value) > MAX_BITS and base.rational not in (0, 1, -1):
        if base.rational is not None:
            raise TooLarge("a power")
        return function("power", base, exponent)
    whole = _whole_power(base, abs(value.numerator))
    result = whole if value.denominator == 1 else root(whole, value.denominator)
    return result if value >= 0 else divide(number(1), result)


def root(a: Expression, degree: int) -> Expression:
    """The real root of an odd degree of a negative number, else the principal root."""
    if degree < 1 or a.endless:
        raise NotRead("a root")
    if degree == 1 or not a.upper:
        return a
    scale = content(a.upper) / content(a.lower)
    rest = divide(a, number(scale))
    outside = multiply(_root_of(scale.numerator, degree), divide(number(1), _root_of(scale.denominator, degree)))
    if (value := rest.rational) is not None:  # 1 or -1
        if value > 0:
            return outside
        if degree % 2:
            return negative(outside)
        return multiply(outside, symbol(IMAGINARY)) if degree == 2 else function("root", a, number(degree))
    if len(rest.upper) == 1 and rest.lower == UNIT:
        ((monomial, factor),) = rest.upper.items()
        if factor > 0 and all(isinstance(atom, int) for atom, _ in monomial):  # a root of a root
            inner = frozenset((atom, Fraction(exponent) / degree) for atom, exponent in monomial)
            return multiply(outside, Expression({inner: Fraction(1)}))
    return multiply(outside, function("root", rest, number(degree)))


def _whole_power(base: Expression, exponent: int) -> Expression:
    """base ^ exponent for an exponent of at least 0."""
    if not base.upper:
        return number(0 if exponent else 1)
    if len(base.upper) == 1 and base.lower == UNIT:
        ((monomial, factor),) = base.upper.items()
        bits = max(factor.numerator.bit_length(), factor.denominator.bit_length())
        if bits > 1 and (bits - 1) * exponent > MAX_BITS:
            raise TooLarge("a power")
        outside, inside = Fraction(1), ONE
        for atom, each in monomial:
            times = each * exponent
            if isinstance(atom, int):
                if times * atom.bit_length() > MAX_BITS:
                    raise TooLarge("a power")
                outside, times = outside * Fraction(atom) ** math.floor(times), times - math.floor(times)
            elif atom == IMAGINARY:
                outside, times = outside * (1, 1, -1, -1)[int(times) % 4], int(times) % 2
            if times:
                inside |= {(atom, times)}
        return Expression({inside: bounded(factor**exponent * outside)})
    if exponent > 30 or math.comb(exponent + len(base.upper) - 1, exponent) > MAX_TERMS:
        return function("power", base, number(exponent))
    result = number(1)
    for _ in range(exponent):
        result = multiply(result, base)
    return result


@cache
def _primes() -> list[int]:
    sieve = bytearray([1]) * (_MAX_PRIME + 1)
    for candidate in range(2, math.isqrt(_MAX_PRIME) + 1):
        if sieve[candidate]:
            sieve[candidate * candidate :: candidate] = bytes(
                len(range(candidate * candidate, _MAX_PRIME + 1, candidate))
            )
    return [candidate for candidate in range(2, _MAX_PRIME + 1) if sieve[candidate]]


@lru_cache(maxsize=1024)
def _root_of(value: int, degree: int) -> Expression:
    """The root of a whole number above 0: a whole number times roots of primes."""
    outside = 1
    inside: set[tuple[Atom, Fraction | int]] = set()
    if value.bit_length() > 256:
        raise NotRead("a root of a large number")
    for prime in _primes():
        if prime * prime > value:
            break
        count = 0
        while value % prime == 0:
            value //= prime
            count += 1
        outside *= prime ** (count // degree)
        if count % degree:
            inside.add((prime, Fraction(count % degree, degree)))
    if value > _MAX_PRIME**2:
        whole = math.isqrt(value) if degree == 2 else round(value ** (1 / degree))
        if whole**degree != value:
            raise NotRead("a root of a number with large factors")
        return multiply(number(outside * whole), Expression({frozenset(inside): Fraction(1)}))
    if value > 1:
        inside.add((value, Fraction(1, degree)))
    return Expression({frozenset(inside): Fraction(outside)})
