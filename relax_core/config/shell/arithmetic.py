"""Integer arithmetic of ``$(( ))``, ``(( ))`` and ``-eq``.

Guarantee: 64-bit integers as in bash; an expression that cannot be computed raises ``UncountableError`` and changes
nothing that it had not reached.
"""

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(\d+#\w+|0[xX][0-9A-Fa-f]+|\d+)|([A-Za-z_]\w*)|"
    r"(<<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))",
    re.ASCII,
)
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_DEEPEST = 100

Thunk = Callable[[], int]


class UncountableError(Exception):
    """The expression has no value here: it is none, divides by zero, or needs what is not known."""


def wrapped(number: int) -> int:
    """The number as 64 bits hold it."""
    return (number + 2**63) % 2**64 - 2**63


def number_of(text: str) -> int:
    """A literal: decimal, octal after 0, hexadecimal after 0x, or ``base#digits``."""
    try:
        if "#" in text:
            base, digits = text.split("#", 1)
            return wrapped(int(digits, int(base)))
        return wrapped(int(text, 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10))
    except ValueError as error:
        raise UncountableError(f"`{text}` is no integer") from error


class _Reader:
    """An expression as a tree of functions, so that ``&&``, ``||`` and ``?:`` compute only what they need."""

    def __init__(self, text: str, get: Callable[[str], int], put: Callable[[str, int], None]) -> None:
        self._tokens: list[str] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if not match:
                raise UncountableError(f"`{text}` is no arithmetic expression")
            self._tokens.append(match.group().strip())
            position = match.end()
        self._tokens.reverse()
        self._get, self._put = get, put
        self._depth = 0

    def whole(self) -> Thunk:
        if not self._tokens:
            return lambda: 0
        found = self._commas()
        if self._tokens:
            raise UncountableError(f"`{self._tokens[-1]}` cannot stand there")
        return found

    def _next(self, *tokens: str) -> str:
        return self._tokens.pop() if self._tokens and self._tokens[-1] in tokens else ""

    def _need(self, token: str) -> None:
        if not self._next(token):
            raise UncountableError(f"`{token}` is missing")

    def _commas(self) -> Thunk:
        found = [self._assignment()]
        while self._next(","):
            found.append(self._assignment())
        return lambda: [compute() for compute in found][-1]

    def _assignment(self) -> Thunk:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UncountableError("the expression is nested too deeply")
        try:
            if len(self._tokens) > 1 and re.fullmatch(r"[A-Za-z_]\w*", name := self._tokens[-1]):
                operator = self._tokens[-2]
                if re.fullmatch(r"(<<|>>|[-+*/%&|^])?=", operator):
                    del self._tokens[-2:]
                    value = self._assignment()
                    return lambda: self._store(name, operator[:-1], value)
            return self._choice()
        finally:
            self._depth -= 1

    def _store(self, name: str, operator: str, value: Thunk) -> int:
        result = _binary(operator, self._get(name), value) if operator else value()
        self._put(name, result)
        return result

    def _choice(self) -> Thunk:
        condition = self._level(0)
        if not self._next("?"):
            return condition
        first = self._assignment()
        self._need(":")
        second = self._assignment()
        return lambda: first() if condition() else second()

    def _level(self, level: int) -> Thunk:
        if level == len(_LEVELS):
            return self._power()
        found = self._level(level + 1)
        while operator := self._next(*_LEVELS[level]):
            found = _both(operator, found, self._level(level + 1))
        return found

    def _power(self) -> Thunk:
        base = self._unary()
        if not self._next("**"):
            return base
        exponent = self._power()
        return lambda: _binary("**", base(), exponent)

    def _unary(self) -> Thunk:
        operator = self._next("-", "+", "!", "~", "++", "--")
        if not operator:
            return self._atom()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UncountableError("the expression is nested too deeply")
        if operator in ("++", "--") and self._tokens and re.fullmatch(r"[A-Za-z_]\w*", name := self._tokens[-1]):
            self._tokens.pop()
            return lambda: self._store(name, operator[0], lambda: 1)
        value = self._unary()
        self._depth -= 1
        kinds: dict[str, Thunk] = {
            "-": lambda: wrapped(-value()),
            "!": lambda: int(not value()),
            "~": lambda: wrapped(~value()),
        }
        return kinds.get(operator, value)

    def _atom(self) -> Thunk:
        if self._next("("):
            found = self._commas()
            self._need(")")
            return found
        token = self._tokens.pop() if self._tokens else ""
        if token[:1].isdigit():
            number = number_of(token)
            return lambda: number
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            raise UncountableError(f"`{token}` cannot stand there")
        after = self._next("++", "--")
        if not after:
            return lambda: self._get(token)
        back = 1 if after == "--" else -1
        return lambda: wrapped(self._store(token, after[0], lambda: 1) + back)


def _both(operator: str, left: Thunk, right: Thunk) -> Thunk:
    return lambda: _binary(operator, left(), right)


def _binary(operator: str, left: int, right: Thunk) -> int:
    if operator in ("&&", "||"):
        return int(bool(right())) if bool(left) == (operator == "&&") else int(bool(left))
    other = right()
    if operator in ("/", "%"):
        if other == 0:
            raise UncountableError("the expression divides by zero")
        quotient = abs(left) // abs(other) * (1 if (left < 0) == (other < 0) else -1)
        return wrapped(quotient if operator == "/" else left - quotient * other)
    if operator == "**":
        if other < 0:
            raise UncountableError("an exponent is below 0")
        return wrapped(pow(left, other, 2**64))
    results: dict[str, Callable[[], int]] = {
        "+": lambda: left + other,
        "-": lambda: left - other,
        "*": lambda: left * other,
        "<<": lambda: left << (other & 63),
        ">>": lambda: left >> (other & 63),
        "&": lambda: left & other,
        "|": lambda: left | other,
        "^": lambda: left ^ other,
        "==": lambda: int(left == other),
        "!=": lambda: int(left != other),
        "<": lambda: int(left < other),
        "<=": lambda: int(left <= other),
        ">": lambda: int(left > other),
        ">=": lambda: int(left >= other),
    }
    return wrapped(results[operator]())


def calculate(text: str, get: Callable[[str], int], put: Callable[[str, int], None]) -> int:
    """The value of an expression.

    Args:
        get: the number that a name stands for.
        put: what an assignment calls.

    Raises:
        UncountableError: there is none.
    """
    return _Reader(text, get, put).whole()()
