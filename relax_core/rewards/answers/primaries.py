"""The smallest parts of an expression: numbers, symbols, groups, commands with their arguments.

Guarantee: as of ``expressions``. ``1 1/2`` and ``1\\frac12`` are mixed numbers; ``0.1\\overline{6}`` is 1/6.
"""

import math
from abc import ABC, abstractmethod
from fractions import Fraction

from relax_core.rewards.answers import algebra
from relax_core.rewards.answers.algebra import Expression, NotRead, TooLarge, function, number, symbol
from relax_core.rewards.answers.cursor import Cursor, plain, whole
from relax_core.rewards.answers.intervals import REAL_LINE
from relax_core.rewards.answers.powers import root
from relax_core.rewards.answers.units import CURRENCIES
from relax_core.rewards.answers.values import Based, Collection, Matrix, Sequence, Value
from relax_core.rewards.answers.vocabulary import ACCENTS, FUNCTIONS, MATRICES, STYLES, SYMBOLS

MAX_DIGITS = 400
MAX_FACTORIAL = 3000
_EXPONENT = 4000  # of ten

_CLOSING: dict[str, tuple[str, ...]] = {
    "(": (")", "]"), "[": ("]", ")"), "{": ("}",), r"\{": (r"\}",), r"\langle": (r"\rangle",),
    r"\lfloor": (r"\rfloor",), r"\lceil": (r"\rceil",),
}  # fmt: skip


