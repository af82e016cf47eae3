"""Fields: what one word becomes once its expansions are known, split where bash splits.

Guarantee: a quoted text is never split and never vanishes; an unquoted one is split at ``IFS``; the doubts of what
vanishes come out as a value that is not present.
"""

from collections.abc import Iterable

from relax_core.config.shell.values import Doubt, Value, merged


class Fields:
    """Fields under construction.

    Args:
        ifs: the characters at which unquoted expansions are split; None where nothing is split and one field results.
    """

    def __init__(self, ifs: str | None) -> None:
        self._ifs = ifs
        self.whole = ifs is None
        self._done: list[tuple[list[tuple[str, bool]], tuple[Doubt, ...]]] = []
        self._current: list[tuple[str, bool]] | None = [] if ifs is None else None
        self._doubts: tuple[Doubt, ...] = ()

    def add(self, text: str, quoted: bool, doubts: Iterable[Doubt] = ()) -> None:
        """Text that is not split; an empty one makes a field too."""
        if self._current is None:
            self._current = []
        self._current.append((text, quoted))
        self._doubts = merged(self._doubts, doubts)

    def doubt(self, doubts: Iterable[Doubt]) -> None:
        """Doubts about something that added no text."""
        self._doubts = merged(self._doubts, doubts)

    @property
    def empty(self) -> bool:
        """Whether no field has been begun since the last one ended."""
        return self._current is None

    def forget(self) -> None:
        """Drop the field that was begun, where it holds no text."""
        if self._current is not None and not any(text for text, _ in self._current):
            self._current = None

    def cut(self) -> None:
        """End the field; where nothing is split, a blank says so."""
        if self._ifs is None:
            self.add(" ", True)
        elif self._current is not None:
            self._done.append((self._current, self._doubts))
            self._current, self._doubts = None, ()

    def split(self, value: Value) -> None:
        """An unquoted expansion."""
        if self._ifs is None or value.blocks:  # what is not known is kept together
            if value.text or self._ifs is None:
                self.add(value.text, self._ifs is not None, value.doubts)
            else:
                self.doubt(value.doubts)
            return
        blanks = "".join(char for char in self._ifs if char in " \t\n")
        self.doubt(value.doubts)
        pending, position, text = False, 0, value.text
        while position < len(text):
            char = text[position]
            if char not in self._ifs:
                if pending:
                    self.cut()
                    self.doubt(value.doubts)
                    pending = False
                self.add(char, False)
            elif char in blanks:
                pending = self._current is not None
            else:
                if self._current is None:
                    self.add("", True)
                self.cut()
                self.doubt(value.doubts)
                pending = False
                while text[position + 1 : position + 2] and text[position + 1] in blanks:
                    position += 1
            position += 1
        if pending:
            self.cut()

    def pieces(self) -> list[tuple[list[tuple[str, bool]], tuple[Doubt, ...]]]:
        """Each field as pairs of text and whether it is quoted, and its doubts."""
        return [*self._done, (self._current, self._doubts)] if self._current is not None else self._done

    def values(self) -> list[Value]:
        """The fields as values; last, one that is not present where doubts remain without a field."""
        found = [Value("".join(text for text, _ in pieces), doubts) for pieces, doubts in self.pieces()]
        if self._current is None and self._doubts:
            found.append(Value("", self._doubts, present=False))
        return found
