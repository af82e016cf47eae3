"""The letter that a text states as its answer to a question with choices.

Guarantee: linear in the text and raises for none. The last statement counts; one that leaves it open between two
letters states none. A letter is one only where no other letter, digit or hyphenated word is joined to it.
"""

import re
import string
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_core.rewards.answers.boxed import last_box

DEFAULT_LETTERS = string.ascii_uppercase[:10]
"""The letters of a question whose choices are not given."""

LONGEST_STATEMENT = 400
"""Characters after a mark that are read."""

MOST_MARKS = 200
"""Marks of one kind that are read, from the last one on."""

TAIL = 600
"""Characters at the end that are read first: most answers are there."""

_MARKS = " \t\r\n.,;:!?*_`$\"'“”‘’。，；：！？"
_EDGES = _MARKS + "()[]{}（）【】\\"
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|rm|bf|operatorname)\s*\{([^{}]*)\}")

_VERB = r"(?:(?:is|was|are|would\s+be|should\s+be|must\s+be|will\s+be|has\s+to\s+be)(?![A-Za-z'’])|[:=：–—-])"
_FILLER = (
    r"(?:(?:is|the|option|choice|letter|answer|therefore|thus|clearly|definitely|probably|likely|indeed|most|to\s+be)\b"
    r"|[:：,])"
)
_STRONG = re.compile(
    r"\b(?:ans(?:wer)?|(?:correct|right|best|final)\s+(?:choice|option|one|letter))\b\.?"
    r"(?:[\s*_`]*+(?:choice|option|letter)\b|\s+to\s+(?:this|the|that|your)\s+(?:question|problem)\b)?"
    rf"[\s*_`]*+{_VERB}(?:[\s*_`]*+{_FILLER})*+"
    r"|\bfinal\s+answer\b[\s*_`]*+(?=[(\[\\])|<answer>|(?:答案|正确选项)(?:应该|应当|应|就)?(?:是|为|选|[:：])*"
    r"|(?<!不)(?:故选|应选)[:：]?",
    re.IGNORECASE,
)
_WEAK = re.compile(
    r"\b(?:choose|chose|pick|picked|select|selected|going\s+with|go\s+with|opt\s+for|i(?:\s+would|['’]?d|['’]?ll)?\s+say"
    r"|my\s+guess\s+is|i\s+(?:think|believe)\s+it(?:\s+is|['’]s))\b"
    r"(?:\s+(?:option|choice|letter|answer|the|it\s+is|it['’]s)\b)*+"
    r"|(?<![不非筛挑])选(?:择)?(?:是|为|[:：])?|选项(?:是|为|[:：])",
    re.IGNORECASE,
)
_NEGATED = re.compile(r"(?:\bnot|n['’]t|\bnever|\bneither)\s+(?:\w+\s+){0,2}\Z", re.IGNORECASE)
_OPENING = r"(?:\\[(\[]|\\(?:boxed|fbox|text|textbf|mathrm|mathbf|rm|bf)\s*\{|[\s*_`$\"'“‘(\[{（【])*+"
_CLOSING = r"[\\*_`$\"'”’)\]}）】]*+"
_ALONE = r"(?![A-Za-z0-9])(?!['’–-][A-Za-z0-9])"
_LETTER = re.compile(rf"(?P<opening>{_OPENING})(?P<letter>[A-Za-z]){_ALONE}(?P<closing>{_CLOSING})")
_ENDS = re.compile(r"\s*(?:\Z|[.,;:!?。，；：])|[^\S\n]*\n")
_GOES_ON = re.compile(
    r"\s*(?:\Z|[^\sA-Za-z])|[^\S\n]*\n"
    r"|\s+(?:because|since|as|for|and|due|is|but|with|which|given|here|so|in|or|not|from|by|per)\b"
)
_OTHER = re.compile(
    rf"\s*(?:or|and|/|&|,|、|和|或)\s*(?:option\s+)?{_OPENING}[A-Z]{_ALONE}{_CLOSING}\s*(?:\Z|[.,;!?。，；]|\n)"
)
_IS_RIGHT = re.compile(
    rf"(?<![A-Za-z0-9'’-])(?P<letter>[A-Z]){_ALONE}{_CLOSING}\s+(?:is|was|must\s+be|should\s+be)\s+"
    r"(?:indeed\s+|clearly\s+)?(?:the\s+)?(?:only\s+)?(?:correct|right|best|answer)\b"
)
_ONLY_LETTER = re.compile(
    rf"{_OPENING}(?:(?:option|choice|answer)\s++)?{_OPENING}(?P<letter>[A-Za-z])[{re.escape(_EDGES)}]*+", re.I
)
_LETTER_FIRST = re.compile(r"[\s*_`>#$(\[-]*+(?P<letter>[A-Z])[)\].:]+[*_`$]*\s*\S")
_OPEN = ""
"""What a text states that leaves it open between letters: no letter."""


