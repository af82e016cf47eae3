"""What probably happened to a value that an option does not accept.

Guarantee: a hint is one sentence that says what to change; where nothing is likely there is none.
"""

import re

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d"
"""Characters that look like `-`."""

_MEANT = (
    (DASHES, "-"),
    ("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", 'a straight "'),
    ("\u2018\u2019\u201a\u201b\u2032", "a straight '"),
    ("\u00a0\u2000\u2001\u2002\u2003\u2007\u2009\u200a\u202f\u3000", "a space"),
    ("\u200b\u200c\u200d\u2060\ufeff\u00ad", "nothing"),
)
"""Characters that a web page or a word processor puts in the place of others, and what is meant."""

_TYPOGRAPHIC = re.compile(f"[{''.join(characters for characters, _ in _MEANT)}]")


def plain_dashes(text: str) -> str:
    """A text with `-` for every character that looks like it, and without those that cannot be seen."""
    return re.sub(f"[{_MEANT[-1][0]}]", "", re.sub(f"[{DASHES}]", "-", text))


def pasted(text: str) -> str:
    """What a web page or a word processor made of a text; empty for nothing."""
    found = _TYPOGRAPHIC.search(text)
    if found is None:
        return ""
    meant = next(plain for characters, plain in _MEANT if found[0] in characters)
    return f"It has the character U+{ord(found[0]):04X}, as pasted text does, where {meant} is meant."


def likely_cause(words: list[str], kind: str, *, unsets: bool) -> str:
    """What the shell, a web page or a habit made of the words of a value; empty for nothing.

    Args:
        words: as they were given.
        kind: the kind of the option.
        unsets: `none` unsets the option.
    """
    for word in words:
        if hint := pasted(word):
            return hint
    word = " ".join(words)
    if kind == "list" and (word.startswith("[") or "," in word):
        return f"Items are words of their own: {' '.join(word.strip('[]').replace(',', ' ').split())}."
    if len(words) != 1:
        return ""
    if unsets and word.lower() in ("none", "null", "nil"):
        return "Write none to unset it."
    if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'":
        return "The quotes are a part of the value here: leave them out."
    if kind == "json":
        return _of_json(word)
    if len(word) > 1 and word.endswith(","):
        return "Leave the comma out."
    if "${" in word or word.startswith("$"):
        return "A variable of the environment is written {env:NAME}, and in a run file only."
    return ""


def _of_json(text: str) -> str:
    if "'" in text and '"' not in text:
        return "JSON takes double quotes inside: '{\"key\": 1}'."
    if text.startswith("{") and '"' not in text:
        return "The shell took the double quotes away: put single quotes round the whole value."
    return ""
