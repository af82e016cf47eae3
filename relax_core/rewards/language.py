"""Which language a text is in, by its script and its most frequent words.

Guarantee: linear in the text, the same answer in every process, no data to download; raises for no text.

A text's script decides where a language has one of its own; languages that share one are told apart by frequent words,
and by letters that only one of them has. What that cannot do: tell a language that is not listed from the listed one
that is most like it (Catalan looks like Spanish), or tell anything of a few words that are no function words.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import cache

from relax_core.rewards.language_words import ARABIC, CYRILLIC, DEVANAGARI, LATIN

LANGUAGES: Mapping[str, str] = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fr": "French", "gu": "Gujarati",
    "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "kn": "Kannada", "ko": "Korean", "ml": "Malayalam", "mr": "Marathi", "ne": "Nepali", "nl": "Dutch",
    "no": "Norwegian", "pa": "Punjabi", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
    "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian",
    "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""Codes of the languages that are known: all that IFEval asks for, and some that would be taken for one of them."""

SHARE = 0.75
"""Part of the letters that the language's script must have."""

KANA_SHARE = 0.1
"""Part of kana among kana and Han characters from which a text is Japanese."""

PARAGRAPH_WORDS = 20
"""A paragraph of so many words must be in the language by itself."""

LEAD, PARAGRAPH_LEAD = 0.05, 0.15
"""By how much another language must fit better before a text, or a long paragraph of it, is in that one."""

_RANGES = (
    ("latin", 0x0041, 0x024F), ("latin", 0x1E00, 0x1EFF), ("greek", 0x0370, 0x03FF), ("greek", 0x1F00, 0x1FFF),
    ("cyrillic", 0x0400, 0x052F), ("hebrew", 0x0590, 0x05FF), ("arabic", 0x0600, 0x077F), ("arabic", 0xFB50, 0xFDFF),
    ("arabic", 0xFE70, 0xFEFE), ("devanagari", 0x0900, 0x097F), ("bengali", 0x0980, 0x09FF),
    ("gurmukhi", 0x0A00, 0x0A7F), ("gujarati", 0x0A80, 0x0AFF), ("tamil", 0x0B80, 0x0BFF), ("telugu", 0x0C00, 0x0C7F),
    ("kannada", 0x0C80, 0x0CFF), ("malayalam", 0x0D00, 0x0D7F), ("thai", 0x0E00, 0x0E7F), ("hangul", 0x1100, 0x11FF),
    ("hangul", 0x3130, 0x318F), ("hangul", 0xAC00, 0xD7AF), ("kana", 0x3040, 0x30FF), ("han", 0x3400, 0x9FFF),
    ("han", 0xF900, 0xFAFF), ("han", 0x20000, 0x323AF),
)  # fmt: skip
_WEIGHTS = {"han": 2.5, "kana": 2.0, "hangul": 2.0}
"""What a letter counts for, so that a word counts about the same in every script."""

_SCRIPT_OF = {
    "he": "hebrew", "el": "greek", "bn": "bengali", "pa": "gurmukhi", "gu": "gujarati", "ta": "tamil", "te": "telugu",
    "kn": "kannada", "ml": "malayalam", "th": "thai", "ko": "hangul",
}  # fmt: skip
"""Languages that have a script for themselves here."""
_MIXED = {"ja": ("han", "kana"), "ko": ("hangul", "han"), "zh": ("han",)}
_ALONE = {script: code for code, script in _SCRIPT_OF.items()}
_SHARED: Mapping[str, Mapping[str, frozenset[str]]] = {
    script: {code: frozenset(text.split()) for code, text in lists.items()}
    for script, lists in (("latin", LATIN), ("cyrillic", CYRILLIC), ("arabic", ARABIC), ("devanagari", DEVANAGARI))
}
_SHARED_SCRIPT = {code: script for script, lists in _SHARED.items() for code in lists}

_LETTERS = {
    "vi": "ăđơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ", "pl": "ąęłńśźż", "cs": "ěřů", "hu": "őű", "ro": "șțţ",
    "tr": "ğı", "de": "ß", "es": "ñ", "pt": "ãõ", "fr": "œ", "da": "æø", "no": "æø", "uk": "іїєґ", "ru": "ыэё",
    "bg": "ъ", "fa": "پچژگ", "ur": "ٹڈڑںےہھ", "ar": "ةىيك", "mr": "ळ",
}  # fmt: skip
"""Letters that, in their script here, one language has (two: Danish and Norwegian)."""
_LETTER_FACTOR, _MOST_OF_LETTERS = 10.0, 0.3

