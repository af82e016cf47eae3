"""Tests: ``[ ]`` and ``test``, and ``[[ ]]``.

Guarantee: a test is decided only by what is known; one about files, or about a value that is not known, is unknown.
"""

import re
from collections.abc import Callable, Iterable

from relax_core.config.shell.arithmetic import UncountableError
from relax_core.config.shell.expand import Expander
from relax_core.config.shell.patterns import with_classes
from relax_core.config.shell.simple import SimpleReader
from relax_core.config.shell.syntax import Condition, ScriptError, Word
from relax_core.config.shell.values import Array, Status, Value

_UNARY = re.compile(r"-[a-hknoprstuvwxzGLNORS]")
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_OPERATOR = re.compile(r"(==|=~|=|!=|<|>|-(?:eq|ne|lt|le|gt|ge|nt|ot|ef))(?=\s)")


def read_condition(reader: SimpleReader, line: int) -> Condition:
    """The condition up to ``]]``, which is passed.

    Raises:
        ScriptError: the condition is none, or does not end.
    """
    found = _either(reader, line)
    reader.space(newlines=True)
    if not reader.at("]]"):
        where = f"`{reader.shown()}` stands in line {reader.line()}" if reader.char() else "the script ends"
        raise ScriptError(line, f"`[[`, which opens here, is never closed by `]]`: {where}")
    reader.pos += 2
    return found


def _either(reader: SimpleReader, line: int) -> Condition:
    found = _both(reader, line)
    while _passed(reader, "||"):
        found = Condition("or", (found, _both(reader, line)))
    return found


def _both(reader: SimpleReader, line: int) -> Condition:
    found = _primary(reader, line)
    while _passed(reader, "&&"):
        found = Condition("and", (found, _primary(reader, line)))
    return found


def _passed(reader: SimpleReader, text: str) -> bool:
    reader.space(newlines=True)
    if not reader.at(text):
        return False
    reader.pos += len(text)
    return True


def _primary(reader: SimpleReader, line: int) -> Condition:
    reader.space(newlines=True)
    if reader.bare() == "!":
        reader.pos += 1
        return Condition("not", (_primary(reader, line),))
    if _passed(reader, "("):
        found = _either(reader, line)
        if not _passed(reader, ")"):
            raise ScriptError(line, "a parenthesis of `[[` is never closed")
        return found
    if reader.at("]]") or not reader.char():
        raise ScriptError(line, "`[[` holds no condition")
    if _UNARY.fullmatch(reader.bare()):
        start, operator = reader.pos, reader.bare()
        reader.pos += len(operator)
        reader.space()
        if not reader.at("]]") and not _OPERATOR.match(reader.text, reader.pos):
            return Condition(operator, (reader.plain_word(),))
        reader.pos = start
    left = reader.plain_word()
    reader.space(newlines=True)
    match = _OPERATOR.match(reader.text, reader.pos)
    if not match:
        return Condition("-n", (left,))
    reader.pos = match.end()
    reader.space()
    right = reader.word(stops=" \t\n") if match.group(1) == "=~" else reader.plain_word()
    return Condition(match.group(1), (left, right))


def evaluate_condition(condition: Condition, expander: Expander) -> bool | None:
    """Whether the condition of ``[[ ]]`` holds; None where that is not known."""
    operands = condition.operands
    if condition.operator in ("and", "or", "not"):
        results = (evaluate_condition(operand, expander) for operand in operands if isinstance(operand, Condition))
        return _combined(condition.operator, lambda: next(results))
    words = [operand for operand in operands if isinstance(operand, Word)]
    if condition.operator in _NUMBERS:
        try:
            left, right = (expander.number(word) for word in words)
        except UncountableError:
            return None
        return _NUMBERS[condition.operator](left, right)
    value = expander.joined(words[0])
    if len(words) == 1:
        return _unary(condition.operator, value, expander)
    if condition.operator in ("==", "=", "!=", "=~"):
        return match_value(condition.operator, value, words[1], expander)
    return _compared(condition.operator, value, expander.joined(words[1]))


def _combined(operator: str, following: Callable[[], bool | None]) -> bool | None:
    first = following()
    if operator == "not":
        return None if first is None else not first
    decides = operator == "or"
    if first is decides:
        return decides
    second = following()
    return decides if second is decides else None if first is None else second


