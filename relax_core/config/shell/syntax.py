"""What a script consists of: words with their parts, and commands.

Guarantee: the classes hold what was written and where, and nothing about what it means; ``ScriptError`` is the only
error that reading a script's text raises, and it names a line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


class ScriptError(Exception):
    """The text is no script: something is open in ``line`` that is never closed, or stands where it cannot."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line, self.problem = line, problem


@dataclass(frozen=True)
class Text:
    """Characters as they are; ``quoted`` ones are no pattern and are never split."""

    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Quoted:
    """What stands between double quotes."""

    parts: "tuple[Part, ...]"


@dataclass(frozen=True)
class Word:
    """One word before expansion."""

    parts: "tuple[Part, ...]"
    line: int

    def literal(self) -> str | None:
        """The text of a word that holds no expansion; else None."""
        return "".join(p.text for p in self.parts if isinstance(p, Text)) if self.is_literal() else None

    def is_literal(self) -> bool:
        """Whether the word holds no expansion and no double quotes."""
        return all(isinstance(part, Text) for part in self.parts)


@dataclass(frozen=True)
class Parameter:
    """``$name`` or ``${name[index]operator argument}``.

    Args:
        source: the text as written.
        prefix: ``#`` of ``${#name}``, ``!`` of ``${!name}``.
        index: what stands between square brackets; ``@`` and ``*`` are in ``every`` instead.
        operator: ``:-``, ``%%``, ``/`` and so on.
        second: the replacement of ``/``, the length of ``:``.
    """

    name: str
    source: str
    line: int
    prefix: str = ""
    index: Word | None = None
    every: str = ""
    operator: str = ""
    argument: Word | None = None
    second: Word | None = None


@dataclass(frozen=True)
class Substitution:
    """``$(commands)`` or the same in backquotes."""

    body: "Sequence"
    source: str
    line: int


@dataclass(frozen=True)
class Arithmetic:
    """``$((expression))``."""

    expression: Word
    source: str
    line: int


@dataclass(frozen=True)
class Opaque:
    """Something that this reader knows to be there but not what it is worth."""

    source: str
    line: int


Part = Text | Quoted | Parameter | Substitution | Arithmetic | Opaque


@dataclass(frozen=True)
class Element:
    """One element of an array as written, with its key where it has one."""

    value: Word
    key: Word | None = None


@dataclass(frozen=True)
class Assign:
    """``name=value``, ``name[index]=value``, ``name+=value`` or ``name=(elements)``."""

    name: str
    value: Word | tuple[Element, ...]
    line: int
    index: Word | None = None
    append: bool = False


@dataclass
class Redirect:
    """``2>file``: ``word`` is the file, or the text that the command reads (``<<``, ``<<<``)."""

    descriptor: str
    operator: str
    word: Word


@dataclass(frozen=True)
class Simple:
    """A command with its words; ``export`` and its like have assignments among them."""

    assignments: tuple[Assign, ...]
    words: tuple[Word | Assign, ...]
    redirects: tuple[Redirect, ...]
    line: int


@dataclass(frozen=True)
class Pipeline:
    """Commands with ``|`` between them; one alone when it is negated."""

    commands: "tuple[Command, ...]"
    negated: bool
    line: int


@dataclass(frozen=True)
class AndOr:
    """``first && second || third``: pairs of the operator before a command, and the command."""

    first: "Command"
    rest: "tuple[tuple[str, Command], ...]"
    line: int
    end: int


@dataclass(frozen=True)
class Sequence:
    """Commands one after the other."""

    commands: "tuple[Command, ...]" = ()


@dataclass(frozen=True)
class If:
    """Pairs of condition and body; ``otherwise`` is the body of ``else``."""

    branches: tuple[tuple[Sequence, Sequence], ...]
    otherwise: Sequence
    line: int
    end: int


@dataclass(frozen=True)
class For:
    """``for name in words``; without ``in`` the words are the arguments."""

    name: str
    words: tuple[Word, ...] | None
    body: Sequence
    line: int
    end: int


@dataclass(frozen=True)
class CountingFor:
    """``for ((start; condition; step))``."""

    start: Word
    condition: Word
    step: Word
    body: Sequence
    line: int
    end: int


@dataclass(frozen=True)
class While:
    """``while`` or ``until``."""

    condition: Sequence
    body: Sequence
    until: bool
    line: int
    end: int


@dataclass(frozen=True)
class Branch:
    """One branch of ``case``; ``ending`` is ``;;``, ``;&`` or ``;;&``."""

    patterns: tuple[Word, ...]
    body: Sequence
    ending: str


@dataclass(frozen=True)
class Case:
    """``case subject in``."""

    subject: Word
    branches: tuple[Branch, ...]
    line: int
    end: int


@dataclass(frozen=True)
class Group:
    """``{ commands; }``, or ``( commands )`` whose changes stay inside."""

    body: Sequence
    subshell: bool
    redirects: tuple[Redirect, ...]
    line: int
    end: int


@dataclass(frozen=True)
class Function:
    """The definition of a function."""

    name: str
    body: "Command"
    line: int
    end: int


@dataclass(frozen=True)
class Condition:
    """What stands in ``[[ ]]``: ``and``, ``or``, ``not``, or an operator with one word or two."""

    operator: str
    operands: "tuple[Condition | Word, ...]"


@dataclass(frozen=True)
class Test:
    """``[[ condition ]]``."""

    condition: Condition
    line: int


@dataclass(frozen=True)
class Calculation:
    """``(( expression ))``."""

    expression: Word
    line: int


Command = Simple | Pipeline | AndOr | If | For | CountingFor | While | Case | Group | Function | Test | Calculation


def walk(node: Any) -> Iterator[Any]:
    """The node and all that it holds, but not what words hold: no substitution is entered."""
    if isinstance(node, Word):
        return
    if isinstance(node, tuple):
        for item in node:
            yield from walk(item)
    elif is_dataclass(node):
        yield node
        for item in fields(node):
            yield from walk(getattr(node, item.name))
