"""Expressions from tokens: recursive descent over LaTeX and plain arithmetic.

Guarantee: a text that is no expression of the kind that ``algebra`` knows raises ``NotRead``; one beyond the bounds (of
digits, powers, nesting) raises ``TooLarge``. Work is bounded, whatever the tokens.
"""

from collections.abc import Sequence
from fractions import Fraction

from relax_core.rewards.answers import algebra
from relax_core.rewards.answers.algebra import Expression, NotRead, function, number, symbol
from relax_core.rewards.answers.cursor import plain
from relax_core.rewards.answers.powers import power
from relax_core.rewards.answers.primaries import PrimaryReader
from relax_core.rewards.answers.tokens import Token
from relax_core.rewards.answers.values import Value
from relax_core.rewards.answers.vocabulary import ACCENTS, FUNCTIONS, STYLES, SYMBOLS

_TIMES, _OVER = ("*", r"\cdot", r"\times"), ("/", r"\div")
_SIGNS = {"+": 1, "-": -1}
_BOTH = (r"\pm", r"\mp")
_FACTORS = SYMBOLS | ACCENTS | STYLES | {f"\\{name}" for name in FUNCTIONS}
_FACTORS |= frozenset((r"\frac", r"\surd", r"\binom", r"\lfloor", r"\lceil"))
_ALONE = frozenset(f"\\{name}" for name in FUNCTIONS if name != "sqrt")
"""Functions whose name ends the argument of another."""
_SAME = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "log": "ln"}


class ExpressionReader(PrimaryReader):
    """Reads expressions.

    Args:
        found: the tokens.

    Attributes:
        plus_minus: what ``\\pm`` means: 1 or -1.
        saw_plus_minus: whether there was one.
    """

    def __init__(self, found: Sequence[Token]) -> None:
        super().__init__(found)
        self.plus_minus = 1
        self.saw_plus_minus = False
        self._functions = 0

    def expression(self) -> Value:
        """Terms with signs between them."""
        total = self._signed_term() if self._signs() else self._term()
        while self._signs():
            term = self._signed_term()
            self._count(plain(total), term)
            total = algebra.add(plain(total), term)
        return total

    def argument(self) -> Value:
        """What a command or ^ applies to: a group, a signed number, or one token."""
        if self.text in ("{", "("):
            return self.group()
        if self.text in _SIGNS:
            return self._signed_factor()
        if self.kind in ("number", "letter", "word", "command"):
            return self.primary()
        raise NotRead("no argument")

    def applied(self, name: str) -> Expression:
        """``\\sin x``, ``\\sin^2 x``, ``\\log_2 8``, ``\\sin(2x)``: the name was taken."""
        base = exponent = None
        while self.text in ("^", "_"):
            below = self.take().text == "_"
            value = plain(self.argument())
            base, exponent = (value, exponent) if below else (base, value)
        if exponent is not None and exponent.rational == -1 and f"arc{name}" in FUNCTIONS:
            name, exponent = f"arc{name}", None
        if (base is not None and name != "log") or (exponent is not None and exponent.rational == -1):
            raise NotRead("a function of another kind")
        self._functions += 1
        if self.text in ("(", "{"):
            inner = plain(self.group())
        else:
            inner = plain(self._factor())
            while self._begins_factor() and self.text not in _ALONE:
                inner = self._multiply(inner, plain(self._factor()))
        self._functions -= 1
        if name == "exp":
            result = power(symbol(algebra.E), inner)
        elif base is not None:
            result = function("log", inner, base)
        elif name == "lg":
            result = function("log", inner, number(10))
        else:
            result = function(_SAME.get(name, name), inner)
        return result if exponent is None else power(result, exponent)

    def _signs(self) -> bool:
        return self.text in _SIGNS or self.text in _BOTH

    def _sign(self) -> int:
        mark = self.take().text
        if mark in _SIGNS:
            return _SIGNS[mark]
        self.saw_plus_minus = True
        return self.plus_minus if mark == r"\pm" else -self.plus_minus

    def _signed_term(self) -> Expression:
        sign = self._sign()
        value = plain(self._term())
        return value if sign > 0 else algebra.negative(value)

    def _signed_factor(self) -> Expression:
        sign = self._sign() if self.text in _SIGNS else 1
        value = plain(self._factor())
        return value if sign > 0 else algebra.negative(value)

    def _term(self) -> Value:
        value = self._factor()
        while True:
            if self.text in _TIMES:
                self.take()
                value = self._multiply(plain(value), self._signed_factor())
            elif self.text in _OVER:
                self.take()
                below = self._signed_factor()
                self._count(plain(value), below)
                value = algebra.divide(plain(value), below)
            elif self._begins_factor():
                value = self._multiply(plain(value), plain(self._factor()))
            else:
                return value

    def _begins_factor(self) -> bool:
        """Whether a factor follows without a sign of multiplication."""
        if self.kind == "command":
            return self.text in _FACTORS
        return self.kind == "letter" or self.text in ("(", "{") or (self.text == "|" and not self.bars)

    def _factor(self) -> Value:
        value = self.primary()
        while True:
            if self.text == "^":
                self.take()
                if self._degrees():
                    value = self._in_degrees(plain(value))
                else:
                    exponent = plain(self.argument())
                    base = plain(value)
                    times = min(abs(exponent.rational or Fraction(0)), Fraction(100))
                    self.spend(50 + 50 * (len(base.upper) - 1) * int(times))
                    value = power(base, exponent)
            elif self.text == r"\circ":
                self.take()
                value = self._in_degrees(plain(value))
            elif self.text == "!":
                self.take()
                value = self.factorial(plain(value))
            elif self.text == "%":
                self.take()
                value = algebra.divide(plain(value), number(100))
            else:
                return value

    def _degrees(self) -> bool:
        """Whether degrees follow a ^; then they are taken."""
        texts = [token.text for token in self.tokens[self.place : self.place + 3]]
        length = 1 if texts[:1] == [r"\circ"] else 3 if texts == ["{", r"\circ", "}"] else 0
        self.place += length
        return length > 0

    def _in_degrees(self, value: Expression) -> Expression:
        if self._functions:
            return self._multiply(value, algebra.divide(symbol(algebra.PI), number(180)))
        self.units.append("deg")
        return value

    def _multiply(self, a: Expression, b: Expression) -> Expression:
        self._count(a, b)
        return algebra.multiply(a, b)

    def _count(self, a: Expression, b: Expression) -> None:
        self.spend(1 + (len(a.upper) + len(a.lower)) * (len(b.upper) + len(b.lower)))
