"""A place in a list of tokens, and how much may still be done there.

Guarantee: nesting and work are bounded: what goes beyond raises.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from relax_core.rewards.answers.algebra import Expression, NotRead, TooLarge
from relax_core.rewards.answers.tokens import Token
from relax_core.rewards.answers.values import Quantity, Value

MAX_DEPTH = 40
_WORK = 20_000


class Cursor:
    """Reads tokens one by one.

    Args:
        found: the tokens.

    Attributes:
        place: index of the next token.
        units: words of units that were seen since the item began.
    """

    def __init__(self, found: Sequence[Token]) -> None:
        self.tokens = found
        self.place = 0
        self.units: list[str] = []
        self._depth = 0
        self._work = _WORK

    @property
    def text(self) -> str:
        """Of the next token; empty at the end."""
        return self.tokens[self.place].text if self.place < len(self.tokens) else ""

    @property
    def kind(self) -> str:
        """Of the next token; empty at the end."""
        return self.tokens[self.place].kind if self.place < len(self.tokens) else ""

    def take(self, text: str | None = None) -> Token:
        """The next token, which must be as given."""
        if self.place >= len(self.tokens) or (text is not None and self.text != text):
            raise NotRead(f"no {text or 'more'}")
        self.place += 1
        return self.tokens[self.place - 1]

    def spend(self, work: int) -> None:
        """Count work: terms multiplied, or as much."""
        self._work -= work
        if self._work < 0:
            raise NotRead("too much work")

    @contextmanager
    def nested(self) -> Iterator[None]:
        """One level deeper."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge("nested deeply")
        yield
        self._depth -= 1


def plain(value: Value) -> Expression:
    """The expression that a value is.

    Raises:
        NotRead: it is something else.
    """
    if isinstance(value, Quantity):
        value = value.value
    if not isinstance(value, Expression):
        raise NotRead("arithmetic with something else than expressions")
    return value


def whole(value: Expression) -> int:
    """The integer that an expression is.

    Raises:
        NotRead: it is something else.
    """
    known = value.rational
    if known is None or known.denominator > 1:
        raise NotRead("no integer")
    return int(known)
