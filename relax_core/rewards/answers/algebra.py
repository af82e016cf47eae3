"""Exact arithmetic of answers: quotients of polynomials in symbols, π, e, i and roots of integers.

Guarantee: equal values of this kind have a difference whose numerator is empty, and only those do: roots of distinct
primes are linearly independent over the rationals (Besicovitch, "On the linear independence of fractional powers of
integers", 1940), and symbols, π and e are taken to be independent. Other functions are opaque: they equal themselves.
No operation makes numbers of more than ``MAX_BITS`` bits or sums of more than ``MAX_TERMS`` terms; it raises.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

MAX_BITS = 1 << 15
"""Bits of the largest number: 3^10000 is one, 9^(9^9) is none."""
MAX_TERMS = 200
_MAX_WORK = 4000  # products of terms in one multiplication

E, PI, IMAGINARY, INFINITY = "e", r"\pi", "i", r"\infty"


class TooLarge(Exception):
    """A value beyond the bounds."""


class NotRead(Exception):
    """Nothing that this arithmetic knows."""


@dataclass(frozen=True)
class Function:
    """An opaque value: a function of others."""

    name: str
    arguments: "tuple[Expression, ...]"


Atom = str | int | Function
"""A symbol, a prime number (under a root), or an opaque function."""
Monomial = frozenset[tuple[Atom, Fraction | int]]
"""A product of powers. The exponent of a prime is between 0 and 1, of ``IMAGINARY`` it is 1, of others an integer."""
Polynomial = dict[Monomial, Fraction]

ONE: Monomial = frozenset()
_ENDLESS: Monomial = frozenset({(INFINITY, 1)})
UNIT: Polynomial = {ONE: Fraction(1)}


class Expression:
    """A quotient of two polynomials; the lower one is 1 or a sum."""

    __slots__ = ("_key", "lower", "upper")

    def __init__(self, upper: Polynomial, lower: Polynomial | None = None) -> None:
        self.upper = upper
        self.lower = UNIT if lower is None else lower
        self._key: tuple[frozenset[tuple[Monomial, Fraction]], ...] | None = None

    @property
    def key(self) -> tuple[frozenset[tuple[Monomial, Fraction]], ...]:
        """Equal keys mean equal values; for sums below the line not the other way round."""
        if self._key is None:
            self._key = (frozenset(self.upper.items()), frozenset(self.lower.items()))
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def rational(self) -> Fraction | None:
        """The value where it is a rational number."""
        if not self.upper:
            return Fraction(0)
        if len(self.upper) == 1 and self.lower == UNIT and ONE in self.upper:
            return self.upper[ONE]
        return None

    @property
    def symbol(self) -> str | None:
        """The name where it is a symbol alone."""
        if len(self.upper) == 1 and self.lower == UNIT:
            ((monomial, factor),) = self.upper.items()
            if factor == 1 and len(monomial) == 1:
                ((atom, exponent),) = monomial
                if exponent == 1 and isinstance(atom, str) and atom not in (PI, E, IMAGINARY, INFINITY):
                    return atom
        return None

    @property
    def endless(self) -> bool:
        """Whether it is plus or minus infinity."""
        return _ENDLESS in self.upper

    def atoms(self) -> Iterable[Atom]:
        """The atoms in it, those within functions not."""
        for polynomial in (self.upper, self.lower):
            for monomial in polynomial:
                for atom, _ in monomial:
                    yield atom

    @property
    def opaque(self) -> bool:
        """Whether functions are in it."""
        return any(isinstance(atom, Function) for atom in self.atoms())


def number(value: Fraction | int) -> Expression:
    """A rational number."""
    value = Fraction(value)
    return Expression({ONE: value} if value else {})


def symbol(name: str) -> Expression:
    """A symbol, or ``PI``, ``E``, ``IMAGINARY``, ``INFINITY``."""
    return Expression({frozenset({(name, 1)}): Fraction(1)})


def function(name: str, *arguments: Expression) -> Expression:
    """An opaque value."""
    if any(argument.endless for argument in arguments):
        raise NotRead("a function of infinity")
    return Expression({frozenset({(Function(name, arguments), 1)}): Fraction(1)})


def add(a: Expression, b: Expression) -> Expression:
    """a + b."""
    if (a.endless or b.endless) and a.upper and b.upper:
        raise NotRead("a sum with infinity")
    if a.lower == b.lower:
        return _quotient(_sum(a.upper, b.upper), a.lower)
    return _quotient(_sum(product(a.upper, b.lower), product(b.upper, a.lower)), product(a.lower, b.lower))


def negative(a: Expression) -> Expression:
    """-a."""
    return Expression({monomial: -factor for monomial, factor in a.upper.items()}, a.lower)


def multiply(a: Expression, b: Expression) -> Expression:
    """a b."""
    if a.endless or b.endless:
        endless, other = (a, b) if a.endless else (b, a)
        factor = other.rational
        if not factor:
            raise NotRead("a product with infinity")
        return endless if factor > 0 else negative(endless)
    return _quotient(product(a.upper, b.upper), product(a.lower, b.lower))


def divide(a: Expression, b: Expression) -> Expression:
    """a / b."""
    if not b.upper or a.endless or b.endless:
        raise NotRead("a division by zero or with infinity")
    return _quotient(product(a.upper, b.lower), product(a.lower, b.upper))


def proportional(a: Expression, b: Expression) -> Fraction | None:
    """The rational number r with a = r b; None without one. Both are not 0."""
    left, right = product(a.upper, b.lower), product(b.upper, a.lower)
    if left.keys() != right.keys():
        return None
    ratios = {factor / right[monomial] for monomial, factor in left.items()}
    return ratios.pop() if len(ratios) == 1 else None


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    total = dict(a)
    for monomial, factor in b.items():
        if value := total.get(monomial, 0) + factor:
            total[monomial] = bounded(Fraction(value))
        else:
            del total[monomial]
    if len(total) > MAX_TERMS:
        raise NotRead("a sum of many terms")
    return total


def product(a: Polynomial, b: Polynomial) -> Polynomial:
    """a b.

    Raises:
        NotRead: more terms than ``MAX_TERMS``, or more work than is done at once.
    """
    if a == UNIT:
        return b
    if b == UNIT:
        return a
    if len(a) * len(b) > _MAX_WORK:
        raise NotRead("a product of long sums")
    total: Polynomial = {}
    for first, left in a.items():
        for second, right in b.items():
            factor, monomial = _merged(first, second)
            if value := total.get(monomial, 0) + left * right * factor:
                total[monomial] = bounded(Fraction(value))
            else:
                total.pop(monomial, None)
    if len(total) > MAX_TERMS:
        raise NotRead("a sum of many terms")
    return total


def _merged(a: Monomial, b: Monomial) -> tuple[Fraction | int, Monomial]:
    """The product of two monomials as a factor and a monomial."""
    if not a or not b:
        return 1, a or b
    exponents: dict[Atom, Fraction | int] = dict(a)
    for atom, exponent in b:
        exponents[atom] = exponents.get(atom, 0) + exponent
    factor: Fraction | int = 1
    for atom, exponent in list(exponents.items()):
        if isinstance(atom, int):
            whole = math.floor(exponent)
            factor *= Fraction(atom) ** whole
            exponents[atom] = exponent - whole
        elif atom == IMAGINARY:
            factor *= (1, 1, -1, -1)[int(exponent) % 4]
            exponents[atom] = int(exponent) % 2
    return factor, frozenset((atom, exponent) for atom, exponent in exponents.items() if exponent)


def _inverse(monomial: Monomial) -> tuple[Fraction | int, Monomial]:
    factor: Fraction | int = 1
    inverse: Monomial = ONE
    for atom, exponent in monomial:
        if isinstance(atom, int):  # 1 / p^(1/3) = p^(2/3) / p
            factor *= Fraction(1, atom)
            exponent = exponent - 1
        elif atom == IMAGINARY:  # 1 / i = -i
            factor, exponent = -factor, -1
        inverse |= {(atom, -exponent)}
    return factor, inverse


def _quotient(upper: Polynomial, lower: Polynomial) -> Expression:
    if not upper or lower == UNIT:
        return Expression(upper)
    if len(lower) == 1:
        ((monomial, below),) = lower.items()
        factor, inverse = _inverse(monomial)
        return Expression(product(upper, {inverse: bounded(Fraction(factor) / below)}))
    ratio = proportional(Expression(upper), Expression(lower))
    if ratio is not None:
        return number(ratio)
    scale = content(lower)
    if lower[min(lower, key=_order)] < 0:
        scale = -scale
    return Expression(
        {monomial: factor / scale for monomial, factor in upper.items()},
        {monomial: factor / scale for monomial, factor in lower.items()},
    )


def _order(monomial: Monomial) -> list[str]:
    return sorted(f"{atom}^{exponent}" for atom, exponent in monomial)


def content(polynomial: Polynomial) -> Fraction:
    """The largest rational number of which all factors are multiples."""
    upper = math.gcd(*(factor.numerator for factor in polynomial.values()))
    return Fraction(upper, math.lcm(*(factor.denominator for factor in polynomial.values())))


def bounded(value: Fraction) -> Fraction:
    """A number that is not too large, see ``MAX_BITS``.

    Raises:
        TooLarge: it is.
    """
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise TooLarge("a number")
    return value
