"""Patterns (``*.json``, ``[0-9]?``) as regular expressions, and words with braces (``{1..4}``, ``a{b,c}``).

Guarantee: quoted characters are themselves; the file system is never looked at.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from relax_core.config.shell.syntax import Parameter, Part, Text, Word

_CLASSES = {
    "[:space:]": r"\s",
    "[:blank:]": r" \t",
    "[:digit:]": "0-9",
    "[:alpha:]": "A-Za-z",
    "[:alnum:]": "A-Za-z0-9",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:xdigit:]": "0-9A-Fa-f",
    "[:punct:]": r"!-/:-@\[-`{-~",
}
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")
_MOST = 10_000
"""Most words that one word with braces becomes; it stays as it is where there would be more."""


def with_classes(expression: str) -> str:
    """A regular expression of POSIX as one of Python: ``[[:space:]]`` and the like."""
    for name, characters in _CLASSES.items():
        expression = expression.replace(name, characters)
    return expression


def regex_of(pieces: Iterable[tuple[str, bool]]) -> str:
    """The regular expression of a pattern; pairs of text and whether it is quoted."""
    characters = [(char, quoted) for text, quoted in pieces for char in text]
    found, position = [], 0
    while position < len(characters):
        char, quoted = characters[position]
        position += 1
        if quoted:
            found.append(re.escape(char))
        elif char == "*":
            found.append(".*")
        elif char == "?":
            found.append(".")
        elif char == "\\" and position < len(characters):
            found.append(re.escape(characters[position][0]))
            position += 1
        elif char == "[" and (bracket := _bracket(characters[position:])):
            expression, length = bracket
            found.append(expression)
            position += length
        else:
            found.append(re.escape(char))
    return "".join(found)


def _bracket(characters: Sequence[tuple[str, bool]]) -> tuple[str, int] | None:
    """The regular expression of ``[...]`` after its ``[``, and how many characters it has; None without a ``]``."""
    text = "".join(char if not quoted else "\\" for char, quoted in characters)
    match = re.match(r"([!^]?)(\]?(?:\[:\w+:\]|[^\]])*)\]", text, re.DOTALL)
    if not match:
        return None
    start = len(match.group(1))
    inside = "".join(
        re.escape(char) if quoted or char in "\\[^&~|" else char for char, quoted in characters[start : match.end() - 1]
    )
    if inside.startswith("]"):
        inside = "\\" + inside
    for name, members in _CLASSES.items():
        inside = inside.replace("\\" + name, members)
    expression = f"[{'^' if start else ''}{inside}]"
    try:
        re.compile(expression)
    except re.error:
        return None
    return expression, match.end()


def expand_braces(word: Word) -> list[Word]:
    """The words that a word with braces becomes; the word alone where it has none."""
    if not any(isinstance(part, Text) and not part.quoted and "{" in part.text for part in word.parts):
        return [word]
    items: list[str | Part] = []
    for part in word.parts:
        items.extend(part.text if isinstance(part, Text) and not part.quoted else [part])
    words = _expanded(items)
    return [word] if words is None else [Word(_joined(items), word.line) for items in words]


def _joined(items: Iterable[str | Part]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for item in items:
        last = parts[-1] if parts else None
        if not isinstance(item, str):
            parts.append(item)
        elif isinstance(last, Parameter) and last.source == f"${last.name}" and re.fullmatch(r"\w", item, re.ASCII):
            if last.name.isidentifier():  # bash expands braces first: `$A{b,c}` is `$Ab $Ac`
                last = replace(last, name=last.name + item, source=last.source + item)
                parts[-1] = last
            else:
                parts.append(Text(item))
        elif parts and isinstance(parts[-1], Text) and not parts[-1].quoted:
            parts[-1] = Text(parts[-1].text + item)
        else:
            parts.append(Text(item))
    return tuple(parts)


def _expanded(items: Sequence[str | Part]) -> list[list[str | Part]] | None:
    for start, item in enumerate(items):
        found = _alternatives(items, start) if item == "{" else None
        if found is None:
            continue
        alternatives, end = found
        rest = _expanded(items[end:])
        middles = [_expanded(alternative) for alternative in alternatives]
        if rest is None or None in middles:
            return None
        flat = [middle for some in middles for middle in some or ()]
        if len(flat) * len(rest) > _MOST:
            return None
        return [[*items[:start], *middle, *tail] for middle in flat for tail in rest]
    return [list(items)]


def _alternatives(items: Sequence[str | Part], start: int) -> tuple[list[Sequence[str | Part]], int] | None:
    """What stands between commas from the brace at ``start`` on, and where it ends."""
    depth, commas, end = 0, [start], None
    for position in range(start, len(items)):
        depth += {"{": 1, "}": -1}.get(item, 0) if isinstance(item := items[position], str) else 0
        if item == "," and depth == 1:
            commas.append(position)
        if item == "}" and depth == 0:
            end = position
            break
    if end is None:
        return None
    if len(commas) > 1:
        bounds = [*commas, end]
        return [items[a + 1 : b] for a, b in pairwise(bounds)], end + 1
    inside = items[start + 1 : end]
    if not all(isinstance(item, str) for item in inside):
        return None
    values = _range("".join(str(item) for item in inside))
    return None if values is None else ([list(value) for value in values], end + 1)


def _range(text: str) -> list[str] | None:
    match = _RANGE.fullmatch(text)
    if not match:
        return None
    first, last, step, letter, other, letter_step = match.groups()
    start, stop = (int(first), int(last)) if first else (ord(letter), ord(other))
    width = abs(int(step or letter_step or 1)) or 1
    if abs(stop - start) // width > _MOST:
        return None
    numbers = range(start, stop + (1 if stop >= start else -1), width if stop >= start else -width)
    if letter:
        return [chr(number) for number in numbers]
    padded = any(re.fullmatch(r"-?0\d+", end) for end in (first, last))
    return [f"{number:0{max(len(first), len(last)) if padded else 1}d}" for number in numbers]
