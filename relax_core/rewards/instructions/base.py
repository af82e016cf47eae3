"""What an instruction is, the list of all, and the reading of a sample's instructions.

Guarantee: ``read`` looks at every instruction before any is checked: an id that nobody knows, and an argument that is
missing or of the wrong kind, is an error that names it. A check is linear in the response and raises for none.
"""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from data.errors import UserError
from data.nearest import nearest
from relax_core.rewards.language import LANGUAGES

Convert = Callable[[Any], Any]
"""Makes an argument of a value from the data; raises ValueError with what it must be."""

F = TypeVar("F", bound=Callable[..., bool])

FAMILIES = ("keywords", "lengths", "formats", "letters", "layout", "vocabulary", "sentence", "repeat", "fixed")
"""Modules of this package that have instructions."""


@dataclass(frozen=True)
class Instruction:
    """One kind of instruction.

    Attributes:
        name: its id in the public data: ``keywords:existence``.
        follows: whether a response follows it, given its arguments.
        arguments: name of each -> what reads it.
    """

    name: str
    follows: Callable[..., bool]
    arguments: Mapping[str, Convert]


class Check(NamedTuple):
    """An instruction of a sample: its id and its arguments, read."""

    instruction: Instruction
    arguments: Mapping[str, Any]

    def follows(self, response: str) -> bool:
        """Whether a response follows it. One without any text follows nothing."""
        return bool(response.strip()) and self.instruction.follows(response, **self.arguments)


_known: dict[str, Instruction] = {}


def instruction(name: str, **arguments: Convert) -> Callable[[F], F]:
    """Decorator: a function of a response and these arguments decides whether an instruction is followed."""

    def add(function: F) -> F:
        if name in _known and _known[name].follows.__module__ != function.__module__:
            raise ValueError(f"instruction {name!r} is already defined")
        _known[name] = Instruction(name, function, arguments)
        return function

    return add


@cache
def instructions() -> Mapping[str, Instruction]:
    """All instructions by their ids, in alphabetical order."""
    for family in FAMILIES:
        importlib.import_module(f"{__package__}.{family}")
    return dict(sorted(_known.items()))


def read(names: Any, arguments: Any, sample_id: str) -> list[Check]:
    """The instructions of a sample.

    Args:
        names: its ``instruction_id_list``.
        arguments: its ``kwargs``: for each a dict, or None; values that are None count as absent.
        sample_id: for messages.

    Raises:
        UserError: the lists do not fit, an id is unknown, an argument is missing or wrong.
    """
    if not isinstance(names, Sequence) or isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise _error(sample_id, f"instruction_id_list is {_shown(names)}, no list of ids", "Correct the row.")
    given = [{}] * len(names) if arguments is None else arguments
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(names):
        raise _error(
            sample_id,
            f"kwargs is {_shown(arguments)} and has no entry for each of the {len(names)} instructions",
            "Give a list with a dict for each instruction, in their order.",
        )
    return [_check(name, entry, sample_id) for name, entry in zip(names, given, strict=True)]


def _check(name: str, given: Any, sample_id: str) -> Check:
    kind = instructions().get(name)
    if kind is None:
        raise _error(
            sample_id,
            f"there is no instruction {name!r}",
            nearest(name, instructions(), "{!r}") or "The ids are those of IFEval, IFBench and IF-RLVR.",
        )
    if given is not None and not isinstance(given, Mapping):
        raise _error(sample_id, f"the kwargs of {name} are {_shown(given)}, no dict", "Correct the row.")
    values = {}
    for argument, convert in kind.arguments.items():
        value = (given or {}).get(argument)
        if value is None:
            raise _error(sample_id, f"the instruction {name} lacks {argument!r} in its kwargs", "Add it to the row.")
        try:
            values[argument] = convert(value)
        except ValueError as error:
            raise _error(
                sample_id,
                f"{argument!r} of the instruction {name} is {_shown(value)}; it must be {error}",
                "Correct the row.",
            ) from None
    return Check(kind, values)


def _error(sample_id: str, what: str, fix: str) -> UserError:
    return UserError(f"Sample {sample_id} cannot be scored by ifbench: {what}.", fix)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"{text!r:.60}" if isinstance(value, str) else f"{text:.60}"


# What reads arguments. JSON made of tables has 3.0 for 3, and lists of one for one.


def count(value: Any) -> int:
    """A whole number, 0 or more."""
    exact = isinstance(value, int) and not isinstance(value, bool)
    whole = exact or (isinstance(value, float) and value.is_integer())
    if not whole or value < 0:
        raise ValueError("a whole number, 0 or more")
    return int(value)


def percent(value: Any) -> float:
    """A number from 0 to 100."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ValueError("a number from 0 to 100")
    return float(value)


def text(value: Any) -> str:
    """A text that is not blank, as it is."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not blank")
    return value


def word(value: Any) -> str:
    """A text without white space round it."""
    return text(value).strip()


def word_list(value: Any) -> tuple[str, ...]:
    """Texts, at least one."""
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError("a list of words")
    try:
        return tuple(word(entry) for entry in entries)
    except ValueError:
        raise ValueError("a list of words") from None


def letter(value: Any) -> str:
    """One character that is not blank."""
    one = word(value)
    if len(one) != 1:
        raise ValueError("one letter")
    return one


def language(value: Any) -> str:
    """Code of a language that is known."""
    code = word(value).lower().partition("-")[0]
    if code not in LANGUAGES:
        raise ValueError(f"the code of a language that is known: {', '.join(LANGUAGES)}")
    return code


def relation(value: Any) -> Callable[[int, int], bool]:
    """``less than`` or ``at least``, as a comparison of a count with a number."""
    comparisons: dict[str, Callable[[int, int], bool]] = {
        "less than": lambda counted, number: counted < number,
        "at least": lambda counted, number: counted >= number,
    }
    if not isinstance(value, str) or value not in comparisons:
        raise ValueError("'less than' or 'at least'")
    return comparisons[value]
