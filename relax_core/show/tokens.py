"""Tokens as text, without breaking characters that several of them make.

Guarantee: the texts of all pieces, joined, are what the bytes of all tokens decode to where that is a text; a token
that is no whole character stands together with those that complete it; bytes that make no character become U+FFFD and
end nothing.
"""

import functools
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

Piece = tuple[int, int, str]
"""First token, number of tokens, text."""

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


class Vocabulary:
    """Bytes of the tokens of a Hugging Face folder.

    Args:
        folder: has ``tokenizer.json``.

    Raises:
        OSError, ValueError: the file is missing, or is no tokenizer.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from tokenizers import Tokenizer  # here: a tenth of a second that a terminal without tokens does not need

        path = os.path.join(folder, "tokenizer.json")
        if not os.path.isfile(path):
            raise FileNotFoundError(path)
        try:
            self._tokenizer: Any = Tokenizer.from_file(path)
        except Exception as error:  # tokenizers raises plain Exception
            raise ValueError(f"{path} is no tokenizer: {error}") from error
        decoder = self._tokenizer.decoder
        kinds = json.dumps(json.loads(decoder.__getstate__())) if decoder is not None else ""
        self._letters = _letters() if '"ByteLevel"' in kinds else None
        self._spaced = "Metaspace" in kinds or "\\u2581" in kinds or "▁" in kinds
        self._added = {number: token.content for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """UTF-8 of a token, or the part of a character that it is; its number where the tokenizer has none such."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._bytes(token)
        return found

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return str(self._added[token]).encode()
        text = self._tokenizer.id_to_token(token) if token >= 0 else None
        if text is None:
            return f"<{token}>".encode()
        if self._letters is not None:
            return b"".join(self._letters.get(letter) or letter.encode() for letter in text)
        if self._spaced:
            byte = _BYTE.match(text)
            return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()


@functools.lru_cache(maxsize=2)
def vocabulary_in(folder: str) -> Vocabulary:
    """``Vocabulary`` of a folder, read once in this process."""
    return Vocabulary(folder)


def _letters() -> dict[str, bytes]:
    """The byte that each letter of a byte-level vocabulary stands for: printable ones of Latin-1 for themselves, the
    others, in order, from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): bytes([byte]) for byte in plain} | {chr(256 + n): bytes([b]) for n, b in enumerate(other)}


def pieces(tokens: Sequence[bytes]) -> list[Piece]:
    """The tokens as whole characters.

    Args:
        tokens: bytes of each, in order.
    """
    found: list[Piece] = []
    start, held = 0, b""
    for at, own in enumerate(tokens):
        held += own
        text, whole = _decoded(held)
        if text is None and start < at:  # what came before is never completed
            found.append((start, at - start, held[: len(held) - len(own)].decode(errors="replace")))
            start, held = at, own
            text, whole = _decoded(held)
        if text is None:
            text, whole = held.decode(errors="replace"), True
        if whole:
            found.append((start, at + 1 - start, text))
            start, held = at + 1, b""
    if start < len(tokens):
        found.append((start, len(tokens) - start, held.decode(errors="replace")))
    return found


def _decoded(held: bytes) -> tuple[str | None, bool]:
    """The text, and whether it is whole; None: these bytes make no text, whatever follows."""
    try:
        return held.decode(), True
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and error.end == len(held):
            return "", False
        return None, False


def joined_pieces(ids: NDArray[Any], vocabulary: Vocabulary) -> list[Piece]:
    """Pieces of several tokens, and those whose text is not that of their token alone; all others are left out."""
    own = [vocabulary.bytes_of(token) for token in ids.tolist()]
    return [piece for piece in pieces(own) if piece[1] > 1]