_CODE = re.compile(r"```[^`]*(?:```|\Z)|`[^`\n]{0,200}`|https?://\S+|\$[^$\n]{1,200}\$|\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|[\u0300-\u036f\u064b-\u0652\u0900-\u0963])*")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


def detect(text: str) -> str | None:
    """The language that most of a text is in; None without letters, or where nothing tells.

    Code, addresses and formulas are not read.
    """
    text = _prose(text)
    scores = _scores(text, _scripts(text))
    best = max(scores.values(), default=0.0)
    found = [code for code, score in scores.items() if score == best > 0]
    return found[0] if len(found) == 1 else None


def is_in(text: str, language: str) -> bool:
    """Whether a text is in a language: nearly all letters are of its script, and no other language fits better.

    A text without letters is in none; one in the right script with nothing that tells languages apart passes. Long
    paragraphs are looked at by themselves too.

    Args:
        language: a code of ``LANGUAGES``.
    """
    text = _prose(text)
    if not _fits(text, language, LEAD):
        return False
    long = [part for part in _BLANK_LINE.split(text) if len(_WORD.findall(part)) >= PARAGRAPH_WORDS]
    return all(_fits(part, language, PARAGRAPH_LEAD) for part in long)


def share(text: str, language: str) -> float:
    """The part of a text's letters that is of a language, 0 to 1; 1 for a text without letters.

    Those of its script, or none of them where they are of another language.

    Args:
        language: a code of ``LANGUAGES``.
    """
    text = _prose(text)
    scripts = _scripts(text)
    total, mine = sum(scripts.values()), _of(language, scripts)
    if not total:
        return 1.0
    return sum(mine.values()) / total if _leads(text, language, mine, LEAD) else 0.0


def _fits(text: str, language: str, lead: float) -> bool:
    scripts = _scripts(text)
    mine = _of(language, scripts)
    enough = bool(mine) and sum(mine.values()) >= SHARE * sum(scripts.values())
    return enough and _leads(text, language, mine, lead)


def _leads(text: str, language: str, scripts: Mapping[str, float], lead: float) -> bool:
    scores = _scores(text, scripts)
    return max(scores.values(), default=0.0) <= scores.get(language, 0.0) + lead


def _prose(text: str) -> str:
    return unicodedata.normalize("NFC", _CODE.sub(" ", text))


@cache
def _script(letter: str) -> str | None:
    if not letter.isalpha():
        return None
    code = ord(letter)
    return next((script for script, first, last in _RANGES if first <= code <= last), "other")


def _scripts(text: str) -> dict[str, float]:
    """Script -> weight of its letters."""
    weights: dict[str, float] = {}
    for letter, count in Counter(text).items():
        script = _script(letter)
        if script is not None:
            weights[script] = weights.get(script, 0.0) + count * _WEIGHTS.get(script, 1.0)
    return weights


def _of(language: str, scripts: Mapping[str, float]) -> dict[str, float]:
    """The scripts of a text that a language is written in."""
    own = _MIXED.get(language) or (_SCRIPT_OF.get(language) or _SHARED_SCRIPT[language],)
    return {script: weight for script, weight in scripts.items() if script in own}


def _scores(text: str, scripts: Mapping[str, float]) -> dict[str, float]:
    """How well each language fits that has the script that most of the letters have."""
    joined: dict[str, float] = {}
    for script, weight in scripts.items():
        name = "han" if script == "kana" else script
        joined[name] = joined.get(name, 0.0) + weight
    if not joined:
        return {}
    script = max(joined, key=lambda name: joined[name])
    if script == "han":
        return {"ja" if scripts.get("kana", 0.0) >= KANA_SHARE * joined["han"] else "zh": 1.0}
    if script in _ALONE:
        return {_ALONE[script]: 1.0}
    return _shared_scores(text.lower(), _SHARED[script]) if script in _SHARED else {}


def _shared_scores(text: str, lists: Mapping[str, frozenset[str]]) -> dict[str, float]:
    """The part of the words that is in a language's list, and more for letters that it alone has."""
    found = Counter(_WORD.findall(text))
    letters = Counter(text)
    words, total = max(1, sum(found.values())), max(1, sum(count for one, count in letters.items() if one.isalpha()))
    scores = {}
    for code, listed in lists.items():
        hits = sum(count for word, count in found.items() if word in listed)
        own = sum(letters[letter] for letter in _LETTERS.get(code, ""))
        scores[code] = hits / words + min(_MOST_OF_LETTERS, _LETTER_FACTOR * own / total)
    return scores
