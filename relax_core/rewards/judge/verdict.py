"""What a judge decided, read from its answer.

Guarantee: only the final answer counts, not the reasoning before it, nor what it quotes; of several verdicts the last
one. What is not on the scale, or not said, is no verdict: never a number nearby, and never 0. Nothing but the judge's
own answer is read, so that a text in a response is no verdict.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LONGEST = 20_000
"""Characters at the end of an answer that are looked at."""

_REASONING = re.compile(r"<(/?)(?:think|thinking|reasoning|analysis)>", re.IGNORECASE)
_CHANNEL = "<|channel|>final<|message|>"

_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUOTED = re.compile(
    r"\"[^\"\n]*\"|“[^”]*”|«[^»]*»|「[^」]*」|`[^`\n]*`|'\[\[[^\]']*\]\]'|‘[^’\n]*’|^[ \t]*>[^\n]*", re.MULTILINE
)
_BRACKETS = re.compile(r"\[\[([^\[\]\n]{0,40})\]\]")
_BOX = re.compile(r"\\boxed\{([^{}\n]{0,40})\}")
_LABELLED = re.compile(
    r"(?:\A|(?<=[\n.!?;]))[\s*_#\->]{0,8}(?:(?:so|thus|therefore|hence|my|the|final|overall|total)\b[\s,*_]{1,4}){0,4}"
    r"(score|rating|grade|mark|verdict|winner|answer|judge?ment|final|overall|最终评分|最终得分|评分|得分|分数|总分|结论)"
    r"\b[*_\s]{0,4}(?:is\b|[:=：])[*_\s]{0,6}",
    re.IGNORECASE,
)
_OPENS_LINE = re.compile(r"[\s*_>-]*(?:[\w ]{0,20}[:：])?[\s*_]*")
_KEYS = ("score", "rating", "grade", "verdict", "judgment", "judgement", "winner", "answer", "correct")
_INNER_LABEL = re.compile(r"\A(?:score|rating|grade|verdict|answer|winner)\s*[:=：]\s*", re.IGNORECASE)
_MARKUP = " \t\r\n*_`\"'“”‘’$()[]{}<>"

_NUMBER = re.compile(
    r"([+-]?(?:[0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12}))\s*(%|(?:/|out of)\s*([0-9]{1,12}(?:\.[0-9]{1,12})?))?"
)
_GOES_ON = re.compile(r"\w|%|/|[.,:][0-9]|\s*(?:-|–|—|~|to\b|or\b|and\b)\s*[0-9]", re.IGNORECASE)
_NOTHING = re.compile(r"(?:n/?a|none|null|unknown|invalid|no score|undefined)\b", re.IGNORECASE)

_YES_NO = {
    **dict.fromkeys(("yes", "y", "true", "correct", "right", "pass", "passed", "1", "是", "正确"), 1.0),
    **dict.fromkeys(("no", "n", "false", "incorrect", "wrong", "fail", "failed", "0", "否", "错误"), 0.0),
}
_WINNERS = {
    **dict.fromkeys(("a", "first", "1"), 1.0),
    **dict.fromkeys(("b", "second", "2"), 0.0),
    **dict.fromkeys(("c", "tie", "equal", "draw", "both", "="), 0.5),
}
_CRITERION = re.compile(r"\[\[\s*([0-9]{1,3})\s*[:=：]\s*([^\[\]\n]{1,20})\]\]")


@dataclass(frozen=True)
class Verdict:
    """What a judge decided.

    Attributes:
        value: as the judge gave it; None: there is no verdict.
        why: why there is none.
        parts: of a list of criteria, each one's, by its number from 1.
    """

    value: float | None
    why: str = ""
    parts: Mapping[int, float] = field(default_factory=dict)


class _Stated(NamedTuple):
    place: int
    text: str
    value: Any
    """A value of JSON, where that states it."""
    labelled: bool


def final_answer(output: str) -> str:
    """The judge's answer without its reasoning: blocks of reasoning are left out, what precedes a closing mark that
    none opened too, and what follows an opening one that none closes."""
    if _CHANNEL in output:
        output = output.rpartition(_CHANNEL)[2]
    kept: list[str] = []
    begin = depth = 0
    for mark in _REASONING.finditer(output):
        if depth == 0:
            kept.append(output[begin : mark.start()])
        if not mark[1]:
            depth += 1
        elif depth:
            depth -= 1
        else:
            kept.clear()
        begin = mark.end()
    if depth == 0:
        kept.append(output[begin:])
    return "\n".join(kept).strip()


def number(output: str, low: float = 0.0, high: float = 10.0) -> Verdict:
    """A number from ``low`` to ``high``: ``[[7]]``, ``Score: 7``, ``7/10`` (of the scale's end), ``{"score": 7}``."""

    def read(stated: _Stated) -> float | None:
        if isinstance(stated.value, int | float) and not isinstance(stated.value, bool):
            return float(stated.value) if low <= stated.value <= high else None
        return _number(stated.text, low, high, whole=not stated.labelled)

    def counts(stated: _Stated) -> bool:
        if not stated.labelled:
            return True
        return bool(_NUMBER.match(stated.text) or _NOTHING.match(stated.text))

    return _last(output, read, counts, f"no number from {low:g} to {high:g}", ("answer", "correct", "winner"))


def yes_no(output: str) -> Verdict:
    """1 for yes, 0 for no: ``[[yes]]``, ``Verdict: no``, ``{"correct": true}``."""
    return _last(output, lambda stated: _word(stated, _YES_NO), lambda stated: True, "neither yes nor no")


def preference(output: str) -> Verdict:
    """1 where the first of two answers is better, 0 where the second one is, 0.5 for a tie: ``[[A]]``, ``[[B]]``,
    ``[[C]]``."""
    return _last(output, lambda stated: _word(stated, _WINNERS), lambda stated: True, "none of A, B and C")


def criteria(output: str, count: int) -> Verdict:
    """How many of ``count`` criteria are met, all of them answered: ``[[1: yes]]``, ``[[2: no]]``, or a JSON object.

    ``parts`` holds 1 or 0 of each; ``value`` is their sum, None where one is missing.
    """
    text = final_answer(output)[-LONGEST:]
    found: dict[int, float | None] = {}
    for place, told in _objects(text):
        if any(key.isdecimal() for key in told):
            found = {
                int(key): _word(_Stated(place, str(entry), entry, False), _YES_NO)
                for key, entry in told.items()
                if key.isdecimal() and len(key) < 4
            }
    for match in _CRITERION.finditer(_without_quotes(text)):
        found[int(match[1])] = _word(_Stated(match.start(), match[2], None, False), _YES_NO)
    parts = {k: value for k in range(1, count + 1) if (value := found.get(k)) is not None}
    if missing := [str(k) for k in range(1, count + 1) if k not in parts]:
        return Verdict(None, f"no yes or no about criterion {', '.join(missing)}", parts)
    return Verdict(sum(parts.values()), parts=parts)


def _last(
    output: str,
    read: Callable[[_Stated], float | None],
    counts: Callable[[_Stated], bool],
    expected: str,
    ignored: tuple[str, ...] = (),
) -> Verdict:
    """The value of the last verdict.

    Args:
        read: the value of one; None: it is not possible.
        counts: whether something stated is a verdict at all.
        expected: what an impossible one is not, for the reason.
        ignored: labels and keys that state none.
    """
    text = final_answer(output)[-LONGEST:]
    stated = [one for one in _statements(text, ignored) if counts(one)]
    if not stated:
        line = (text.splitlines() or [""])[-1].strip(_MARKUP + ".")
        bare = read(_Stated(0, line, None, False)) if line else None
        return Verdict(bare) if bare is not None else Verdict(None, "no verdict")
    last = max(stated, key=lambda one: one.place)
    value = read(last)
    return Verdict(value, "" if value is not None else f"{last.text.strip()[:40]!r} is {expected}")


def _statements(text: str, ignored: tuple[str, ...]) -> list[_Stated]:
    """Everything that states a verdict in one of the known forms."""
    found: list[_Stated] = []
    for place, told in _objects(text):
        for key in (key for key in told if key.lower() in _KEYS and key.lower() not in ignored):
            found.append(_Stated(place, str(told[key]), told[key], False))
    plain = _without_quotes(text)
    for pattern in (_BRACKETS, _BOX):
        found += [
            _Stated(match.start(), _INNER_LABEL.sub("", match[1].strip(_MARKUP)), None, False)
            for match in pattern.finditer(plain)
        ]
    for match in _LABELLED.finditer(plain):
        value = text[match.end() : match.end() + 80].split("\n", 1)[0].lstrip(_MARKUP)
        stands_apart = text[match.end() :].lstrip(' *_"`').startswith(("[[", "\\boxed", "{"))  # found above
        if match[1].lower() not in ignored and value and not stands_apart:
            found.append(_Stated(match.start(), value, None, True))
    return found


def _without_quotes(text: str) -> str:
    """The text with blanks in place of what it quotes; its last line may be in quotes as a whole."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    ending = text.rstrip()
    start = ending.rfind("\n") + 1
    line = ending[start:].strip(" *_")
    alone = _BRACKETS.fullmatch(line.strip("`\"'“”")) is not None
    body = text[:start] if alone else text
    return _QUOTED.sub(blank, _FENCE.sub(blank, body)) + (ending[start:] if alone else "")


def _objects(text: str) -> list[tuple[int, dict[str, Any]]]:
    """The JSON objects that have lines of their own, with where they begin."""
    found: list[tuple[int, dict[str, Any]]] = []
    decoder = json.JSONDecoder(parse_constant=str)
    end = 0
    for match in re.finditer(r"\{", text):
        begin = match.start()
        line = text.rfind("\n", 0, begin) + 1
        if begin < end or not _OPENS_LINE.fullmatch(text[line:begin]):
            continue
        try:
            value, after = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and not text[after:].split("\n", 1)[0].strip(" *_`."):
            found.append((begin, value))
            end = after
    return found


def _number(text: str, low: float, high: float, whole: bool) -> float | None:
    """A number on the scale that begins a text, or is all of it."""
    text = text.strip(_MARKUP)
    match = _NUMBER.match(text)
    if match is None:
        return None
    rest = text[match.end() :]
    if rest.strip(_MARKUP + ".") if whole else _GOES_ON.match(rest):
        return None
    value, unit, end = float(match[1]), match[2], match[3]
    if unit == "%":
        if high not in (1, 100):
            return None
        value = value * high / 100
    elif end is not None:
        if float(end) == 0 or (float(end) != high and (low, high) != (0, 1)):
            return None  # of another scale
        value = value if float(end) == high else value / float(end)
    return value if low <= value <= high else None


def _word(stated: _Stated, words: Mapping[str, float]) -> float | None:
    if isinstance(stated.value, bool):
        return words.get(str(stated.value).lower())
    text = stated.text.strip(_MARKUP + ".,;!").lower()
    if stated.labelled:
        text = re.split(r"[\s.,;!*_`)\]]", text, maxsplit=1)[0]
    return words.get(text)
