"""Words, sentences and paragraphs of a text, without data files.

Guarantee: every function is linear in the text and raises for none; sentences hold every character of the text but the
white space round them.

They follow what the public IFEval and IFBench checks count (runs of letters and digits as words, NLTK's Punkt as the
splitter into sentences), by rules of their own:

* a word of ``words`` is a run of letters, digits and combining marks: ``don't`` is two. A Han character or a kana is
  one;
* a word of ``tokens`` keeps inner hyphens and apostrophes: ``don't`` and ``well-known`` are one, ``3.14`` too;
* a word of ``chunks`` is what stands between white space, without punctuation at its ends;
* a sentence ends with ``.``, ``!``, ``?`` or an ellipsis before white space, or with a full stop of another script. It
  does not end after an abbreviation, an initial or the number of a list item, before a small letter that follows an
  ellipsis or a closing quote, and at a mere line break: a heading is part of the sentence after it. Emojis right after
  the end belong to it.
"""

import re
import string

MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u0d7f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u200c\u200d"
)
"""Characters, as in a character class, that are part of words and that ``\\w`` leaves out."""

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
KANA = "\u3041-\u3096\u30a1-\u30fa\u30fc"

PUNCTUATION = string.punctuation + "“”‘’‚„«»‹›…‥–—―¡¿·•。、，．！？；：（）［］｛｝【】《》〈〉「」『』～،؛؟۔।॥‽"
"""ASCII punctuation and that of the other scripts that answers are written in."""

EMOJI = "\u203c\u2049\u231a-\u23ff\u25aa-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b55\U0001f000-\U0001faff"
"""Pictographs, as in a character class, without those that are letters too (\u00a9, \u2122)."""


def word_set(text: str) -> frozenset[str]:
    """The words of a text, as a set: how this package writes its lists."""
    return frozenset(text.split())


_WORD = re.compile(rf"[{HAN}{KANA}]|(?:(?![{HAN}{KANA}])[\w{MARKS}])+")
_TOKEN = re.compile(rf"\d+(?:[.,]\d+)+|[\w{MARKS}]+(?:[-'\u2019][\w{MARKS}]+)*")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_JOINERS = "\ufe0f\u200d\u20e3"
_NOT_AT_ENDS = PUNCTUATION + string.whitespace
_DELETED = str.maketrans("", "", string.punctuation)

_CLOSING = "\"'\u201d\u2019\u00bb)\\]*_\u300d\u300f\uff09"
_STOPS = ".!?\u2026\u203d"
_END = re.compile(
    rf"(?:(?<![{_STOPS}])[{_STOPS}]++[{_CLOSING}]*+(?=\s|$|[{EMOJI}])|[\u3002\uff01\uff1f\uff61\u0964\u0965\u061f\u06d4]+[{_CLOSING}]*)"
    rf"(?:[^\S\n]*[{EMOJI}{_JOINERS}])*"
)
_RUN = re.compile(rf"[{_STOPS}]+")
_LAST_WORD = re.compile(r"[^\s(\[\"'\u201c\u2018*_]+$")
_NEXT = re.compile(r"\s*[\"'\u201c\u2018(\[*_]*(\S?)")
_BACK = 40
"""Characters before an end that are looked at."""

_TITLES = word_set(
    "mr mrs ms dr prof st jr sr rev hon gen col maj capt lt sgt gov sen rep pres mt ft vs cf approx dept"
)
"""Abbreviations after which the sentence goes on, whatever follows."""
_NUMBERED = word_set("no nos fig figs eq eqs sec ch vol pp p ed eds art para")
"""Abbreviations before a number."""
_SHORT = word_set(
    "etc inc ltd co corp llc u.s u.k u.n e.u a.m p.m ph.d b.sc m.sc al ave blvd rd est"
    " jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun"
)
"""Abbreviations after which a sentence may end: it does before a capital letter."""
_NEVER = word_set("e.g i.e viz")


def words(text: str) -> list[str]:
    """Runs of letters, digits and marks; each Han character and kana by itself."""
    return _WORD.findall(text)


def tokens(text: str) -> list[str]:
    """Words with their inner hyphens and apostrophes, numbers with their inner points and commas."""
    return _TOKEN.findall(text)


def chunks(text: str) -> list[str]:
    """What stands between white space, without punctuation at its ends; what is punctuation alone is left out."""
    return [word for chunk in text.split() if (word := chunk.strip(PUNCTUATION))]


def bare(text: str) -> str:
    """The text without ASCII punctuation: ``well-known`` becomes ``wellknown``."""
    return text.translate(_DELETED)


def trimmed(text: str) -> str:
    """The text in small letters, without white space and punctuation at its ends."""
    return text.strip(_NOT_AT_ENDS).lower()


def lines(text: str) -> list[str]:
    """Lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def paragraphs(text: str) -> list[str]:
    """Parts between blank lines, without white space round them."""
    return [part.strip() for part in _BLANK_LINES.split(text) if part.strip()]


def parts(text: str, divider: str) -> list[str] | None:
    """What stands between dividers, stripped; None where nothing stands between two of them."""
    found = [part.strip() for part in text.split(divider)]
    inner = found[1 if not found[0] else 0 : len(found) - 1 if not found[-1] else len(found)]
    return inner if all(inner) else None


def sentences(text: str) -> list[str]:
    """Sentences, without white space round them."""
    found, begin = [], 0
    for match in _END.finditer(text):
        if match.start() >= begin and _ends(text, match):
            found.append(text[begin : match.end()].strip())
            begin = match.end()
    found.append(text[begin:].strip())
    return [sentence for sentence in found if sentence]


def ends_with_emoji(text: str) -> bool:
    """Whether the last character is a pictograph, not counting punctuation after it."""
    return bool(_LAST_EMOJI.search(text.rstrip(_NOT_AT_ENDS + _JOINERS)))


_LAST_EMOJI = re.compile(rf"[{EMOJI}]\Z")


def _ends(text: str, match: re.Match[str]) -> bool:
    mark = match.group()
    if mark[0] not in _STOPS:
        return True
    following = _NEXT.match(text, match.end())
    next_letter = following.group(1) if following else ""
    if not next_letter:
        return True
    goes_on = next_letter.islower()
    stops = _RUN.match(mark)
    assert stops is not None
    closed, stop = mark[stops.end() :].strip(), stops.group()
    if goes_on and (closed[:1] in tuple("\"'\u201d\u2019\u00bb)") or stop in ("..", "...", "\u2026")):
        return False
    if stop != "." or closed:
        return True
    start = max(0, match.start() - _BACK)
    last = _LAST_WORD.search(text[start : match.start()])
    if last is None:
        return True
    word = last.group()
    if len(word) == 1 and word.isalpha() and word.isupper() and word != "I":
        return False
    if word.isdigit():  # the number of a list item stands alone before its point
        line = text.rfind("\n", start, match.start())
        before = text[line + 1 if line >= 0 else start : match.start()]
        return before.strip(" \t#>*_-") != word or (line < 0 and start > 0)
    word = word.lower()
    if word in _TITLES or word in _NEVER or (word in _NUMBERED and next_letter.isdigit()):
        return False
    return word not in _SHORT or next_letter.isupper()
