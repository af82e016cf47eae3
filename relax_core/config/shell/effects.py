"""What commands would do if they ran: the variables that they set, and whether they train.

Guarantee: calls of functions are followed, so that nothing is missed that is plainly written.
"""

import re
from collections.abc import Mapping
from typing import Any

from relax_core.config.shell.syntax import (
    Assign,
    Calculation,
    CountingFor,
    For,
    Function,
    Quoted,
    Simple,
    Text,
    Word,
    walk,
)

TRAINING = re.compile(r"(^|/)(train|train_async)\.py$|(^|\.)(train|train_async)$")
"""The last word before the arguments: a file, or a module after ``-m``."""

_READERS = ("read", "mapfile", "readarray", "printf", "getopts", "let")
_CHANGED = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:<<|>>|[-+*/%&|^])?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")


def plain(word: Word) -> str:
    """The characters of a word that are written as they are."""
    flat = [inner for part in word.parts for inner in (part.parts if isinstance(part, Quoted) else (part,))]
    return "".join(part.text for part in flat if isinstance(part, Text))


def assigned(nodes: tuple[Any, ...], functions: Mapping[str, Function], seen: frozenset[str] = frozenset()) -> set[str]:
    """The names of the variables that commands would set."""
    names: set[str] = set()
    for node in walk(nodes):
        if isinstance(node, Assign | For):
            names.add(node.name)
        elif isinstance(node, Calculation | CountingFor):
            words = [value for value in vars(node).values() if isinstance(value, Word)]
            names.update(a or b for word in words for a, b in _CHANGED.findall(plain(word)))
        elif isinstance(node, Simple) and node.words:
            texts = [plain(word) for word in node.words if isinstance(word, Word)]
            if texts and texts[0] in _READERS:
                names.update(text for text in texts[1:] if re.fullmatch(r"[A-Za-z_]\w*", text))
            if texts and texts[0] in functions and texts[0] not in seen:
                names |= assigned((functions[texts[0]].body,), functions, seen | {texts[0]})
    return names


def trains(nodes: tuple[Any, ...], functions: Mapping[str, Function], seen: frozenset[str] = frozenset()) -> bool:
    """Whether commands start a training, as far as that is plainly written."""
    for node in walk(nodes):
        if not isinstance(node, Simple):
            continue
        texts = [plain(word) for word in node.words if isinstance(word, Word)]
        if names_training(texts):
            return True
        if texts and texts[0] in functions and texts[0] not in seen:
            called = (functions[texts[0]].body,)
            if trains(called, functions, seen | {texts[0]}):
                return True
    return False


def names_training(texts: list[str]) -> bool:
    """Whether a command's words hold a training program."""
    pairs = zip(["", *texts], texts, strict=False)
    return any(
        (text.endswith(".py") and TRAINING.search(text))
        or (before == "-m" and TRAINING.search(text))
        or (before.rsplit("/", 1)[-1] == "relax" and text == "train")
        for before, text in pairs
    )
