"""Backslash escapes of ``$'...'``, ``printf`` and ``echo -e``.

Guarantee: an escape that is not known stays as it is written.
"""

import re

_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "E": "\x1b"}
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|c(.)|(.))", re.DOTALL
)


def unescape(text: str, quotes: bool = True) -> str:
    """The text with its escapes replaced; ``quotes`` says whether a backslash may stand before a quote."""

    def replace(match: re.Match[str]) -> str:
        octal, short, four, eight, control, other = match.groups()
        if octal:
            return chr(int(octal, 8) & 0xFF)
        if short or four or eight:
            code = int(short or four or eight, 16)
            return chr(code) if code < 0x110000 else match.group()
        if control:
            return chr(ord(control) & 0x1F)
        return _LETTERS.get(other) or (other if other in ("\\'\"?" if quotes else "\\") else match.group())

    return _ESCAPE.sub(replace, text)
