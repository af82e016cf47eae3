"""Tokens as whole characters, by hand."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from handmade_run import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from relax_core.show.tokens import Vocabulary, joined_pieces, pieces


def test_tokens_that_make_one_character_stand_together() -> None:
    # "é" is C3 A9; "a" is whole by itself
    assert pieces([b"a", b"\xc3", b"\xa9", b"b"]) == [(0, 1, "a"), (1, 2, "é"), (3, 1, "b")]


def test_a_token_may_end_one_character_and_begin_another() -> None:
    # "éü" is C3 A9 C3 BC, cut behind the first and behind the third byte
    assert pieces([b"x\xc3", b"\xa9\xc3", b"\xbc."]) == [(0, 3, "xéü.")]


def test_bytes_that_make_no_character_end_nothing() -> None:
    assert pieces([b"\xff", b"a"]) == [(0, 1, "�"), (1, 1, "a")]
    # C3 is never completed: a new text begins with "a"
    assert pieces([b"\xc3", b"a", b"b"]) == [(0, 1, "�"), (1, 1, "a"), (2, 1, "b")]
    assert pieces([b"a", b"\xe4", b"\xbd"]) == [(0, 1, "a"), (1, 2, "�")]
    assert pieces([]) == []


@given(st.text(max_size=30), st.lists(st.integers(0, 60), max_size=12))
def test_joined_pieces_are_the_text_wherever_it_is_cut(text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    tokens = [data[start:end] for start, end in pairwise(edges)]
    found = pieces(tokens)
    assert "".join(piece for _, _, piece in found) == text
    # every token is in one piece
    assert [at for start, count, _ in found for at in range(start, start + count)] == list(range(len(tokens)))


def test_a_byte_level_vocabulary_gives_the_bytes(tmp_path: Path) -> None:
    vocabulary = Vocabulary(byte_tokenizer(tmp_path))
    assert b"".join(map(vocabulary.bytes_of, "né\n ".encode())) == "né\n ".encode()
    assert vocabulary.bytes_of(256) == b"<|end|>"
    assert vocabulary.bytes_of(9999) == b"<9999>"
    assert joined_pieces(np.array(list("né".encode())), vocabulary) == [(1, 2, "é")]


def test_a_vocabulary_with_byte_fallback_gives_the_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models

    vocab = {"<unk>": 0, "\u2581the": 1, "<0xC3>": 2, "<0xA9>": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary(tmp_path)
    assert [vocabulary.bytes_of(token) for token in (1, 2, 3)] == [b" the", b"\xc3", b"\xa9"]


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Vocabulary(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is no tokenizer"):
        Vocabulary(tmp_path)
