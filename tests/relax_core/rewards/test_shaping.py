"""Shaping terms: their cases, bounds, and plain loops beside them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.rewards import shaping


@pytest.mark.parametrize(
    ("response", "valid"),
    [
        ("<think>a</think>b", True),
        ("\n<think>\na\n</think>\n\nb", True),
        ("<think><think>a</think></think>b", False),  # nested
        ("<think>a</think><think>b</think>c", False),  # twice
        ("<think>a", False),  # not closed
        ("a</think>b", False),  # not opened
        ("x<think>a</think>b", False),  # text before it
        ("</think>a<think>b", False),
        ("<think>a</think>", False),  # no answer
        ("<think> </think>b", False),  # no thought
        ("a", False),
        ("", False),
    ],
)
def test_a_format_is_one_thought_and_an_answer(response: str, valid: bool) -> None:
    assert shaping.format_valid(response) is valid


def test_a_thought_that_the_prompt_opened_needs_no_mark() -> None:
    assert shaping.format_valid("a</think>b", opened=True)
    assert not shaping.format_valid("<think>a</think>b", opened=True)


@pytest.mark.parametrize(
    ("rest", "valid"),
    [
        ("<answer>b</answer>", True),
        ("\n<answer>b</answer>\n", True),
        ("b", False),
        ("<answer></answer>", False),
        ("<answer>b</answer>c", False),
        ("c<answer>b</answer>", False),
        ("<answer>b</answer><answer>c</answer>", False),
    ],
)
def test_an_answer_block_must_be_all_that_follows(rest: str, valid: bool) -> None:
    assert shaping.format_valid(f"<think>a</think>{rest}", answer=True) is valid


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (16384, 0.0), (18432, -0.5), (20480, -1.0), (20481, -1.0), (10**9, -1.0)]
)
def test_soft_overlong_falls_within_the_buffer(length: int, penalty: float) -> None:
    assert shaping.soft_overlong(length, 20480, 4096) == penalty
    assert math.copysign(1.0, shaping.soft_overlong(0, 20480, 4096)) == 1.0  # 0, not -0


@pytest.mark.parametrize(("longest", "buffer"), [(10, 0), (10, -1), (10, 11), (0, 1)])
def test_a_buffer_that_makes_no_sense_is_refused(longest: int, buffer: int) -> None:
    with pytest.raises(ValueError, match="buffer"):
        shaping.soft_overlong(5, longest, buffer)


@given(st.integers(0, 400), st.integers(1, 200), st.data())
def test_soft_overlong_never_rises(length: int, longest: int, data: st.DataObject) -> None:
    buffer = data.draw(st.integers(1, longest))
    here, next_one = (shaping.soft_overlong(n, longest, buffer) for n in (length, length + 1))
    assert -1.0 <= next_one <= here <= 0.0
    expected = longest - buffer  # DAPO, eq. 13
    plain = 0.0 if length <= expected else (expected - length) / buffer if length <= longest else -1.0
    assert here == pytest.approx(plain)


@pytest.mark.parametrize(
    ("tokens", "n", "penalty"),
    [
        ([5, 5, 5, 5, 5], 2, -0.75),  # 1 different of 4
        ([1, 2, 1, 2, 1, 2], 2, -0.6),  # 2 different of 5
        ([1], 2, 0.0),
        ([], 1, 0.0),
        ([1, 2, 3], 2, 0.0),
        (["go", "go"], 1, -0.5),
    ],
)
def test_repeated_n_grams_are_penalised(tokens: list[int], n: int, penalty: float) -> None:
    assert shaping.repetition(tokens, n, -1.0) == pytest.approx(penalty)


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5), st.floats(-10, 0))
def test_repetition_is_what_a_plain_loop_counts(tokens: list[int], n: int, most: float) -> None:
    seen, again, total = [], 0, 0
    for place in range(len(tokens)):
        gram = tokens[place : place + n]
        if len(gram) == n:
            total += 1
            again += gram in seen
            seen.append(gram)
    expected = most * again / total if total else 0.0
    assert shaping.repetition(tokens, n, most) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "most"), [(0, -1.0), (2, 1.0), (2, float("nan")), (2, float("-inf"))])
def test_a_repetition_penalty_that_makes_no_sense_is_refused(n: int, most: float) -> None:
    with pytest.raises(ValueError, match="n-grams"):
        shaping.repetition([1, 2], n, most)


def test_words_of_a_repetition_are_words_or_han_characters() -> None:
    assert shaping.repetition_words("Go, go 一二 AI") == ["go,", "go", "一", "二", "ai"]


def test_the_distance_to_a_wanted_length_is_bounded() -> None:
    assert [shaping.length_distance(n, 100, 50) for n in (100, 75, 125, 50, 0, 9999)] == [0, -0.5, -0.5, -1, -1, -1]
    with pytest.raises(ValueError, match="width of 0"):
        shaping.length_distance(1, 1, 0)


def test_a_cosine_goes_from_one_end_to_the_other() -> None:
    values = [shaping.cosine_length(n, 100, 2.0, 1.0) for n in (0, 50, 100, 200)]
    assert values == pytest.approx([2.0, 1.5, 1.0, 1.0])
    assert shaping.cosine_length(25, 100, 1.0, 0.0) == pytest.approx(0.5 * (1 + math.sqrt(0.5)))


@given(st.integers(0, 300), st.integers(1, 200), st.floats(-5, 5), st.floats(-5, 5))
def test_a_cosine_stays_between_its_ends(length: int, longest: int, at_start: float, at_end: float) -> None:
    value = shaping.cosine_length(length, longest, at_start, at_end)
    assert min(at_start, at_end) - 1e-9 <= value <= max(at_start, at_end) + 1e-9


def test_lengths_within_a_group_reward_short_right_answers() -> None:
    # shortest 10, longest 30: 0.5 - (n - 10) / 20; wrong ones at most 0
    assert shaping.group_lengths([10, 20, 30, 10, 30], [True, True, True, False, False]) == [0.5, 0.0, -0.5, 0.0, -0.5]
    assert shaping.group_lengths([7, 7], [True, False]) == [0.0, 0.0]
    assert shaping.group_lengths([], []) == []
    with pytest.raises(ValueError, match="2 lengths of 1"):
        shaping.group_lengths([1, 2], [True])


def test_language_consistency_is_the_part_of_the_letters() -> None:
    assert shaping.language_consistency("This is all in English.", "en") == 1.0
    assert shaping.language_consistency("这都是中文。", "en") == 0.0
    assert 0.5 < shaping.language_consistency("先算 x，然后 then 得到答案是四十二。", "zh") < 1.0
    with pytest.raises(ValueError, match="no language 'xx'"):
        shaping.language_consistency("x", "xx")


@given(st.text())
def test_no_text_makes_a_term_raise(text: str) -> None:
    assert shaping.format_valid(text) in (True, False)
    assert shaping.format_valid(text, answer=True, opened=True) in (True, False)
    assert -1.0 <= shaping.repetition(shaping.repetition_words(text), 2, -1.0) <= 0.0
    assert 0.0 <= shaping.language_consistency(text, "zh") <= 1.0