class PrimaryReader(Cursor, ABC):
    """Reads primaries. What may stand within brackets is for subclasses to say."""

    bars = 0
    """Whether within | |."""

    @abstractmethod
    def items(self, closing: tuple[str, ...]) -> list[Value]:
        """The values up to one of the closing tokens, which is next."""

    @abstractmethod
    def expression(self) -> Value:
        """Terms with signs between them."""

    @abstractmethod
    def argument(self) -> Value:
        """What a command or ^ applies to."""

    @abstractmethod
    def applied(self, name: str) -> Expression:
        """A function, whose name was taken, of what follows."""

    def primary(self) -> Value:
        """A number, a symbol, a group, or a command with its arguments."""
        if self.text in CURRENCIES:
            self.units.append(CURRENCIES[self.take().text])
            if self.text == "-":  # $-5
                self.take()
                return algebra.negative(plain(self.primary()))
        if self.kind == "number":
            return self._number()
        if self.kind in ("letter", "word") or self.text in SYMBOLS:
            return self._symbol()
        if self.text in _CLOSING:
            return self.group()
        if self.text == "|":
            return self._absolute()
        if self.kind == "begin":
            return self._matrix()
        if self.kind == "command":
            return self._command(self.take().text)
        raise NotRead(f"a token {self.text!r}")

    def _number(self) -> Value:
        text = self.take().text
        if self.text in (r"\overline", r"\dot") and "." in text:
            self.take()
            repeated = self.raw()
            if not repeated.isdigit():
                raise NotRead("repeating digits")
            scale = 10 ** len(text.partition(".")[2])
            return number(decimal(text) + Fraction(int(decimal(repeated)), scale * (10 ** len(repeated) - 1)))
        if self.text == "_":
            self.take()
            base = whole(plain(self.argument()))
            if not text.isdigit() or not 2 <= base <= 36:
                raise NotRead("a number in a base")
            return Based(int(decimal(text)), base)
        return number(decimal(text) + (self._fraction() if text.isdigit() else 0))

    def _fraction(self) -> Fraction:
        """The proper fraction of a mixed number, taken; 0 where none follows."""
        start = self.place
        following = self.tokens[start : start + 3]
        if self.text == r"\frac":
            self.take()
            value = [self.argument(), self.argument()]
            top, bottom = (each.rational if isinstance(each, Expression) else None for each in value)
            if top and bottom and 0 < top < bottom and top.denominator == bottom.denominator == 1:
                return top / bottom
        elif len(following) == 3 and following[0].spaced and [token.kind for token in following[::2]] == ["number"] * 2:
            top_text, over, bottom_text = (token.text for token in following)
            if over == "/" and top_text.isdigit() and bottom_text.isdigit():
                top, bottom = decimal(top_text), decimal(bottom_text)
                if 0 < top < bottom:
                    self.place += 3
                    return top / bottom
        self.place = start
        return Fraction(0)

    def _symbol(self) -> Value:
        token = self.take()
        name = token.text
        if token.kind == "word" and len(name) > 1:
            name = name.lower()
            while self.kind == "word":
                name += f" {self.take().text.lower()}"
        if self.text == "_":
            self.take()
            name += "_" + self.raw()
        while self.text == "'":
            name += self.take().text
        return symbol(name)

    def raw(self) -> str:
        """The tokens of an argument as text: of an index, or below an accent."""
        if self.text != "{":
            return self.take().text
        start, depth = self.place + 1, 0
        while True:
            mark = self.take().text
            depth += (mark == "{") - (mark == "}")
            if depth == 0:
                return "".join(token.text for token in self.tokens[start : self.place - 1])

    def group(self) -> Value:
        """What stands in brackets: a value of its own, or a sequence, a set, a rounded number."""
        opening = self.take().text
        with self.nested():
            items = tuple(self.items(_CLOSING[opening]))
        closing = self.take().text
        if opening in (r"\lfloor", r"\lceil") and len(items) == 1:
            return _rounded(opening, plain(items[0]))
        if opening == r"\{":
            return Collection(items)
        if len(items) == 1 and (opening == "{" or opening + closing in ("()", "[]")):
            return items[0]
        if len(items) < 2:
            raise NotRead("brackets with less than two values")
        if opening == "{":
            return Collection(items)
        return Sequence("(", ")", items) if opening.startswith("\\") else Sequence(opening, closing, items)

    def _absolute(self) -> Expression:
        self.take("|")
        with self.nested():
            self.bars, outside = 1, self.bars
            value = plain(self.expression())
            self.bars = outside
        self.take("|")
        known = value.rational
        return function("abs", value) if known is None else number(abs(known))

    def _command(self, name: str) -> Value:
        if name == r"\frac":
            above, below = plain(self.argument()), plain(self.argument())
            self.spend((len(above.upper) + len(above.lower)) * (len(below.upper) + len(below.lower)))
            return algebra.divide(above, below)
        if name in (r"\sqrt", r"\surd"):
            degree = whole(plain(self.group())) if self.text == "[" else 2
            if not 1 < degree < 100:
                raise NotRead("a root's degree")
            self.spend(100)
            return root(plain(self.argument()), degree)
        if name[1:] in FUNCTIONS:
            return self.applied(name[1:])
        if name in ACCENTS:
            return symbol(f"{name} {self.raw()}")
        if name in STYLES:
            return self.argument()
        if name == r"\binom":
            return self._binomial(plain(self.argument()), plain(self.argument()))
        if name == r"\emptyset":
            return Collection(())
        if name == r"\mathbb":
            raw = self.raw()
            return REAL_LINE if raw == "R" else symbol(rf"\mathbb {raw}")
        raise NotRead(f"a command {name}")

    def _binomial(self, above: Expression, below: Expression) -> Expression:
        if above.rational is None or below.rational is None:
            return function("binomial", above, below)
        upper, lower = whole(above), whole(below)
        self.spend(200)
        if upper > MAX_FACTORIAL:
            raise TooLarge("a binomial coefficient")
        return number(math.comb(upper, lower)) if 0 <= lower <= upper else number(0)

    def _matrix(self) -> Value:
        if self.take().text not in MATRICES:
            raise NotRead("an environment")
        rows: list[list[Value]] = [[]]
        with self.nested():
            while self.kind != "end":
                cells = self.items(("&", "\\\\"))
                if len(cells) != 1:
                    raise NotRead("a cell")
                rows[-1] += cells
                if self.text == "\\\\":
                    self.take()
                    if self.kind != "end":
                        rows.append([])
                elif self.kind != "end":
                    self.take("&")
        self.take()
        if len({len(row) for row in rows}) != 1:
            raise NotRead("rows of different lengths")
        return Matrix(tuple(map(tuple, rows)))

    def factorial(self, value: Expression) -> Expression:
        """The factorial of a value."""
        if value.rational is None:
            return function("factorial", value)
        count = whole(value)
        self.spend(200)
        if count > MAX_FACTORIAL:
            raise TooLarge("a factorial")
        if count < 0:
            raise NotRead("a factorial")
        return number(math.factorial(count))


def decimal(text: str) -> Fraction:
    """Exact value of digits with a point and an exponent.

    Raises:
        TooLarge: more than ``MAX_DIGITS`` digits, or a large exponent.
    """
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 6 or abs(int(exponent or 0)) > _EXPONENT:
        raise TooLarge("a number")
    return Fraction(mantissa.removesuffix(".")) * Fraction(10) ** int(exponent or 0)


def _rounded(opening: str, value: Expression) -> Expression:
    known = value.rational
    if known is None:
        return function(opening, value)
    return number(math.floor(known) if opening == r"\lfloor" else math.ceil(known))
