"""Exact arithmetic against plain fractions and floats."""

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relax_core.rewards.answers import algebra
from relax_core.rewards.answers.algebra import (
    Expression,
    NotRead,
    TooLarge,
    add,
    divide,
    multiply,
    negative,
    number,
    symbol,
)
from relax_core.rewards.answers.powers import power, root

fractions = st.fractions(min_value=-50, max_value=50, max_denominator=20)
X, Y = symbol("x"), symbol("y")


def polynomial(coefficients: list[Fraction]) -> Expression:
    total = number(0)
    for exponent, factor in enumerate(coefficients):
        total = add(total, multiply(number(factor), power(X, number(exponent))))
    return total


@given(fractions, fractions)
def test_rational_numbers_are_fractions(a: Fraction, b: Fraction) -> None:
    assert add(number(a), number(b)).rational == a + b
    assert multiply(number(a), number(b)).rational == a * b
    assert negative(number(a)).rational == -a
    if b:
        assert divide(number(a), number(b)).rational == a / b


@given(st.lists(fractions, max_size=4), st.lists(fractions, max_size=4), st.lists(fractions, max_size=4))
def test_polynomials_obey_the_laws_of_a_ring(a: list[Fraction], b: list[Fraction], c: list[Fraction]) -> None:
    p, q, r = polynomial(a), polynomial(b), polynomial(c)
    assert multiply(p, add(q, r)) == add(multiply(p, q), multiply(p, r))
    assert add(p, negative(p)) == number(0)
    assert multiply(p, q) == multiply(q, p)


@given(st.lists(fractions, min_size=1, max_size=4), fractions)
def test_a_polynomial_is_that_of_its_values(coefficients: list[Fraction], point: Fraction) -> None:
    # p(x) - p(point) is divisible by x - point: so p - p(point) - (x - point) q = 0 for q by Horner's scheme.
    quotient, value = [], Fraction(0)
    for factor in reversed(coefficients):
        quotient.append(value)
        value = value * point + factor
    q = polynomial(list(reversed(quotient[1:])))
    difference = add(polynomial(coefficients), negative(number(value)))
    assert difference == multiply(add(X, number(-point)), q)


@given(st.integers(1, 30_000), st.integers(1, 30_000), st.integers(2, 5))
def test_roots_multiply(a: int, b: int, degree: int) -> None:
    assert multiply(root(number(a), degree), root(number(b), degree)) == root(number(a * b), degree)
    assert power(root(number(a), degree), number(degree)).rational == a


@given(st.integers(1, 10**9))
def test_a_square_root_is_a_whole_number_times_the_root_of_a_square_free_one(value: int) -> None:
    ((monomial, outside),) = root(number(value), 2).upper.items()
    inside = math.prod(int(prime) for prime, _ in monomial)  # type: ignore[call-overload]
    assert outside.denominator == 1
    assert outside**2 * inside == value
    assert all(inside % (factor * factor) for factor in range(2, 100))


@given(st.lists(st.integers(2, 60), min_size=1, max_size=3), st.lists(st.integers(2, 60), min_size=1, max_size=3))
def test_sums_of_roots_are_equal_exactly_if_their_values_are(a: list[int], b: list[int]) -> None:
    # Floats tell different sums of up to 6 roots of numbers below 60 apart: their difference is far above 1e-9.
    def total(values: list[int]) -> Expression:
        result = number(0)
        for value in values:
            result = add(result, root(number(value), 2))
        return result

    near = abs(sum(map(math.sqrt, a)) - sum(map(math.sqrt, b))) < 1e-9
    assert (total(a) == total(b)) == near


@given(st.lists(fractions, min_size=2, max_size=3), st.lists(fractions, min_size=2, max_size=3))
def test_a_quotient_times_its_divisor_is_the_dividend(a: list[Fraction], b: list[Fraction]) -> None:
    p, q = polynomial(a), polynomial(b)
    assume(q.upper)
    quotient = divide(p, q)
    assert not add(multiply(quotient, q), negative(p)).upper


@pytest.mark.parametrize("degree", [2, 3, 4, 5])
def test_roots_of_negative_numbers(degree: int) -> None:
    value = root(number(-(2**degree)), degree)
    if degree % 2:
        assert value.rational == -2  # the real root
    elif degree == 2:
        assert multiply(value, value).rational == -4  # 2 i
    else:
        assert value.opaque


def test_what_is_beyond_the_bounds_raises_at_once() -> None:
    nine = number(9)
    for base, exponent in (
        (nine, number(10**9)),
        (number(Fraction(1, 9)), number(10**9)),
        (number(2), number(10**400)),
    ):
        with pytest.raises(TooLarge):
            power(base, exponent)
    large = number(2 ** (algebra.MAX_BITS - 1))
    with pytest.raises(TooLarge):
        multiply(large, large)
    assert power(number(-1), number(10**400)).rational == 1
    assert power(add(X, Y), number(10**6)).opaque  # not multiplied out


def test_a_sum_does_not_grow_without_bounds() -> None:
    def product() -> None:
        total = number(1)
        for i in range(20):
            total = multiply(total, add(symbol(f"a_{i}"), symbol(f"b_{i}")))

    with pytest.raises(NotRead):
        product()


def test_infinity_is_no_number() -> None:
    endless = symbol(algebra.INFINITY)
    for operate in (
        lambda: add(endless, negative(endless)),
        lambda: multiply(endless, number(0)),
        lambda: divide(endless, endless),
        lambda: power(endless, number(0)),
        lambda: divide(number(1), number(0)),
    ):
        with pytest.raises(NotRead):
            operate()
    assert multiply(number(-2), endless) == negative(endless)
