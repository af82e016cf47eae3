"""Instructions about sentences: sentence:*, ratio:*, first_word:*, last_word:*.

Guarantee: an instruction about each sentence after another needs two of them, and a ratio needs some of each kind: a
response that has none does not follow it.
"""

from itertools import pairwise

from relax_core.rewards.instructions.base import count, instruction, percent, text, word
from relax_core.rewards.instructions.lists import STOP_WORDS
from relax_core.rewards.instructions.text import bare, chunks, sentences, words

OVERLAP_TOLERANCE = 2.0
"""Percentage points."""

LETTERS_IN_A_GRAM = 3


@instruction("sentence:increment", small_n=count)
def increment(response: str, small_n: int) -> bool:
    """Each sentence has exactly so many words more than the one before."""
    lengths = [len(bare(sentence).split()) for sentence in sentences(response)]
    return len(lengths) > 1 and all(two - one == small_n for one, two in pairwise(lengths))


@instruction("sentence:alliteration_increment")
def alliteration_increment(response: str) -> bool:
    """Each sentence has a longer run of words with the same first letter than the one before."""
    runs = [_longest_run(chunks(sentence.lower())) for sentence in sentences(response)]
    return len(runs) > 1 and all(one < two for one, two in pairwise(runs))


@instruction("words:last_first")
def last_first(response: str) -> bool:
    """The last word of each sentence is the first one of the next."""
    found = [chunks(sentence.lower()) for sentence in sentences(response)]
    return len(found) > 1 and all(one and two and one[-1] == two[0] for one, two in pairwise(found))


@instruction("words:paragraph_last_first")
def paragraph_last_first(response: str) -> bool:
    """Each paragraph, on a line, ends with the word that it starts with."""
    found = [chunks(line.lower()) for line in response.splitlines()]
    return all(line[0] == line[-1] for line in found if line)


@instruction("ratio:stop_words", percentage=percent)
def stop_words(response: str, percentage: float) -> bool:
    """At most so many per cent of the words are stop words."""
    found = words(response.lower())
    return bool(found) and 100 * sum(one in STOP_WORDS for one in found) <= percentage * len(found)


@instruction("ratio:sentence_type")
def sentence_type(response: str) -> bool:
    """Twice as many sentences end with a full stop as with a question mark."""
    ends = _ends(response)
    return ends.count(".") == 2 * ends.count("?") > 0


@instruction("ratio:sentence_balance")
def sentence_balance(response: str) -> bool:
    """As many sentences end with a full stop as with a question mark and as with an exclamation mark."""
    ends = _ends(response)
    return ends.count(".") == ends.count("?") == ends.count("!") > 0


@instruction("ratio:sentence_words")
def sentence_words(response: str) -> bool:
    """Three sentences with the same number of characters, and no word twice."""
    found = sentences(response)
    used = chunks(response.lower())
    return len(found) == 3 and len(set(map(len, found))) == 1 and len(set(used)) == len(used)


@instruction("ratio:overlap", reference_text=text, percentage=percent)
def overlap(response: str, reference_text: str, percentage: float) -> bool:
    """So many per cent of the response's different three-letter pieces, 2 more or less, are in the reference too."""
    mine = _pieces(response)
    if not mine:
        return False
    return abs(100 * len(mine & _pieces(reference_text)) / len(mine) - percentage) <= OVERLAP_TOLERANCE


@instruction("first_word:first_word_sent", first_word=word)
def first_word_of_sentences(response: str, first_word: str) -> bool:
    """Every sentence starts with a word."""
    found = [chunks(sentence.lower()) for sentence in sentences(response)]
    return all(one and one[0] == first_word.lower() for one in found)


@instruction("first_word:first_word_answer", first_word=word)
def first_word_of_answer(response: str, first_word: str) -> bool:
    """The response starts with a word."""
    return chunks(response.lower())[:1] == [first_word.lower()]


@instruction("last_word:last_word_sent", last_word=word)
def last_word_of_sentences(response: str, last_word: str) -> bool:
    """Every sentence ends with a word, before its punctuation."""
    found = [chunks(sentence.lower()) for sentence in sentences(response)]
    return all(one and one[-1] == last_word.lower() for one in found)


@instruction("last_word:last_word_answer", last_word=word)
def last_word_of_answer(response: str, last_word: str) -> bool:
    """The response ends with a word, before its punctuation."""
    return chunks(response.lower())[-1:] == [last_word.lower()]


def _longest_run(found: list[str]) -> int:
    longest = run = min(1, len(found))
    for one, two in pairwise(found):
        run = run + 1 if one[0] == two[0] else 1
        longest = max(longest, run)
    return longest


def _ends(response: str) -> list[str]:
    """The last mark of each sentence that has one."""
    found = ("".join(mark for mark in sentence if mark in ".?!\u3002\uff1f\uff01") for sentence in sentences(response))
    return [marks[-1].translate(_WIDE) for marks in found if marks]


_WIDE = str.maketrans("\u3002\uff1f\uff01", ".?!")


def _pieces(text: str) -> set[str]:
    return {text[place : place + LETTERS_IN_A_GRAM] for place in range(len(text) - LETTERS_IN_A_GRAM + 1)}
