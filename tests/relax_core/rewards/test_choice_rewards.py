"""gpqa, multiple_choice and f1 beyond their panel."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.rewards import registry
from relax_core.rewards.answer_text import answer_text
from relax_core.rewards.builtin.choices import gpqa, multiple_choice
from relax_core.rewards.builtin.text import ALL, NOTHING, f1, overlap
from relax_core.rewards.choice_text import Question, stated_letter
from relax_core.rewards.types import RewardInput

TEXT = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("ABCabci .:()*\n\\{}$answeri")))


def sample(response: str, label: Any, prompt: str = "p", **metadata: Any) -> RewardInput:
    return RewardInput("s-1", prompt, response, label, metadata)


@pytest.mark.parametrize("count", [2, 4, 5, 8, 10, 26])
@pytest.mark.parametrize(
    "form",
    ["The answer is ({}).", "The answer is {}.", "Answer: {}", "answer: {}", "**Answer:** {}", "\\boxed{{{}}}",
     "I choose {}.", "It follows.\n\n{}", "The correct option is **{}**", "答案是{}。"],
)  # fmt: skip
def test_every_letter_is_found_in_every_form(form: str, count: int) -> None:
    letters = string.ascii_uppercase[:count]
    for letter in letters:
        for written in (letter, letter.lower()):
            assert gpqa(sample(form.format(written), letter, valid_letters=letters)) == 1.0, (form, written)
        other = letters[letters.index(letter) - 1]
        assert gpqa(sample(form.format(letter), other, valid_letters=letters)) == 0.0


def test_a_label_that_names_no_choice_says_what_may_be_named() -> None:
    with pytest.raises(UserError, match=r"s-1 cannot be scored: the label 'Z' is none of the letters A, B, C"):
        gpqa(sample("A", "Z"))
    with pytest.raises(UserError, match=r"whether places count from 0 or 1 is not said.*label_base"):
        gpqa(sample("A", "1", choices=["x", "y"]))
    with pytest.raises(UserError, match=r"its label says C and metadata.correct_letter says B"):
        gpqa(sample("A", "C", correct_letter="B"))


@given(TEXT)
def test_no_response_makes_gpqa_raise(response: str) -> None:
    assert gpqa(sample(response, "B", choices=["a b", "c", "1", "="])) in (0.0, 1.0)
    assert gpqa(sample(response, "B")) in (0.0, 1.0)


@given(TEXT)
def test_a_text_states_a_letter_of_the_question_or_none(text: str) -> None:
    assert stated_letter(text, Question("ABC")) in {"A", "B", "C", "", None}


@given(
    st.text(alphabet=st.sampled_from("<answer>/AB ,\n")), st.sampled_from(["A", "<answer>B</answer>", "A, B", "ab a"])
)
def test_no_response_makes_multiple_choice_raise(response: str, label: str) -> None:
    assert multiple_choice(sample(response, label)) in (0.0, 1.0)


@given(st.text(max_size=20))
def test_without_a_tag_nothing_is_right(response: str) -> None:
    assert "<answer>" in response or multiple_choice(sample(response, "A")) == 0.0


def test_a_label_in_a_tag_is_told_as_one_of_multiple_choice() -> None:
    matches = registry.get("multiple_choice").matches
    assert matches is not None
    assert matches("<answer>A</answer>")
    assert matches(" <answer> (b). </answer> ")
    for label in ("A", "<answer>Paris</answer>", "so <answer>A</answer>", "<answer></answer>", 1, None):
        assert not matches(label)


@pytest.mark.parametrize(
    ("response", "answer", "precision", "recall", "score"),
    [
        ("the brown fox", "a quick brown fox", 1.0, 2 / 3, 0.8),
        ("New York City", "new york", 2 / 3, 1.0, 0.8),
        ("b b c", "b c c d", 2 / 3, 2 / 4, 4 / 7),  # shared: b, c
    ],
)
def test_overlap_counts_words(response: str, answer: str, precision: float, recall: float, score: float) -> None:
    assert overlap(response, answer) == pytest.approx((score, precision, recall))


def test_no_response_overlaps_with_nothing() -> None:
    assert overlap(None, "x") == NOTHING
    assert overlap(None, "") == NOTHING


WORDS = st.lists(st.sampled_from(["the", "a", "b", "c", "yes", "d"]), max_size=6).map(" ".join)


@given(WORDS, WORDS)
def test_overlap_is_symmetrical_and_from_0_to_1(one: str, two: str) -> None:
    forth, back = overlap(one, two), overlap(two, one)
    if (not forth.f1) == (not back.f1):  # where one is empty, the answer decides
        assert forth.f1 == pytest.approx(back.f1)
        assert (forth.precision, forth.recall) == pytest.approx((back.recall, back.precision))
    assert 0.0 <= forth.f1 <= 1.0


@given(st.text(min_size=1))
def test_a_text_overlaps_wholly_with_itself(text: str) -> None:
    assert overlap(text, text) == ALL


@given(st.text(), st.text())
def test_no_text_makes_f1_raise(response: str, label: str) -> None:
    assert 0.0 <= f1(sample(response, label)) <= 1.0


@pytest.mark.parametrize(
    ("response", "prompt", "text"),
    [
        (" a \n", "p", "a"),
        ("<think>x</think> a", "p", "a"),
        ("x</think>a", "p\n<think>\n", "a"),
        ("x", "p\n<think>\n", ""),  # the prompt opened the reasoning, and nothing closed it
        ("<think>x", "p", ""),
        ("a<|im_end|>", "p", "a"),
        ("a <|eot_id|>\n</s>", "p", "a"),
        ("a<｜end▁of▁sentence｜>", "p", "a"),
        ("<|im_end|> a", "p", "<|im_end|> a"),
        ("a <b>", "p", "a <b>"),
    ],
)
def test_the_answer_is_what_stands_after_the_reasoning(response: str, prompt: str, text: str) -> None:
    assert answer_text(sample(response, None, prompt)) == text
