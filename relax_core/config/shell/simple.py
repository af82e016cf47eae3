"""One command with its words: assignments, arrays, redirections, here-documents, comments.

Guarantee: comments and continued lines leave no trace; an array may go over many lines with comments inside; the text
of a here-document is never taken for commands.
"""

import re
from dataclasses import dataclass

from relax_core.config.shell.syntax import (
    Assign,
    Element,
    Quoted,
    Redirect,
    ScriptError,
    Simple,
    Text,
    Word,
)
from relax_core.config.shell.words import METACHARACTERS, WordReader

DECLARATIONS = ("export", "declare", "typeset", "local", "readonly")
"""Commands whose arguments are assignments."""

_BARE = re.compile(r"[^\s;&|<>()'\"\\$`]+")
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(?=\[|\+?=)", re.ASCII)
_REDIRECT = re.compile(r"(\d*|\{\w+\})(<<<|<<-|<<|<>|>>|>\||>&|<&|<(?!\()|>(?!\())|()(&>>|&>)")


@dataclass
class _Pending:
    """A here-document whose text comes after the end of the line."""

    redirect: Redirect
    delimiter: str
    expanded: bool
    tabs: bool
    line: int


class SimpleReader(WordReader):
    """A place in a text, and how to read one simple command from there."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        super().__init__(text, first_line)
        self._pending: list[_Pending] = []

    def shown(self) -> str:
        """What comes next, as a message names it."""
        match = _BARE.match(self.text, self.pos)
        return match.group() if match else self.text[self.pos : self.pos + 2].strip() or "end of line"

    def space(self, newlines: bool = False) -> None:
        """Pass blanks, continued lines and comments; new lines too where asked."""
        while self.pos < len(self.text):
            if self.char() in " \t":
                self.pos += 1
            elif self.at("\\\n"):
                self.pos += 2
            elif self.char() == "#" and (self.pos == 0 or self.text[self.pos - 1] in METACHARACTERS):
                end = self.text.find("\n", self.pos)
                self.pos = len(self.text) if end < 0 else end
            elif self.char() == "\n" and newlines:
                self.pos += 1
                self.here_documents()
            else:
                break

    def here_documents(self) -> None:
        """Read the texts of the here-documents whose line has ended."""
        pending, self._pending = self._pending, []
        for document in pending:
            start, lines = self.pos, list[str]()
            while True:
                if self.pos >= len(self.text):
                    raise ScriptError(document.line, f"the here-document `{document.delimiter}` is never closed")
                end = self.text.find("\n", self.pos)
                end = len(self.text) if end < 0 else end
                line = self.text[self.pos : end]
                self.pos = end + 1
                if document.tabs:
                    line = line.lstrip("\t")
                if line == document.delimiter:
                    break
                lines.append(line + "\n")
            body, number = "".join(lines), self.line(start)
            if document.expanded:
                document.redirect.word = type(self)(body, number).body()
            else:
                document.redirect.word = Word((Text(body, quoted=True),), number)

    def bare(self) -> str:
        """The word that comes next, where nothing in it is quoted or expanded."""
        match = _BARE.match(self.text, self.pos)
        if not match or self.text[match.end() : match.end() + 1] not in ("", *METACHARACTERS):
            return ""
        return match.group()

    def plain_word(self) -> Word:
        """The word that must come next."""
        if self.char() in METACHARACTERS and not self.at("<(") and not self.at(">("):
            raise ScriptError(self.line(), f"`{self.shown()}` cannot stand here")
        return self.word()

    def redirects(self) -> tuple[Redirect, ...]:
        """The redirections that come next."""
        found: list[Redirect] = []
        self.space()
        while redirect := self._redirect():
            found.append(redirect)
            self.space()
        return tuple(found)

    def _redirect(self) -> Redirect | None:
        match = _REDIRECT.match(self.text, self.pos)
        if not match:
            return None
        line, operator = self.line(), match.group(2) or match.group(4)
        self.pos = match.end()
        self.space()
        word = self.plain_word()
        redirect = Redirect(match.group(1) or "", operator, word)
        if operator in ("<<", "<<-"):
            flat = [inner for part in word.parts for inner in (part.parts if isinstance(part, Quoted) else (part,))]
            text = "".join(part.text for part in flat if isinstance(part, Text))
            expanded = all(isinstance(part, Text) and not part.quoted for part in word.parts)
            self._pending.append(_Pending(redirect, text, expanded, operator == "<<-", line))
        return redirect

    def simple(self) -> Simple:
        """The simple command that begins here."""
        line, assignments, redirects = self.line(), list[Assign](), list[Redirect]()
        words: list[Word | Assign] = []
        declares = False
        while True:
            self.space()
            if redirect := self._redirect():
                redirects.append(redirect)
                continue
            if not self.char() or (self.char() in ";&|()\n"):
                break
            assign = self._assignment() if not words or declares else None
            if assign and words:
                words.append(assign)
            elif assign:
                assignments.append(assign)
            else:
                words.append(self.plain_word())
                first = words[0]
                declares = isinstance(first, Word) and first.literal() in DECLARATIONS
        if not words and not assignments and not redirects:
            raise ScriptError(line, f"`{self.shown()}` cannot stand here")
        return Simple(tuple(assignments), tuple(words), tuple(redirects), line)

    def _assignment(self) -> Assign | None:
        """The assignment that begins here; None, and nothing passed, where a plain word begins."""
        start, line = self.pos, self.line()
        match = _ASSIGN.match(self.text, start)
        if not match:
            return None
        self.pos, index = match.end(), None
        if self.at("["):
            self.pos += 1
            index = self.word(stops="]\n")
            self.pos += self.char() == "]"
        append = self.at("+=")
        if not append and not self.at("="):
            self.pos = start
            return None
        self.pos += 2 if append else 1
        value = self._array() if self.char() == "(" and index is None else self.word()
        return Assign(match.group(1), value, line, index, append)

    def _array(self) -> tuple[Element, ...]:
        line, elements = self.line(), list[Element]()
        self.pos += 1
        while True:
            self.space(newlines=True)
            if not self.char():
                raise ScriptError(line, "the array that opens here is never closed by `)`")
            if self.char() == ")":
                self.pos += 1
                return tuple(elements)
            key, start = None, self.pos
            if self.at("["):
                self.pos += 1
                key = self.word(stops="]\n")
                if self.at("]="):
                    self.pos += 2
                else:
                    key, self.pos = None, start
            value = Word((), self.line()) if key and self.char() in METACHARACTERS else self.plain_word()
            elements.append(Element(value, key))