def plain(text: str) -> str:
    """What texts of choices are compared by: single spaces, without LaTeX's wrappers and marks at the ends."""
    return " ".join(_WRAPPER.sub(r"\1", text).strip(_MARKS).split())


@dataclass(frozen=True)
class Question:
    """What may be answered.

    Attributes:
        letters: capital letters, in the order of the choices.
        texts: letter -> text of the choice, plain; empty where they are not given.
    """

    letters: str = DEFAULT_LETTERS
    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, choices: Any, letters: Any) -> "Question":
        """Read metadata.choices and metadata.valid_letters; None where they are not given.

        Args:
            choices: texts in order, or a dict of letters and texts, or of the lists ``label`` and ``text``.
            letters: a text or a list of letters.

        Raises:
            ValueError: they are no choices, or do not fit each other.
        """
        named = _named(choices)
        texts = [str(text) for text in (named.values() if named else choices or ())]
        if letters is not None:
            found = _letters(letters, "metadata.valid_letters")
        elif named:
            found = _letters(list(named), "the letters of metadata.choices")
        else:
            found = string.ascii_uppercase[: len(texts)] if texts else DEFAULT_LETTERS
        if texts and len(texts) != len(found):
            raise ValueError(f"it has {len(texts)} choices and {len(found)} letters")
        return cls(found, {letter: _text(letter, text) for letter, text in zip(found, texts, strict=False)})

    def with_text(self, text: str) -> set[str]:
        """The letters of the choices with this text; case decides only between several."""
        wanted = plain(text)
        found = {letter for letter, known in self.texts.items() if known and known == wanted}
        wanted = wanted.casefold()
        return found or {letter for letter, known in self.texts.items() if known and known.casefold() == wanted}


def stated_letter(text: str, question: Question) -> str | None:
    """The letter that a text states: by a letter, or by the text of a choice. None, or an empty text, without one.

    In this order: a last line that is a letter; the last of "the answer is", a box, ``<answer>`` and their like; the
    last of "I choose", "B is correct"; the only line that begins as a choice does (``B) ...``); a text or a last line
    that is the text of a choice.
    """
    found = text.rstrip().rpartition("\n")[2]
    if (only := _ONLY_LETTER.fullmatch(found)) and only["letter"].upper() in question.letters:
        return only["letter"].upper()
    for statements in (_strong(text, question), _weak(text, question)):
        stated = max(statements, default=None)
        if stated is not None:
            return stated[1]
    lined = [match for line in text.splitlines() if (match := _LETTER_FIRST.match(line))]
    if len(lined) == 1 and lined[0]["letter"] in question.letters:
        return lined[0]["letter"]
    return _only(question.with_text(text)) or _only(question.with_text(found))


def _strong(text: str, question: Question) -> Iterator[tuple[int, str]]:
    """Place and letter of a box and of the last mark of an answer that is followed by one."""
    boxed = last_box(text)
    if boxed is not None and (letter := _of_phrase(boxed, question)) is not None:
        yield max(text.rfind("boxed"), text.rfind("fbox"), text.rfind("framebox")), letter
    yield from _last(_STRONG, text, question)


