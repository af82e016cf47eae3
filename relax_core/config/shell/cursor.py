"""A place in a text that is read from the left to the right.

Guarantee: the line of every position is known.
"""

import re
from bisect import bisect_right


class Cursor:
    """A place in a text.

    Args:
        first_line: the number of the text's first line.
    """

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.text, self.pos = text, 0
        self._first = first_line
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def line(self, pos: int | None = None) -> int:
        """The line of a position; of the present one where none is given."""
        return self._first + bisect_right(self._breaks, (self.pos if pos is None else pos) - 1)

    def at(self, text: str) -> bool:
        """Whether this text comes next."""
        return self.text.startswith(text, self.pos)

    def char(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.pos : self.pos + 1]
