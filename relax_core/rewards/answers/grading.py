"""The verdict on an answer: at once where exact arithmetic decides, else by sympy.

Guarantee: ``at_once`` and ``verdict`` never disagree: the second asks the first and goes on only where that is
undecided. Every text that is not empty equals itself; nothing raises.
"""

import re

from relax_core.rewards.answers.compare import same
from relax_core.rewards.answers.reading import Reading, read
from relax_core.rewards.answers.symbolic import equal, refused
from relax_core.rewards.answers.values import Collection, Expression, Quantity, Sequence

_NUMBER = re.compile(
    r"\s*(?:\\?\$)?(?P<sign>[-+]?)(?:\\?\$)?(?P<whole>\d{1,3}(?P<commas>(?:,\d{3})+)|\d{1,30})(?:\.(?P<part>\d{0,30}))?\s*",
    re.ASCII,
)
_BARE_UNIT = re.compile(r"(.*[\d}])\s+[mgshlLNJWVKA](?:\^\{?[23]\}?)?\s*", re.ASCII)
_CHOICE = re.compile(r"\s*\(?([A-J])\)?\s*")
_CHOSEN = re.compile(r"\s*(?:\(([A-Ja-j])\)|([A-J])(?:[).:]|\s*$))")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])")  # another choice
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox|boldsymbol)\s*\{([^{}]*)\}")


def verdict(label: str, answer: str) -> bool:
    """Whether an answer is the label's; may take long, see ``symbolic``."""
    decided = at_once(label, answer)
    return equal(label, answer) if decided is None else decided


def at_once(label: str, answer: str) -> bool | None:
    """Whether an answer is the label's, in time linear in both; None where that takes more."""
    label, answer = label.strip(), answer.strip()
    if label == answer:
        return bool(label)
    first, second = _NUMBER.fullmatch(label), _NUMBER.fullmatch(answer)
    if first and second and not (first["commas"] and second["commas"]):
        return _plain_number(first) == _plain_number(second)
    if (choice := _CHOICE.fullmatch(_unwrapped(label))) is not None:
        chosen = _CHOSEN.match(_unwrapped(answer))
        if chosen is not None and not _LETTER.search(_unwrapped(answer), chosen.end()):
            return (chosen[1] or chosen[2]).upper() == choice[1]
    gold, given = read(label), read(answer)
    found = _compare(gold, given)
    if found is False and (gold.commas or given.commas):
        return _as_lists(gold, given, label, answer)
    if found is False and len(label) + len(answer) < 100:
        return _without_letters(gold, given, label, answer)
    return False if found is None and (refused(answer) or refused(label)) else found


def _compare(label: Reading, answer: Reading) -> bool | None:
    if label.key == answer.key:
        return len(label.key) > 0
    if label.value is not None and answer.value is not None:
        return same(label.value, answer.value)
    if "beyond" in (label.state, answer.state) or not answer.key or not label.key:
        return False  # a value beyond the bounds equals its own writing only
    return None


def _as_lists(gold: Reading, given: Reading, label: str, answer: str) -> bool:
    """Whether the label is a list written without spaces, as in 100,200, and the answer the same list."""
    first, second = (
        read(text, group_commas=False).value if reading.commas else reading.value
        for text, reading in ((label, gold), (answer, given))
    )
    kinds = (Collection, Sequence)
    return isinstance(first, kinds) and isinstance(second, kinds) and same(first, second) is True


def _without_letters(gold: Reading, given: Reading, label: str, answer: str) -> bool:
    """Whether ``5 m`` was a number with a unit: the answer's where the label is a number, the label's where the answer
    has a unit.
    """
    number = gold.value.value if isinstance(gold.value, Quantity) else gold.value
    if isinstance(number, Expression) and number.rational is not None and (match := _BARE_UNIT.fullmatch(answer)):
        value = read(match[1]).value
        return value is not None and same(number, value) is True
    if isinstance(given.value, Quantity) and given.value.unit and (match := _BARE_UNIT.fullmatch(label)):
        value = read(match[1]).value
        return value is not None and same(value, given.value) is True
    return False


def _plain_number(match: re.Match[str]) -> tuple[bool, str, str]:
    whole, part = match["whole"].replace(",", "").lstrip("0"), (match["part"] or "").rstrip("0")
    return (match["sign"] == "-" and bool(whole or part), whole, part)


def _unwrapped(text: str) -> str:
    if len(text) > 100:
        return ""
    return _WRAPPED.sub(r"\1", text).strip(" $*.")
