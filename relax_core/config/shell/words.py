"""From characters to words: quotes, ``$name``, ``${...}``, ``$(...)``, ``$((...))``.

Guarantee: a word is taken apart as bash takes it apart, and nothing is expanded yet; what is opened and never closed is
reported with the line where it was opened.
"""

import re
from abc import ABC, abstractmethod

from relax_core.config.shell.cursor import Cursor
from relax_core.config.shell.escapes import unescape
from relax_core.config.shell.syntax import (
    Arithmetic,
    Opaque,
    Parameter,
    Part,
    Quoted,
    ScriptError,
    Sequence,
    Substitution,
    Text,
    Word,
)

METACHARACTERS = " \t\n;&|<>()"
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
SPECIAL = "@*#?$!-"
_BACKQUOTES = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_ANSI_QUOTES = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_REFERENCE = re.compile(
    r"#([A-Za-z_]\w*|[0-9]+|[@*?$!#-])(?=[}\[])|!([A-Za-z_]\w*|[0-9]+)|([A-Za-z_]\w*|[0-9]+|[@*#?$!-])", re.ASCII
)
"""What follows ``${``: the name below ``#``, below ``!``, or alone."""

OPERATORS = (":-", ":=", ":+", ":?", "-", "=", "+", "?", "%%", "%", "##", "#", "//", "/", "^^", "^", ",,", ",", ":")
"""Longer ones before the ones that they begin with."""


def _add(parts: list[Part], plain: str, quoted: bool, part: Part | None = None) -> None:
    """Add the characters before a part, and the part."""
    if plain:
        parts.append(Text(plain, quoted))
    if part is not None:
        parts.append(part)


