"""What a script computes with: values that remember what is not known about them, and the variables.

Guarantee: a doubt about a value stays with every value that is made of it, even with a word that expands to nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from relax_core.config.shell.syntax import Function

LIMIT = 1_000_000
"""Longest text, in characters, and most steps: a script that needs more is left where it is."""


class Status(Enum):
    """How a command ended: ``ASSUMED`` is a command that is not run and taken to succeed, ``UNKNOWN`` a test."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    ASSUMED = "assumed"

    @staticmethod
    def of(known: bool | None) -> "Status":
        """True, false, or not known."""
        return Status.UNKNOWN if known is None else Status.YES if known else Status.NO


@dataclass(frozen=True)
class Doubt:
    """Something that a person must look at.

    Args:
        text: what it is, without a full stop.
        blocks: whether a test of the value cannot be decided.
        mark: the text that stands in the value for what is not known.
        file: the file of the line, where it is not the script itself.
    """

    line: int
    text: str
    blocks: bool = False
    mark: str = ""
    file: str = ""


@dataclass(frozen=True)
class Value:
    """A text and the doubts about it; one that is not ``present`` is a word that expanded to nothing."""

    text: str
    doubts: tuple[Doubt, ...] = ()
    present: bool = True

    @property
    def blocks(self) -> bool:
        """Whether the value is not really known."""
        return any(doubt.blocks for doubt in self.doubts)

    def doubting(self, doubts: Iterable[Doubt]) -> "Value":
        """The same with more doubts."""
        return replace(self, doubts=merged(self.doubts, doubts))

    def hidden(self) -> tuple[str, dict[str, str]]:
        """The text with a private character for each mark, and what each stands for."""
        text, names = self.text, dict[str, str]()
        marks = sorted({doubt.mark for doubt in self.doubts if doubt.mark}, key=len, reverse=True)
        for number, mark in enumerate(marks):
            name = chr(0xF0000 + number)
            if mark in text:
                text, names[name] = text.replace(mark, name), mark
        return text, names

    def shown(self, text: str, names: Mapping[str, str]) -> "Value":
        """A value of a text that was made of the ``hidden`` one, with the doubts that still concern it."""
        gone = {mark for name, mark in names.items() if name not in text}
        for name, mark in names.items():
            text = text.replace(name, mark)
        return Value(text, tuple(doubt for doubt in self.doubts if doubt.mark not in gone or not doubt.mark))


def merged(*groups: Iterable[Doubt]) -> tuple[Doubt, ...]:
    """All doubts, each once, in order."""
    return tuple(dict.fromkeys(doubt for group in groups for doubt in group))


def concatenated(values: Iterable[Value], between: str = "") -> Value:
    """One value of several."""
    values = list(values)
    text = between.join(value.text for value in values if value.present)
    return Value(text, merged(*(value.doubts for value in values)))


@dataclass(frozen=True)
class Array:
    """Elements by index or by key; ``gone`` holds the doubts of elements that expanded to nothing."""

    items: Mapping[int | str, Value] = field(default_factory=dict)
    gone: tuple[Value, ...] = ()
    by_key: bool = False

    def values(self) -> list[Value]:
        """The elements in order, and those that are gone."""
        keys = self.items if self.by_key else sorted(self.items, key=lambda key: (isinstance(key, str), key))
        return [self.items[key] for key in keys] + list(self.gone)

    def extended(self, values: Iterable[Value]) -> "Array":
        """The array with more elements."""
        items, gone = dict(self.items), list(self.gone)
        following = max((key for key in items if isinstance(key, int)), default=-1) + 1
        for value in values:
            if value.present:
                items[following] = value
                following += 1
            else:
                gone.append(value)
        return Array(items, tuple(gone), self.by_key)


@dataclass(frozen=True)
class Variable:
    """A variable; ``given`` ones are exported because the caller gave them, not by the script."""

    value: Value | Array
    exported: bool = False
    given: bool = False


@dataclass
class State:
    """All that commands change.

    Args:
        arguments: those of the function or script that runs; None for the script itself, of which none are known.
        folder: the working folder, where it is known.
        to_export: names that are exported as soon as they are set.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    arguments: list[Value] | None = None
    folder: str | None = None
    exports_all: bool = False
    to_export: set[str] = field(default_factory=set)

    def copy(self) -> "State":
        """What a subshell starts with."""
        copied = {
            "variables": dict(self.variables),
            "functions": dict(self.functions),
            "to_export": set(self.to_export),
        }
        return replace(self, **copied)  # type: ignore[arg-type]

    def assign(self, name: str, value: Value | Array, exported: bool | None = None) -> None:
        """Set a variable, which stays exported if it was."""
        old = self.variables.get(name)
        kept = bool(old and old.exported) or self.exports_all or name in self.to_export
        given = bool(old and old.given) and exported is None
        self.variables[name] = Variable(value, kept if exported is None else exported, given)

    def restore(self, name: str, variable: Variable | None) -> None:
        """Give a variable back what it was; None where it was not set."""
        if variable is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = variable

    def doubt(self, names: Iterable[str], doubt: Doubt) -> None:
        """A command that was skipped might have set these; ``{outcome}`` in the text becomes what that means."""
        for name in names:
            old = self.variables.get(name)
            outcome = f"`{name}` is not known" if old is None else f"`{name}` may have another value"
            about = replace(doubt, text=doubt.text.replace("{outcome}", outcome))
            if old is None:
                about = replace(about, mark=f"${{{name}}}")
                self.variables[name] = Variable(Value(about.mark, (about,)))
            elif isinstance(old.value, Value):
                self.variables[name] = replace(old, value=old.value.doubting((about,)))
            else:
                gone = (*old.value.gone, Value("", (about,), present=False))
                self.variables[name] = replace(old, value=replace(old.value, gone=gone))

    def exports(self) -> Iterator[tuple[str, Value]]:
        """The variables that a command would find in its environment and that the script has set."""
        for name, variable in self.variables.items():
            if variable.exported and not variable.given and isinstance(variable.value, Value):
                yield name, variable.value