def _weak(text: str, question: Question) -> Iterator[tuple[int, str]]:
    yield from _last(_WEAK, text, question)
    for match in reversed(deque(_IS_RIGHT.finditer(text), maxlen=MOST_MARKS)):
        if match["letter"] in question.letters:
            yield match.start(), match["letter"]
            return


def _last(mark: re.Pattern[str], text: str, question: Question) -> Iterator[tuple[int, str]]:
    """The last mark that is followed by an answer."""
    for begin in (len(text) - TAIL, 0) if len(text) > TAIL else (0,):
        for match in reversed(deque(mark.finditer(text, begin), maxlen=MOST_MARKS)):
            if _NEGATED.search(text[max(0, match.start() - 24) : match.start()]):
                continue
            letter = _after(text[match.end() : match.end() + LONGEST_STATEMENT], question)
            if letter is not None:
                yield match.start(), letter
                return


def _after(rest: str, question: Question) -> str | None:
    """The answer that a text begins with."""
    match = _LETTER.match(rest)
    if match and match["letter"].upper() in question.letters:
        letter, follows = match["letter"], rest[match.end() :]
        marked = bool(match["opening"].strip()) and bool(match["closing"])
        word = letter in "ai" and not _ENDS.match(follows), letter in "AI" and not _GOES_ON.match(follows)
        if marked or not any(word):
            return _OPEN if _OTHER.match(follows) else letter.upper()
    line = rest.strip().partition("\n")[0]
    sentence = re.split(r"[.!?](?:\s|\Z)", line, maxsplit=1)[0]
    return _only(question.with_text(line)) or _only(question.with_text(sentence)) or None


def _of_phrase(phrase: str, question: Question) -> str | None:
    """The answer that a phrase is: a letter, a letter with its text, or the text of a choice."""
    phrase = _WRAPPER.sub(r"\1", phrase).strip()
    if (only := _ONLY_LETTER.fullmatch(phrase)) and only["letter"].upper() in question.letters:
        return only["letter"].upper()
    if known := _only(question.with_text(phrase)):
        return known
    first = _LETTER_FIRST.match(phrase)
    if first and first["letter"] in question.letters:
        return first["letter"]
    match = _LETTER.match(phrase)
    return _OPEN if match and match["letter"] in question.letters and _OTHER.match(phrase, match.end()) else None


def _only(letters: set[str]) -> str | None:
    return next(iter(letters)) if len(letters) == 1 else None


def _named(choices: Any) -> dict[str, str]:
    """Choices that come with their letters."""
    if choices is None or isinstance(choices, list | tuple):
        if not all(isinstance(text, str | int | float) for text in choices or ()):
            raise ValueError("metadata.choices has entries that are no texts")
        return {}
    if not isinstance(choices, Mapping) or not choices:
        raise ValueError(f"metadata.choices is a {type(choices).__name__}, no list of texts")
    texts, labels = choices.get("text"), choices.get("label")
    if isinstance(texts, list | tuple) and isinstance(labels, list | tuple) and len(texts) == len(labels):
        return {str(label): str(text) for label, text in zip(labels, texts, strict=True)}
    return {str(letter): str(text) for letter, text in choices.items()}


def _letters(given: Any, what: str) -> str:
    found = [str(letter).strip().upper() for letter in given] if isinstance(given, str | Sequence) else []
    fits = all(len(letter) == 1 and letter in string.ascii_uppercase for letter in found)
    if not found or not fits or len(set(found)) != len(found):
        raise ValueError(f"{what} are {given!r:.60}, no different single letters")
    return "".join(found)


def _text(letter: str, text: str) -> str:
    """A choice's text, plain, without the letter that it begins with: ``B) 42``."""
    return plain(re.sub(rf"^\s*[(\[]?{letter}[)\].:]+\s+", "", text))
