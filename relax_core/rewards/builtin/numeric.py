"""Rewards for answers that are numbers: ``exact_number``, ``gsm8k``, ``gsm8k_flexible``.

Guarantee: numbers are compared exactly (42 equals 42.00, 1,234 equals 1234), in time linear in the response; no
response makes them evaluate code, expand an exponent or raise. A label that is not a number is a mistake in the data
and an error.
"""

import re
from collections import deque
from fractions import Fraction
from typing import Any

from data.errors import UserError
from relax_core.rewards.answers.labels import NAME_LABELS
from relax_core.rewards.registry import register
from relax_core.rewards.types import RewardInput

MAX_DIGITS = 400
"""A number with more characters, or an exponent beyond this, equals nothing: no answer needs one, and arithmetic on
huge digit strings is how one response could hold up a run."""

_MINUS = "-\u2212"
# Comma groups of three, else plain digits. The lookbehinds keep digits inside words (H2O), after an underscore, and in
# the middle of 1.2.3 from counting; a unit may follow (5km, 50%). Only ASCII letters: CJK text has no spaces.
_WHOLE = (
    r"(?<![A-Za-z0-9_])(?<![0-9]\.)(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?"
    r"|(?<![A-Za-z0-9_.])\.[0-9]+"
)
_EXPONENT = r"(?:[eE][-+]?[0-9]+)?"
# A sign counts only where it cannot be a subtraction or a hyphen: not after a digit, a letter, a bracket or a dash.
_NUMBER = (
    rf"(?:(?<![A-Za-z0-9_)\]}}{_MINUS}])(?P<sign>[{_MINUS}+]))?(?:\\?[$€£¥](?P<inner>[{_MINUS}])?)?"
    rf"(?P<top>(?:{_WHOLE}){_EXPONENT})(?:/(?P<bottom>[0-9]+(?:\.[0-9]+)?))?"
)
_ANYWHERE = re.compile(_NUMBER)
_ALONE = re.compile(rf"\s*{_NUMBER}\s*%?\s*")
# The number follows the mark at once, in bold or not, and is whole: "#### 1,23" has none.
_MARKED = re.compile(rf"####[ \t]*(?:\*\*)?[ \t]*{_NUMBER}(?![,./]?[0-9])")


def last_number(text: str) -> Fraction | None:
    """Value of the last number in a text; None without one, or when the last one has no value (``1/0``, too long).

    Integers, decimals, thousands separators, signs, ``$`` and glued fractions (``3/4``) are numbers; ``7.`` is 7,
    ``50%`` is 50; number words are not.
    """
    last = deque(_ANYWHERE.finditer(text), maxlen=1)
    return _value(last[0]) if last else None


def marked_number(text: str) -> Fraction | None:
    """Value of the number after the last ``####`` that a number follows, as GSM8K marks final answers; None without."""
    end = len(text)
    while (place := text.rfind("####", 0, end)) >= 0:
        if match := _MARKED.match(text, place):
            return _value(match)
        end = place + 3  # marks may overlap
    return None


def parse_number(value: Any) -> Fraction | None:
    """Exact value of a label: an int, a finite float (by its shortest decimal form), or text that is one number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, int):
        return Fraction(value) if value.bit_length() < 3 * MAX_DIGITS else None
    match = _ALONE.fullmatch(value if isinstance(value, str) else repr(value))
    return _value(match) if match else None


@register("exact_number")
def exact_number(sample: RewardInput) -> float:
    """1 when the last number of the response equals the label, else 0."""
    return float(last_number(sample.response) == _label(sample, parse_number(sample.label)))


@register("gsm8k")
def gsm8k(sample: RewardInput) -> float:
    """1 when the number after the last ``####`` equals the label, which may be GSM8K's answer text; else 0."""
    return float(marked_number(sample.response) == _gsm8k_label(sample))


@register("gsm8k_flexible")
def gsm8k_flexible(sample: RewardInput) -> float:
    """Like gsm8k, but a response without ``####`` is graded on its last number."""
    answer = marked_number(sample.response)
    return float((last_number(sample.response) if answer is None else answer) == _gsm8k_label(sample))


def _gsm8k_label(sample: RewardInput) -> Fraction:
    marked = isinstance(sample.label, str) and "####" in sample.label
    return _label(sample, marked_number(sample.label) if marked else parse_number(sample.label))


def _label(sample: RewardInput, value: Fraction | None) -> Fraction:
    if value is not None:
        return value
    if sample.label is None:
        raise UserError(
            f"Sample {sample.sample_id} has no label to compare with.",
            NAME_LABELS,
        )
    shown = repr(sample.label)
    raise UserError(
        f"The label of sample {sample.sample_id} is not a number: {shown[:80]}{'…' * (len(shown) > 80)}.",
        "Correct the row, or choose another --rm-type.",
    )


def _value(match: re.Match[str]) -> Fraction | None:
    """Exact value of a match of ``_NUMBER``."""
    value = _parse(match["top"])
    if match["bottom"] is not None:
        bottom = _parse(match["bottom"])
        value = value / bottom if value is not None and bottom else None
    if value is None:
        return None
    return -value if (match["sign"] or "+") in _MINUS or match["inner"] is not None else value


def _parse(text: str) -> Fraction | None:
    """Exact value of digits with optional commas, point and exponent; None when it is too large to be an answer."""
    if len(text) > MAX_DIGITS:
        return None
    if text.isdigit():
        return Fraction(int(text))
    mantissa, _, exponent = text.replace(",", "").lower().partition("e")
    power = int(exponent or "0")
    if abs(power) > MAX_DIGITS:
        return None
    return Fraction(mantissa.removesuffix(".")) * Fraction(10) ** power
