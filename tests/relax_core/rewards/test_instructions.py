"""ifbench: every instruction of the public tasks, and what is said of wrong ones."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.rewards.builtin.ifbench import ifbench
from relax_core.rewards.instructions.base import instructions, read
from relax_core.rewards.instructions.text import word_set
from relax_core.rewards.types import RewardInput

PANEL = Path(__file__).resolve().parents[2] / "data/rewards/ifbench.jsonl"

IFEVAL = word_set("""
    keywords:existence keywords:frequency keywords:forbidden_words keywords:letter_frequency
    language:response_language length_constraints:number_sentences length_constraints:number_paragraphs
    length_constraints:number_words length_constraints:nth_paragraph_first_word detectable_content:number_placeholders
    detectable_content:postscript detectable_format:number_bullet_lists detectable_format:constrained_response
    detectable_format:number_highlighted_sections detectable_format:multiple_sections detectable_format:json_format
    detectable_format:title combination:two_responses combination:repeat_prompt startend:end_checker
    startend:quotation change_case:capital_word_frequency change_case:english_capital change_case:english_lowercase
    punctuation:no_comma""")
IFBENCH = word_set("""
    count:word_count_range count:unique_word_count count:conjunctions count:person_names count:numbers
    count:punctuation count:words_japanese count:pronouns count:keywords_multiple ratio:stop_words ratio:sentence_type
    ratio:sentence_balance ratio:overlap ratio:sentence_words words:alphabet words:vowel words:consonants
    words:palindrome words:prime_lengths words:start_verb words:repeats words:odd_even_syllables words:last_first
    words:paragraph_last_first words:no_consecutive words:keywords_specific_position words:words_position
    sentence:alliteration_increment sentence:keyword sentence:increment format:parentheses format:quotes
    format:options format:newline format:emoji format:line_indent format:quote_unquote format:list format:thesis
    format:sub-bullets format:no_bullets_bullets format:title_case format:output_template format:no_whitespace
    repeat:repeat_change repeat:repeat_simple repeat:repeat_span custom:multiples custom:mcq_count_length
    custom:reverse_newline custom:word_reverse custom:character_reverse custom:sentence_alphabet
    custom:european_capitals_sort custom:csv_city custom:csv_special_character custom:csv_quotes
    custom:date_format_list""")
IF_RLVR = word_set("""
    copy:repeat_phrase copy:copy new:copy_span_idx detectable_format:sentence_hyphens
    keywords:no_adjacent_consecutive detectable_format:square_brackets keywords:word_once
    keywords:word_count_different_numbers keywords:exclude_word_harder paragraphs:paragraphs paragraphs:paragraphs2
    first_word:first_word_sent first_word:first_word_answer last_word:last_word_sent last_word:last_word_answer
    detectable_format:bigram_wrapping copy:copying_simple copy:copying_multiple punctuation:punctuation_dot
    punctuation:punctuation_exclamation count:lowercase_counting letters:letter_counting letters:letter_counting2
    count:counting_composition count:count_unique count:count_increment_word keywords:palindrome
    keywords:keyword_specific_position keywords:start_end""")


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PANEL.read_text().splitlines()]


def single(row: dict[str, Any]) -> tuple[str, Any] | None:
    """Id and kwargs of a row with one instruction that is right."""
    names = row["metadata"].get("instruction_id_list")
    if not isinstance(names, list) or len(names) != 1 or row["score"] == "error":
        return None
    return names[0], row["metadata"].get("kwargs", [None])[0]


EXAMPLES = dict(found for row in rows() if (found := single(row)))
"""Id -> kwargs with which it is right."""


def sample(response: str, names: Any, arguments: Any, **fields: Any) -> RewardInput:
    metadata = {"instruction_id_list": names, "kwargs": arguments}
    return RewardInput("s-1", "p", response, metadata=metadata, **fields)


def test_the_instructions_are_those_of_the_public_tasks() -> None:
    assert (len(IFEVAL), len(IFBENCH), len(IF_RLVR)) == (25, 58, 29)
    assert set(instructions()) == {*IFEVAL, *IFBENCH, *IF_RLVR}


def test_every_instruction_is_followed_and_broken_in_the_panel() -> None:
    scores = defaultdict(set)
    for row in rows():
        if found := single(row):
            scores[found[0]].add(row["score"])
    assert {name for name in instructions() if not {0, 1} <= scores[name]} == set()


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("aA1 .!?\n\"'*-#<>[]{}():,;。😀"))))
def test_no_response_makes_a_check_raise(response: str) -> None:
    for name, arguments in EXAMPLES.items():
        [check] = read([name], [arguments], "s")
        assert check.follows(response) in (True, False)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(EXAMPLES)), st.text(alphabet=st.sampled_from('aA. \n*"[')))
def test_only_an_instruction_that_is_followed_scores(name: str, response: str) -> None:
    value = ifbench(sample(response, [name], [EXAMPLES[name]]))
    assert value is not None
    assert value["score"] == value["followed"] == value[name]


@pytest.mark.parametrize("name", instructions())
def test_a_blank_response_follows_nothing(name: str) -> None:
    assert ifbench(sample(" \n", [name], [EXAMPLES[name]])) == {"score": 0.0, "followed": 0.0, name: 0.0}


@pytest.mark.parametrize("name", [name for name, one in instructions().items() if one.arguments])
def test_a_missing_argument_is_named(name: str) -> None:
    for argument in instructions()[name].arguments:
        given = {key: value for key, value in EXAMPLES[name].items() if key != argument}
        with pytest.raises(UserError, match=rf"s-1.*{name} lacks '{argument}'"):
            ifbench(sample("x", ["punctuation:no_comma", name], [{}, given]))


@pytest.mark.parametrize("name", [name for name, one in instructions().items() if one.arguments])
def test_a_wrong_argument_is_named_with_what_it_must_be(name: str) -> None:
    for argument in instructions()[name].arguments:
        for wrong in (True, {"a": 1}, -2, float("nan"), float("inf"), " "):
            with pytest.raises(UserError, match=rf"s-1.*'{argument}' of the instruction {name} is .*; it must be"):
                ifbench(sample("x", [name], [{**EXAMPLES[name], argument: wrong}]))


def test_an_unknown_id_says_which_is_nearest_before_anything_is_checked() -> None:
    with pytest.raises(UserError, match=r"s-1.*'format:listing'.*Did you mean 'format:list'"):
        ifbench(sample("a, b", ["punctuation:no_comma", "format:listing"], [{}, {}]))


def test_each_instruction_is_kept_beside_the_score() -> None:
    names = ["punctuation:no_comma", "keywords:word_once", "keywords:word_once"]
    value = ifbench(sample("the sea", names, [{}, {"keyword": "sea"}, {"keyword": "sky"}]))
    assert value == {
        "score": 0.0,
        "followed": pytest.approx(2 / 3),
        "punctuation:no_comma": 1.0,
        "keywords:word_once": 1.0,
        "keywords:word_once#2": 0.0,
    }
    assert next(iter(value)) == "score"


def test_a_keyword_is_no_pattern() -> None:
    bomb = "(a+)+$"  # as a pattern it would take for ever
    assert ifbench(sample("a" * 5000 + "!", ["keywords:existence"], [{"keywords": [bomb]}]))["score"] == 0.0
    assert (
        ifbench(sample("a" * 5000 + "!", ["keywords:forbidden_words"], [{"forbidden_words": [bomb]}]))["score"] == 1.0
    )


@pytest.mark.parametrize("piece", ["[", "(", '"', "'", "<<", "*", "* ", "```", "{", "<i>", "Section ", ". ", "\n", "-"])
def test_a_long_run_of_one_mark_is_read_in_a_moment(piece: str) -> None:
    """A quadratic check would take minutes for a hundred thousand of them."""
    for name, arguments in EXAMPLES.items():
        [check] = read([name], [arguments], "s")
        check.follows(piece * (100_000 // len(piece)) + "x")