def match_value(operator: str, value: Value, pattern: Word, expander: Expander) -> bool | None:
    """Whether a value matches a pattern, or an expression for ``=~``; None where that is not known."""
    expression, doubts = expander.regex(pattern, extended=operator == "=~")
    if value.blocks or any(doubt.blocks for doubt in doubts):
        same = None if operator == "=~" else _names_of_scripts(value, expander.joined(pattern))
        return same if same is None else same == (operator != "!=")
    try:
        if operator != "=~":
            matches = re.compile(expression, re.DOTALL).fullmatch(value.text) is not None
            return matches == (operator != "!=")
        match = re.compile(with_classes(expression), re.DOTALL).search(value.text)
    except re.error:
        return None
    groups = match.groups(default="") if match else ()
    texts = [match.group(), *groups] if match else []
    array = Array({number: Value(text, value.doubts) for number, text in enumerate(texts)})
    expander.host.state.assign("BASH_REMATCH", array)
    return match is not None


def matches_any(value: Value, patterns: Iterable[Word], expander: Expander) -> bool | None:
    """Whether one of the patterns of ``case`` matches; None where that is not known."""
    unknown = False
    for pattern in patterns:
        found = match_value("==", value, pattern, expander)
        if found:
            return True
        unknown |= found is None
    return None if unknown else False


def _names_of_scripts(left: Value, right: Value) -> bool | None:
    """Whether ``$0`` and ``BASH_SOURCE`` are the same, of which only the folder is known; None for other values."""
    marks = {doubt.mark for value in (left, right) for doubt in value.doubts if doubt.blocks}
    return left.text == right.text if marks == {"$0"} else None


def _compared(operator: str, left: Value, right: Value) -> bool | None:
    """A comparison of two values that are known, other than with a pattern."""
    if left.blocks or right.blocks or operator in ("-nt", "-ot", "-ef"):
        same = _names_of_scripts(left, right) if operator in ("=", "==", "!=") else None
        return same if same is None else same == (operator != "!=")
    if operator in _NUMBERS:
        try:
            return _NUMBERS[operator](int(left.text), int(right.text))
        except ValueError:
            return False  # bash complains and takes the test to have failed
    kinds = {"=": left.text == right.text, "==": left.text == right.text, "!=": left.text != right.text}
    return kinds.get(operator, left.text < right.text if operator in ("<", "\\<") else left.text > right.text)


def _unary(operator: str, value: Value, expander: Expander) -> bool | None:
    if operator in ("-z", "-n"):
        marked, names = value.hidden()
        known = "".join(char for char in marked if char not in names)
        if value.blocks and not (names and known):
            return None
        return bool(value.text) == (operator == "-n")
    if operator == "-v" and not value.blocks:
        return value.text in expander.host.state.variables
    return False if not value.text and not value.blocks else None


def evaluate_test(words: list[Value], expander: Expander) -> Status:
    """How ``[`` or ``test`` ends with these arguments."""
    try:
        return Status.of(_Arguments(words, expander).whole())
    except (IndexError, ValueError):
        return Status.NO  # bash: too many arguments, operator expected


class _Arguments:
    """The arguments of ``[`` from the left to the right."""

    def __init__(self, words: list[Value], expander: Expander) -> None:
        self._words, self._expander, self._position = words, expander, 0

    def whole(self) -> bool | None:
        if not self._words:
            return False
        found = self._either()
        if self._position < len(self._words):
            raise ValueError("too many arguments")
        return found

    def _next(self, text: str) -> bool:
        if self._position < len(self._words) and self._words[self._position].text == text:
            self._position += 1
            return True
        return False

    def _either(self) -> bool | None:
        found = self._both()
        while self._next("-o"):
            results = iter((found, self._both()))
            found = _combined("or", lambda results=results: next(results))  # type: ignore[misc]
        return found

    def _both(self) -> bool | None:
        found = self._primary()
        while self._next("-a"):
            results = iter((found, self._primary()))
            found = _combined("and", lambda results=results: next(results))  # type: ignore[misc]
        return found

    def _primary(self) -> bool | None:
        rest = self._words[self._position :]
        if len(rest) >= 3 and self._binary(rest[1].text):
            self._position += 3
            return _compared(rest[1].text, rest[0], rest[2])
        if len(rest) > 1 and self._next("!"):
            return _combined("not", self._primary)
        if len(rest) > 2 and self._next("("):
            found = self._either()
            if not self._next(")"):
                raise ValueError("`)` expected")
            return found
        if len(rest) > 1 and _UNARY.fullmatch(rest[0].text) and not rest[0].blocks:
            self._position += 2
            return _unary(rest[0].text, rest[1], self._expander)
        self._position += 1
        return _unary("-n", rest[0], self._expander)

    def _binary(self, operator: str) -> bool:
        return operator in _NUMBERS or operator in ("=", "==", "!=", "<", ">", "-nt", "-ot", "-ef")
