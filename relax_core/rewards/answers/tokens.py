"""Tokens of an answer written in LaTeX, in plain ASCII, or in both.

Guarantee: spacing, sizes and other things without a meaning are gone; digits grouped in threes are one number; words
are told from products of letters. Linear in the text.
"""

import re
from typing import NamedTuple

from relax_core.rewards.answers.characters import as_latex
from relax_core.rewards.answers.units import CURRENCIES, UNIT_LETTERS, is_unit
from relax_core.rewards.answers.vocabulary import FUNCTIONS, NAMES, SAME, SPACES, WORDS_OF_TWO, WRAPPERS


class Token(NamedTuple):
    """A token.

    Attributes:
        kind: ``number``, ``letter``, ``word``, ``command``, ``mark`` (another character, ``<=`` and the like),
            ``separator`` (a comma, a semicolon, "and", "or"), ``begin`` and ``end`` of an environment.
        text: as it stands; without commas and spaces in a number.
        spaced: whether a space stands before it.
    """

    kind: str
    text: str
    spaced: bool = False


# A number with its groups: 1,000 or 1{,}000 or 1\,000 or 1 000; Indian groups as well.
_GROUP = r"(?:\{,\}|\\[,!:; ]|,\\! ?|[ ~])"
_NUMBER = (
    rf"\d{{1,3}}(?:{_GROUP}\d{{3}})+(?!\d)(?:\.\d+)?"
    r"|\d+(?:\.\d*)?(?:[eE][-+]?\d+(?![\w.]))?|\.\d+(?:[eE][-+]?\d+(?!\w))?"
)
_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?|\d{1,2}(?:,\d{2})+,\d{3}(?!\d|,\d)", re.ASCII)
_ZEROS = re.compile(
    r"\d{1,3}(?:,0\d{2})+(?!\d|,\d)(?:\.\d+)?", re.ASCII
)  # within brackets a comma separates, but not 1,000
_TOKEN = re.compile(
    rf"(?P<space>[\s~]+)|(?P<env>\\(?:begin|end)\s*\{{[A-Za-z]+\*?\}}(?:\{{[lcr|]*\}})?)|(?P<command>\\(?:[A-Za-z]+|.|$))"
    rf"|(?P<number>{_NUMBER})|(?P<letters>[A-Za-z]+)|(?P<mark>[<>!:=]=|\*\*|.)",
    re.DOTALL | re.ASCII,
)
_OPEN, _CLOSE = frozenset("([") | {r"\{"}, frozenset(")]") | {r"\}"}
_VOWEL = re.compile("[aeiouyAEIOUY]")
_WORD = re.compile(r"\s+[A-Za-z]{3,}")


def tokens(text: str, *, group_commas: bool = True) -> list[Token]:
    """The tokens of a text.

    Args:
        text: an answer.
        group_commas: whether ``1,234`` outside of brackets is a number; else it is two.
    """
    return _Scanner(as_latex(text), group_commas).run()


class _Scanner:
    def __init__(self, text: str, group_commas: bool) -> None:
        self.text, self.group_commas = text, group_commas
        self.found: list[Token] = []
        self.depth = 0
        self.words_until = 0  # the end of an argument of WRAPPERS
        self.braces: set[int] = set()  # round such arguments

    def run(self) -> list[Token]:
        place, spaced = 0, False
        while place < len(self.text):
            grouped = self._grouped(place) if self.text[place].isdigit() else None
            match = grouped or _TOKEN.match(self.text, place)
            assert match is not None
            kind, mark, start, place = "number" if grouped else str(match.lastgroup), match.group(), place, match.end()
            mark = SAME.get(mark, mark)
            if kind == "space" or mark in SPACES or start in self.braces:
                spaced = True
                continue
            if kind == "command" and mark in WRAPPERS:
                self._enter(place)
                spaced = True
                continue
            self._add(kind, mark, spaced, place)
            spaced = False
        return self.found

    def _grouped(self, place: int) -> re.Match[str] | None:
        if not self.group_commas:
            return None
        return (_ZEROS if self.depth else _COMMAS).match(self.text, place)

    def _enter(self, place: int) -> None:
        """Note where the argument is within which letters are words."""
        while self.text[place : place + 1].isspace():
            place += 1
        if self.text[place : place + 1] != "{":
            return
        end = depth = 0
        for end in range(place, len(self.text)):
            depth += (self.text[end] == "{") - (self.text[end] == "}")
            if depth == 0:
                break
        self.braces |= {place, end}
        self.words_until = max(self.words_until, end)

    def _add(self, kind: str, mark: str, spaced: bool, place: int) -> None:
        if kind == "letters":
            self._letters(mark, spaced, place)
        elif kind == "number":
            digits = re.sub(r"[^\d.eE+-]", "", mark)
            if len(digits) == 2 and digits.isdigit() and self.found and self.found[-1].text == r"\frac":
                self.found += [Token("number", digits[0]), Token("number", digits[1])]  # \frac12
            else:
                self.found.append(Token("number", digits, spaced))
        elif kind == "env":
            begins = mark.startswith(r"\begin")
            name = mark[mark.index("{") + 1 : mark.index("}")].rstrip("*")
            self.found.append(Token("begin" if begins else "end", name, spaced))
        elif mark in ("and", "or", ",", ";"):
            self.found.append(Token("separator", mark, spaced))
        elif mark.startswith("\\") and len(mark) > 1 and mark[1].isalpha():
            self.found.append(Token("command", mark, spaced))
        elif mark in ("i", "e"):
            self.found.append(Token("letter", mark, spaced))
        else:
            self.depth += (mark in _OPEN) - (mark in _CLOSE)
            self.found.append(Token("mark", mark, spaced))

    def _letters(self, run: str, spaced: bool, place: int) -> None:
        before = self.found[-1] if self.found else None
        lower = run.lower()
        if lower in ("and", "or"):
            self.found.append(Token("separator", lower, spaced))
        elif lower in ("percent", "pct"):
            self.found.append(Token("mark", "%", spaced))
        elif run in FUNCTIONS:
            self.found.append(Token("command", f"\\{run}", spaced))
        elif run in NAMES:
            self.found.append(Token("command", NAMES[run], spaced))
        elif run == "in" and before is not None and before.kind == "letter":
            self.found.append(Token("command", r"\in", spaced))
        elif self._is_wrapped_word(run) if place <= self.words_until else self._is_word(run, spaced, place):
            self.found.append(Token("word", run, spaced))
        else:
            for i, letter in enumerate(run):
                self.found.append(Token("letter", letter, spaced and i == 0))

    @staticmethod
    def _is_wrapped_word(run: str) -> bool:
        """Whether letters within \\text are a word: all but a single letter that is no unit."""
        return len(run) > 1 or run in UNIT_LETTERS

    def _is_word(self, run: str, spaced: bool, place: int) -> bool:
        """Whether letters outside of \\text are a word, not a product."""
        before = self.found[-1] if self.found else None
        after_value = before is not None and (before.kind == "number" or before.text in ("}", ")", "$", *CURRENCIES))
        if len(run) == 1:
            return False
        if after_value and is_unit(run):
            return True
        if len(run) == 2:  # "no solution", "is even"; but by is b y
            near = (before is not None and before.kind == "word") or _WORD.match(self.text, place)
            return run.lower() == "no" or (run.lower() in WORDS_OF_TWO and bool(near))
        if len(run) <= 4 and (run.islower() or run.isupper()) and list(run) == sorted(set(run)):
            return False  # abc, xyz
        attached = before is not None and not spaced
        return _VOWEL.search(run) is not None and not (attached and len(run) == 3)