class WordReader(Cursor, ABC):
    """A place in a text, and how to read a word from there."""

    @abstractmethod
    def commands_until(self, end: str, line: int, opened: str) -> Sequence:
        """The commands up to ``end``, which is passed. The reader of commands says how."""

    def word(self, stops: str = METACHARACTERS, quoting: bool = True) -> Word:
        """The word that begins here, up to a character of ``stops`` that is not quoted.

        Args:
            quoting: whether a single quote quotes; it does not within double quotes.
        """
        line, parts, plain = self.line(), list[Part](), ""
        while self.pos < len(self.text):
            char = self.char()
            if stops == METACHARACTERS and self.text[self.pos : self.pos + 2] in ("<(", ">("):
                part: Part | None = self._process()
            elif stops != "}" and char == "(" and plain[-1:] and plain[-1] in "@?*+!":
                plain += self._balanced()
                continue
            elif char in stops:
                break
            elif char == "\\":
                part = self._escape('$`"\\}' if not quoting else "")
            elif char == "'" and quoting:
                part = self._single()
            elif char == '"':
                part = self._double()
            elif char == "$":
                part = self.dollar(quoted=not quoting)
            elif char == "`":
                part = self._backquotes()
            else:
                plain += char
                self.pos += 1
                continue
            _add(parts, plain, not quoting, part)
            plain = ""
        _add(parts, plain, not quoting)
        return Word(tuple(parts), line)

    def body(self) -> Word:
        """The whole text as that of a here-document that is expanded."""
        return Word(self._inside_quotes(end="", escapes="$`\\"), self.line(0))

    def _escape(self, only: str = "") -> Part | None:
        following = self.text[self.pos + 1 : self.pos + 2]
        self.pos += 2
        if following == "\n":
            return None
        if not following or (only and following not in only):
            return Text("\\" + following, quoted=True)
        return Text(following, quoted=True)

    def _single(self) -> Part:
        end = self.text.find("'", self.pos + 1)
        if end < 0:
            raise ScriptError(self.line(), "the single quote that opens here is never closed")
        text = self.text[self.pos + 1 : end]
        self.pos = end + 1
        return Text(text, quoted=True)

    def _double(self) -> Part:
        start = self.pos
        self.pos += 1
        parts = self._inside_quotes(end='"', escapes='$`"\\')
        if not self.at('"'):
            raise ScriptError(self.line(start), "the double quote that opens here is never closed")
        self.pos += 1
        return Quoted(parts)

    def _inside_quotes(self, end: str, escapes: str) -> tuple[Part, ...]:
        parts, plain = list[Part](), ""
        while self.pos < len(self.text) and not (end and self.at(end)):
            char = self.char()
            if char == "\\":
                part: Part | None = self._escape(escapes)
            elif char == "$":
                part = self.dollar(quoted=True)
            elif char == "`":
                part = self._backquotes()
            else:
                plain += char
                self.pos += 1
                continue
            _add(parts, plain, True, part)
            plain = ""
        _add(parts, plain, True)
        return tuple(parts)

    def _balanced(self) -> str:
        """Text from an opening parenthesis to the one that closes it."""
        start, depth = self.pos, 0
        while self.pos < len(self.text):
            depth += {"(": 1, ")": -1}.get(self.char(), 0)
            self.pos += 1
            if depth == 0:
                return self.text[start : self.pos]
        raise ScriptError(self.line(start), "the parenthesis that opens here is never closed")

    def _process(self) -> Part:
        start = self.pos
        self.pos += 2
        self.commands_until(")", self.line(start), "`<(`")
        return Opaque(self.text[start : self.pos], self.line(start))

    def _backquotes(self) -> Part:
        start = self.pos
        match = _BACKQUOTES.match(self.text, start)
        if not match:
            raise ScriptError(self.line(start), "the backquote that opens here is never closed")
        self.pos = match.end()
        inner = type(self)(re.sub(r"\\([$`\\])", r"\1", match.group(1)) + ")", self.line(start))
        return Substitution(
            inner.commands_until(")", self.line(start), "the backquote"), match.group(), self.line(start)
        )

    def dollar(self, quoted: bool) -> Part:
        """What begins with a dollar sign here."""
        start, line = self.pos, self.line()
        self.pos += 1
        char = self.char()
        if char == "'" and not quoted:
            match = _ANSI_QUOTES.match(self.text, self.pos)
            if not match:
                raise ScriptError(line, "the single quote that opens here is never closed")
            self.pos = match.end()
            return Text(unescape(match.group(1)), quoted=True)
        if char == '"' and not quoted:
            return self._double()
        if char == "(":
            return self._calculation(start) or self._substitution(start)
        if char == "{":
            return self._braces(start, quoted)
        match = NAME.match(self.text, self.pos)
        if match:
            self.pos = match.end()
        elif char and ((char.isascii() and char.isdigit()) or char in SPECIAL):
            self.pos += 1
        else:
            return Text("$", quoted)
        source = self.text[start : self.pos]
        return Parameter(source[1:], source, line, every=source[1:] if source[1:] in "@*" else "")

    def _substitution(self, start: int) -> Part:
        self.pos = start + 2
        body = self.commands_until(")", self.line(start), "`$(`")
        return Substitution(body, self.text[start : self.pos], self.line(start))

    def _calculation(self, start: int) -> Part | None:
        """``$(( ))``, or None where ``$(`` begins a substitution that begins with a parenthesis."""
        if not self.text.startswith("((", start + 1):
            return None
        self.pos = start + 3
        expression = self.expression()
        if expression is None:
            return None
        return Arithmetic(expression, self.text[start : self.pos], self.line(start))

    def expression(self, end: str = "))") -> Word | None:
        """An arithmetic expression up to ``end``, which is passed; None where a parenthesis closes too early."""
        line, parts, depth, plain = self.line(), list[Part](), 0, ""
        while self.pos < len(self.text):
            char = self.char()
            if depth == 0 and self.at(end):
                self.pos += len(end)
                return Word((*parts, Text(plain)) if plain else tuple(parts), line)
            if char == ")" and depth == 0:
                return None
            if char in "$`\"'":
                parts.append(Text(plain))
                plain = ""
                kind = {"$": lambda: self.dollar(quoted=True), "`": self._backquotes, '"': self._double}
                parts.append(kind.get(char, self._single)())
                continue
            depth += {"(": 1, ")": -1}.get(char, 0)
            plain += "" if self.at("\\\n") else char
            self.pos += 2 if self.at("\\\n") else 1
        return None

    def _braces(self, start: int, quoted: bool) -> Part:
        line = self.line(start)
        self.pos = start + 2
        match = _REFERENCE.match(self.text, self.pos)
        if not match:
            return self._opaque(start)
        self.pos = match.end()
        prefix = "#" if match.group(1) else "!" if match.group(2) else ""
        name = match.group(1) or match.group(2) or match.group(3)
        index, every = None, ""
        if self.at("["):
            self.pos += 1
            index = self.word(stops="]")
            self._close(line, "]")
            if index.literal() in ("@", "*"):
                every, index = index.literal() or "", None
        elif name in "@*":
            every = name
        operator, argument, second = "", None, None
        if not self.at("}"):
            found = next((candidate for candidate in OPERATORS if self.at(candidate)), None)
            if found is None:
                return self._opaque(start)
            operator, argument, second = found, *self._arguments(found, quoted)
        self._close(line)
        return Parameter(name, self.text[start : self.pos], line, prefix, index, every, operator, argument, second)

    def _arguments(self, operator: str, quoted: bool) -> tuple[Word, Word | None]:
        self.pos += len(operator)
        if operator.startswith("/"):
            mark = self.char() if operator == "/" and self.char() in ("#", "%") else ""
            self.pos += len(mark)
            pattern = self.word(stops="/}")
            pattern = Word((Text(mark), *pattern.parts), pattern.line)  # the pattern of `/` always begins with its mark
            if not self.at("/"):
                return pattern, None
            self.pos += 1
            return pattern, self.word(stops="}", quoting=not quoted)
        if operator == ":":
            offset = self.word(stops=":}")
            if not self.at(":"):
                return offset, None
            self.pos += 1
            return offset, self.word(stops="}")
        pattern_like = operator[0] in "%#^,"
        return self.word(stops="}", quoting=pattern_like or not quoted), None

    def _close(self, line: int, end: str = "}") -> None:
        if not self.at(end):
            raise ScriptError(line, "the `${` that opens here is never closed")
        self.pos += 1

    def _opaque(self, start: int) -> Part:
        self.pos = start + 2
        self.word(stops="}")
        self._close(self.line(start))
        return Opaque(self.text[start : self.pos], self.line(start))
