"""How a text is cut into words, sentences and paragraphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.rewards.instructions import text as cut
from relax_core.rewards.instructions.vocabulary import is_verb, syllables


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("no capital. none here.", ["no capital.", "none here."]),
        ("Dr. Smith met Mr. Jones.", ["Dr. Smith met Mr. Jones."]),
        ("J. K. Rowling wrote it. So did I. Yes.", ["J. K. Rowling wrote it.", "So did I.", "Yes."]),
        ("Fruit, e.g. apples, etc. And so on.", ["Fruit, e.g. apples, etc.", "And so on."]),
        ("See no. 5. I say no. Go.", ["See no. 5.", "I say no.", "Go."]),
        ("It is 3.14 now. Yes", ["It is 3.14 now.", "Yes"]),
        ("1. One\n2. Two.\n3. Three.", ["1. One\n2. Two.", "3. Three."]),
        ("In 2020. Then.", ["In 2020.", "Then."]),
        ("Well... yes. Well... Yes.", ["Well... yes.", "Well...", "Yes."]),
        ('"Who?" he asked. "I." (Me.) End.', ['"Who?" he asked.', '"I."', "(Me.)", "End."]),
        ("# A heading\n\nA sentence.", ["# A heading\n\nA sentence."]),
        ("**Bold.** Next.", ["**Bold.**", "Next."]),
        ("Hi! 😀 Bye 👋. 👍🏽 End", ["Hi! 😀", "Bye 👋. 👍🏽", "End"]),
        ("What?! Really‽ Yes", ["What?!", "Really‽", "Yes"]),
        ("你好。你是谁？“好！”他说。", ["你好。", "你是谁？", "“好！”", "他说。"]),
        ("यह है। वह है।", ["यह है।", "वह है।"]),
        ("", []),
        (" \n", []),
        ("...", ["..."]),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, sentences: list[str]) -> None:
    assert cut.sentences(text) == sentences


def test_words_are_runs_of_letters_digits_and_marks() -> None:
    assert cut.words("Don't stop: 3.5 km") == ["Don", "t", "stop", "3", "5", "km"]
    assert cut.words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]  # combining vowels are part of words
    assert cut.words("我爱AI, ねこ") == ["我", "爱", "AI", "ね", "こ"]


def test_tokens_keep_what_joins_inside() -> None:
    assert cut.tokens("Don't-stop, 1,234.5 - it’s o'clock.") == ["Don't-stop", "1,234.5", "it’s", "o'clock"]


def test_chunks_stand_between_spaces_without_marks_at_their_ends() -> None:
    assert cut.chunks("**Well-known**, (no) — and/or…") == ["Well-known", "no", "and/or"]


def test_paragraphs_stand_between_blank_lines() -> None:
    assert cut.paragraphs("\na\nb\n \n\n\nc ") == ["a\nb", "c"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a***b", ["a", "b"]),
        ("***a***b***", ["a", "b"]),
        ("a******b", None),  # nothing between two dividers
        ("a", ["a"]),
        ("", []),
    ],
)
def test_parts_stand_between_dividers(text: str, parts: list[str] | None) -> None:
    assert cut.parts(text, "***") == parts


def test_an_emoji_at_the_end_may_have_marks_after_it() -> None:
    assert cut.ends_with_emoji("yes 👍🏽!")
    assert cut.ends_with_emoji("yes ❤️")
    assert not cut.ends_with_emoji("yes ©")
    assert not cut.ends_with_emoji("👍 yes")
    assert not cut.ends_with_emoji("")


@given(st.text(alphabet=st.sampled_from("aA1 .!?…\n\"')(*-。😀e.g")))
def test_sentences_keep_every_character_but_white_space_between_them(text: str) -> None:
    assert "".join("".join(cut.sentences(text)).split()) == "".join(text.split())


@given(st.text())
def test_every_way_of_cutting_takes_any_text(text: str) -> None:
    for way in (cut.words, cut.tokens, cut.chunks, cut.lines, cut.paragraphs, cut.sentences):
        assert all(piece.strip() for piece in way(text))
    assert cut.ends_with_emoji(text) in (True, False)


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("the", 1), ("cat", 1), ("make", 1), ("makes", 1), ("walked", 1), ("wanted", 2), ("table", 2), ("houses", 2),
        ("apple", 2), ("being", 2), ("idea", 3), ("created", 3), ("quantum", 2), ("quality", 3), ("science", 2),
        ("various", 3), ("experience", 4), ("layer", 2), ("every", 2), ("implement", 3), ("university", 5),
        ("battled", 2), ("varied", 2), ("statement", 2), ("strengths", 1), ("rhythm", 2), ("hm", 1),
    ],
)  # fmt: skip
def test_syllables_are_counted_as_they_are_spoken(word: str, count: int) -> None:
    assert syllables(word) == count


@pytest.mark.parametrize(
    "word", ["run", "running", "consider", "is", "wrote", "tries", "stopped", "maximize", "zooming"]
)
def test_forms_of_verbs_are_verbs(word: str) -> None:
    assert is_verb(word)


@pytest.mark.parametrize("word", ["the", "morning", "during", "indeed", "however", "cat", "noise", "king"])
def test_other_words_are_no_verbs(word: str) -> None:
    assert not is_verb(word)
