"""Instructions about lengths and counts: length_constraints:*, paragraphs:*, count:*.

Guarantee: what a word, a sentence and a paragraph is, is said in ``text``; every count is of the whole response.
"""

import re
from collections.abc import Callable

from relax_core.rewards.instructions.base import count, instruction, relation, word
from relax_core.rewards.instructions.lists import CONJUNCTIONS, PERSON_NAMES, PRONOUNS
from relax_core.rewards.instructions.text import HAN, KANA, chunks, paragraphs, parts, sentences, tokens, words

Relation = Callable[[int, int], bool]

_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?")
_LOWERCASE = re.compile(r"(?<![\w])[a-z]+(?![\w])")
_JAPANESE = re.compile(rf"[{HAN}{KANA}]")
_FIRST_WORD = re.compile(r"[^\s.,?!'\"]+")


@instruction("length_constraints:number_words", num_words=count, relation=relation)
def number_words(text: str, num_words: int, relation: Relation) -> bool:
    """The text has less than, or at least, so many words."""
    return relation(len(words(text)), num_words)


@instruction("length_constraints:number_sentences", num_sentences=count, relation=relation)
def number_sentences(text: str, num_sentences: int, relation: Relation) -> bool:
    """The text has less than, or at least, so many sentences."""
    return relation(len(sentences(text)), num_sentences)


@instruction("length_constraints:number_paragraphs", num_paragraphs=count)
def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """The text has exactly so many paragraphs with ``***`` between them."""
    found = parts(text, "***")
    return found is not None and len(found) == num_paragraphs


@instruction("paragraphs:paragraphs")
def two_paragraphs(text: str) -> bool:
    """The text has two paragraphs with ``***`` between them."""
    return number_paragraphs(text, 2)


@instruction("paragraphs:paragraphs2")
def two_paragraphs_of_lines(text: str) -> bool:
    """The text has two paragraphs with a blank line between them."""
    return len(paragraphs(text)) == 2


@instruction("length_constraints:nth_paragraph_first_word", num_paragraphs=count, nth_paragraph=count, first_word=word)
def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """The text has exactly so many paragraphs, by blank lines, and one of them starts with a word."""
    found = paragraphs(text)
    if len(found) != num_paragraphs or not 1 <= nth_paragraph <= len(found):
        return False
    first = _FIRST_WORD.match(found[nth_paragraph - 1].lstrip("'\""))
    return first is not None and first.group().lower() == first_word.lower()


@instruction("count:word_count_range", min_words=count, max_words=count)
def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    """The number of words is in a range."""
    return min_words <= len(words(text)) <= max_words


@instruction("count:unique_word_count", N=count)
def unique_word_count(text: str, N: int) -> bool:
    """At least N different words are used."""
    return len(set(chunks(text.lower()))) >= N


@instruction("count:count_unique")
def count_unique(text: str) -> bool:
    """No word is used twice."""
    found = tokens(text.lower())
    return len(found) == len(set(found))


@instruction("count:lowercase_counting", N=count)
def lowercase_counting(text: str, N: int) -> bool:
    """At most N words are in small letters."""
    return len(_LOWERCASE.findall(text)) <= N


@instruction("count:counting_composition", n_sent=count, n_words=count)
def counting_composition(text: str, n_sent: int, n_words: int) -> bool:
    """Three paragraphs with ``* * *`` or ``***`` between them, of so many sentences of so many words."""
    found = parts(text.replace("* * *", "***"), "***")
    if found is None or len(found) != 3:
        return False
    split = [sentences(part) for part in found]
    return all(len(one) == n_sent for one in split) and all(
        len(tokens(one)) == n_words for part in split for one in part
    )


@instruction("count:conjunctions", small_n=count)
def conjunctions(text: str, small_n: int) -> bool:
    """At least so many of the seven coordinating conjunctions are used."""
    return len(CONJUNCTIONS.intersection(chunks(text.lower()))) >= small_n


@instruction("count:person_names", N=count)
def person_names(text: str, N: int) -> bool:
    """At least N of the fifty names of the instruction are mentioned."""
    return len(PERSON_NAMES.intersection(re.findall(r"\w+", text))) >= N


@instruction("count:pronouns", N=count)
def pronouns(text: str, N: int) -> bool:
    """At least N words are pronouns, those with a shortened verb (``it's``) among them."""
    found = (token.partition("'")[0].partition("\u2019")[0] for token in tokens(text.lower()))
    return sum(token in PRONOUNS for token in found) >= N


@instruction("count:numbers", N=count)
def numbers(text: str, N: int) -> bool:
    """Exactly N numbers in digits are in the text; 3.14 and 1,234 are one."""
    return len(_NUMBER.findall(text)) == N


@instruction("count:punctuation")
def punctuation(text: str) -> bool:
    """Each of ``. , ! ? ; :`` is used, and an interrobang besides."""
    for interrobang in ("?!", "!?", "\u203d"):
        if interrobang in text:
            rest = text.replace(interrobang, "", 1)
            return all(mark in rest for mark in ".,!?;:")
    return False


@instruction("count:words_japanese", N=count)
def words_japanese(text: str, N: int) -> bool:
    """Every N-th word, between spaces, is in Japanese, unless it is a number."""
    every = chunks(text)[N - 1 :: N] if N else []
    return all(_JAPANESE.search(one) or one.isdigit() for one in every)
