"""An answer as a value: lists of solutions, relations, units, unions round ``expressions``.

Guarantee: a text has one reading, whoever wrote it; what cannot be read and what is beyond the bounds are told apart;
equal texts have equal readings. Nothing raises, and time is bounded: texts of more than ``MAX_LENGTH`` characters are
not looked into.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from relax_core.rewards.answers.algebra import NotRead, TooLarge, divide, multiply, number, symbol
from relax_core.rewards.answers.cursor import plain
from relax_core.rewards.answers.expressions import ExpressionReader
from relax_core.rewards.answers.intervals import REAL_LINE, line_without
from relax_core.rewards.answers.relations import solutions, variable
from relax_core.rewards.answers.tokens import Token, tokens
from relax_core.rewards.answers.units import CURRENCIES, MULTIPLIERS, is_unit, unit
from relax_core.rewards.answers.values import Collection, Quantity, Relation, Sequence, Union, Value, Words

MAX_LENGTH = 1500
"""Characters of an answer. The longest of the MATH problems has 159."""

_OPERATORS = frozenset(("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\approx"))
_IN_WORDS = ("-", "'", ".", "!", "?", "/", "#")
_DECORATION = ' \t\n\r*`"_'
_DOLLAR = re.compile(r"(?<!\\)\$")
_NAMED_KINDS = ("word", "begin", "end")
_HALF_DAY = re.compile(r"\b([apAP])\.\s?[mM]\b\.?")
_NAMED: dict[str, Value] = {
    name: Collection(())
    for name in ("no solution", "no solutions", "no real solution", "no real solutions", "empty set")
}


@dataclass(frozen=True)
class Reading:
    """What an answer says.

    Attributes:
        value: None where it was not read.
        state: ``read``; ``unknown``: no syntax of ours; ``beyond``: a number, nesting or length beyond the bounds.
        key: equal for texts that differ in spacing alone.
        commas: the text with a list for each number with commas, where there is one.
    """

    value: Value | None
    state: Literal["read", "unknown", "beyond"]
    key: tuple[str, ...]
    commas: bool = False


def read(text: str, *, group_commas: bool = True) -> Reading:
    """What an answer says.

    Args:
        text: an answer, such as the content of a box, or a label.
        group_commas: whether ``1,234`` is a number; else it is a list.
    """
    stripped = text.strip()
    if len(stripped) > MAX_LENGTH:
        return Reading(None, "beyond", (stripped,))
    return _read(stripped, group_commas)


@lru_cache(maxsize=4096)
def _read(text: str, group_commas: bool) -> Reading:
    shown = _undecorated(text)
    found = tokens(shown, group_commas=group_commas)
    while found and found[-1].text in (".", ",", ";", ":", "\\", "\\\\"):
        found.pop()
    key = tuple(f"{token.kind} {token.text.lower()}" if token.kind in _NAMED_KINDS else token.text for token in found)
    commas = group_commas and "," in shown and tokens(shown, group_commas=False) != tokens(shown)
    try:
        return Reading(_value(found), "read", key, commas)
    except TooLarge:
        return Reading(None, "beyond", key, commas)
    except (NotRead, RecursionError):
        value = _named(found)
        return Reading(value, "unknown" if value is None else "read", key, commas)


def _undecorated(text: str) -> str:
    """Without Markdown, quotes, signs of mathematics mode; with single backslashes."""
    text = text.strip(_DECORATION)
    if len(_DOLLAR.findall(text)) > 1:
        text = _DOLLAR.sub("", text)
    if "\\\\" in text and r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    return _HALF_DAY.sub(r"\1m", text.strip(_DECORATION))


def _named(found: list[Token]) -> Value | None:
    """The equation of a left side that was not read, such as ``\\det A = 5``; None where it is none."""
    depth, last = 0, None
    for place, token in enumerate(found):
        depth += (token.text in ("(", "{", r"\{", "[")) - (token.text in (")", "}", r"\}", "]"))
        if depth == 0 and token.kind == "separator":
            return None
        if depth == 0 and token.text in ("=", r"\approx"):
            last = place
    if not last:
        return None
    try:
        value = _value(found[last + 1 :])
    except (NotRead, TooLarge, RecursionError):
        return None
    name = Words(" ".join(token.text for token in found[:last]))
    return None if isinstance(value, Words) else Relation((found[last].text,), (name, value))


def _value(found: list[Token]) -> Value:
    if not found:
        raise NotRead("nothing")
    reader = _AnswerReader(found)
    items = reader.items(())
    if reader.place < len(found):
        raise NotRead(f"a token {reader.text!r}")
    if not items:
        raise NotRead("nothing")
    return items[0] if len(items) == 1 else Collection(tuple(items), reader.said_or)


class _AnswerReader(ExpressionReader):
    """Reads lists of relations of values with units."""

    _inside = 0
    said_or = False

    def items(self, closing: tuple[str, ...]) -> list[Value]:
        found: list[Value] = []
        self._inside += 1
        while True:
            while self.kind == "separator":
                self.said_or |= self.take().text == "or" and self._inside == 1
            if self.place >= len(self.tokens) or self.text in closing or self.kind == "end":
                break
            found += self._item(closing)
            if self.kind != "separator" and self.text not in closing and self.kind != "end" and self.text:
                raise NotRead(f"a token {self.text!r}")
        self._inside -= 1
        return found

    def group(self) -> Value:
        following = self.tokens[self.place + 1 : self.place + 3]
        if (
            self.text != r"\{"
            or [token.kind for token in following] != ["letter", "mark"]
            or following[1].text not in "|:"
        ):
            return super().group()
        self.place += 3  # {x | ...}
        with self.nested():
            conditions = self.items((r"\}",))
        self.take(r"\}")
        found = solutions(conditions[0] if len(conditions) == 1 else Collection(tuple(conditions)))
        if found is None or variable(conditions[0]) != symbol(following[0].text):
            raise NotRead("a set by conditions")
        return found

    def _item(self, closing: tuple[str, ...]) -> list[Value]:
        """A value; two where ± stands for both, which is so outside of brackets."""
        start = self.place
        outer = self._inside == 1
        self.saw_plus_minus = self.saw_plus_minus and not outer
        first = self._relation()
        if not (outer and self.saw_plus_minus):
            return [first]
        self.place, self.plus_minus = start, -1
        second = self._relation()
        self.plus_minus = 1
        return [first, second]

    def _relation(self) -> Value:
        sides = [self._side()]
        operators = []
        while self.text in _OPERATORS:
            operators.append(self.take().text)
            sides.append(self._side())
        return Relation(tuple(operators), tuple(sides)) if operators else sides[0]

    def _side(self) -> Value:
        if (words := self._words()) is not None:
            return words
        parts = [self._quantity()]
        while self.text in (r"\cup", r"\setminus"):
            joined = self.take().text == r"\cup"
            right = self._quantity()
            parts = [*parts, right] if joined else _without(parts, right)
        return parts[0] if len(parts) == 1 else Union(tuple(parts))

    def _words(self) -> Value | None:
        """Text, where no mathematics stands before the next separator."""
        end = self.place
        while end < len(self.tokens) and (
            self.tokens[end].kind in ("word", "letter", "number") or self.tokens[end].text in _IN_WORDS
        ):
            end += 1
        run = self.tokens[self.place : end]
        following = self.tokens[end].text if end < len(self.tokens) else ""
        closed = (
            not following or following in (r"\}", ")", "]", "}", "&", "\\\\") or self.tokens[end].kind == "separator"
        )
        long = [token for token in run if token.kind == "word" and len(token.text) > 1]
        if not closed or not long or not run[0].text.isalpha() or is_unit(run[0].text):
            return None
        self.place = end
        text = "".join(f" {token.text}" if token.text.isalnum() else token.text for token in run)
        plain_text = " ".join(text.lower().replace("-", " ").strip(" .!?").split())
        return _NAMED.get(plain_text, Words(plain_text))

    def _quantity(self) -> Value:
        """An expression, an interval in French brackets, a ratio; with the unit before or after it."""
        self.units = []
        if self.text == "]":
            return self._french()
        if (
            self.kind == "word"
            and is_unit(self.text)
            and self.tokens[self.place + 1 : self.place + 2]
            and (self.tokens[self.place + 1].kind == "number")
        ):
            self.units.append(self.take().text)
        value = self.expression()
        if self.text == ":":
            value = self._ratio(value)
        percent = self.tokens[self.place - 1].text == "%"
        value = self._unit(value)
        if not (self.units or percent):
            return value
        return Quantity(value, unit(self.units), percent)

    def _unit(self, value: Value) -> Value:
        """Take the words after a value, and multiply it where they say so."""
        if self.kind == "word" and self.text.lower() in MULTIPLIERS:
            value = multiply(plain(value), number(MULTIPLIERS[self.take().text.lower()]))
        while True:
            if self.kind == "word":
                self.units.append(self.take().text)
            elif self.text in CURRENCIES:
                self.units.append(CURRENCIES[self.take().text])
            elif self.units and self.text in ("/", "*", r"\cdot", "-", "."):
                self.take()
            elif self.units and self.text == "^":
                self.take()
                self.argument()
            elif self.units[-1:] == ["deg"] and self.text in ("C", "F"):
                self.take()
            else:
                return value

    def _ratio(self, first: Value) -> Value:
        terms = [plain(first)]
        while self.text == ":":
            self.take()
            terms.append(plain(self.expression()))
        if any(term.rational is None or not term.upper for term in terms[1:]):
            raise NotRead("a ratio")
        if len(terms) == 2:
            return divide(*terms)
        return Sequence(":", ":", tuple(divide(term, terms[-1]) for term in terms))

    def _french(self) -> Value:
        self.take("]")
        with self.nested():
            items = tuple(self.items(("[", "]")))
        closing = self.take().text
        if len(items) != 2:
            raise NotRead("an interval")
        return Sequence("(", ")" if closing == "[" else "]", items)


def _without(parts: list[Value], removed: Value) -> list[Value]:
    """The real line without some numbers, as intervals."""
    points = removed.items if isinstance(removed, Collection) else (removed,)
    rest = line_without([plain(point) for point in points])
    if parts != [REAL_LINE] or rest is None:
        raise NotRead("a difference of other sets")
    return list(rest)
