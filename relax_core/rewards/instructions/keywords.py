"""Instructions about keywords: keywords:*, count:keywords_multiple, count:count_increment_word, letters:*.

Guarantee: a keyword is a literal text, never a pattern, and case does not matter. It counts wherever it stands, inside
words too, unless the instruction is about words that must not be used.
"""

import itertools
import re
from collections.abc import Callable

from relax_core.rewards.instructions.base import count, instruction, letter, relation, word, word_list
from relax_core.rewards.instructions.text import HAN, KANA, chunks, sentences, tokens

Relation = Callable[[int, int], bool]

_UNSPACED = re.compile(rf"[{HAN}{KANA}\u0e00-\u0e7f]")


def occurrences(text: str, keyword: str) -> int:
    """How often a keyword stands in a text, without overlap."""
    return text.lower().count(keyword.lower())


def has_word(text: str, keyword: str) -> bool:
    """Whether a keyword stands in a text as a word of its own; anywhere in scripts without spaces."""
    if _UNSPACED.search(keyword):
        return occurrences(text, keyword) > 0
    return re.search(rf"(?<!\w){re.escape(keyword)}(?!\w)", text, re.IGNORECASE) is not None


@instruction("keywords:existence", keywords=word_list)
def existence(text: str, keywords: tuple[str, ...]) -> bool:
    """Every keyword is there."""
    return all(occurrences(text, keyword) for keyword in keywords)


@instruction("keywords:frequency", keyword=word, frequency=count, relation=relation)
@instruction("keywords:word_count_different_numbers", keyword=word, frequency=count, relation=relation)
def frequency(text: str, keyword: str, frequency: int, relation: Relation) -> bool:
    """A keyword is there less than, or at least, so often."""
    return relation(occurrences(text, keyword), frequency)


@instruction("keywords:word_once", keyword=word)
def word_once(text: str, keyword: str) -> bool:
    """A keyword is there exactly once."""
    return occurrences(text, keyword) == 1


@instruction("keywords:forbidden_words", forbidden_words=word_list)
def forbidden_words(text: str, forbidden_words: tuple[str, ...]) -> bool:
    """None of the words is used."""
    return not any(has_word(text, keyword) for keyword in forbidden_words)


@instruction("keywords:exclude_word_harder", keyword=word)
def exclude_word(text: str, keyword: str) -> bool:
    """A word is not used."""
    return not has_word(text, keyword)


@instruction("keywords:letter_frequency", letter=letter, let_frequency=count, let_relation=relation)
@instruction("letters:letter_counting2", letter=letter, let_frequency=count, let_relation=relation)
def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: Relation) -> bool:
    """A letter is there less than, or at least, so often."""
    return let_relation(occurrences(text, letter), let_frequency)


@instruction("letters:letter_counting", N=count, relation=relation)
def letter_counting(text: str, N: int, relation: Relation) -> bool:
    """The text has less than, or at least, so many letters."""
    return relation(sum(map(str.isalpha, text)), N)


@instruction("count:keywords_multiple", keyword1=word, keyword2=word, keyword3=word, keyword4=word, keyword5=word)
def keywords_multiple(text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """Five keywords are there exactly 1, 2, 3, 5 and 7 times."""
    wanted = {keyword1: 1, keyword2: 2, keyword3: 3, keyword4: 5, keyword5: 7}
    return all(occurrences(text, keyword) == times for keyword, times in wanted.items())


@instruction("count:count_increment_word", keyword1=word, keyword2=word)
def count_increment_word(text: str, keyword1: str, keyword2: str) -> bool:
    """One keyword is there once, the other twice."""
    return occurrences(text, keyword1) == 1 and occurrences(text, keyword2) == 2


@instruction("keywords:no_adjacent_consecutive")
def no_adjacent_consecutive(text: str) -> bool:
    """No word starts with the letter after that of the word before it."""
    first = [ord(chunk[0].lower()) for chunk in chunks(text)]
    return all(later - earlier != 1 for earlier, later in itertools.pairwise(first))


@instruction("keywords:palindrome")
def palindrome(text: str) -> bool:
    """A word of three letters or more reads the same backwards."""
    return any(len(token) >= 3 and token == token[::-1] for token in tokens(text.lower()))


@instruction("keywords:start_end")
def start_end(text: str) -> bool:
    """The first and the last word are the same, and nothing stands after it."""
    found = tokens(text.lower())
    return len(found) >= 2 and found[0] == found[-1] and text.rstrip().lower().endswith(found[-1])


@instruction("keywords:keyword_specific_position", keyword=word, n=count, m=count)
@instruction("words:keywords_specific_position", keyword=word, n=count, m=count)
def keyword_specific_position(text: str, keyword: str, n: int, m: int) -> bool:
    """A keyword is the m-th word of the n-th sentence."""
    found = sentences(text)
    if not 1 <= n <= len(found):
        return False
    in_sentence = tokens(found[n - 1])
    return 1 <= m <= len(in_sentence) and in_sentence[m - 1].lower() == keyword.lower()


@instruction("words:words_position", keyword=word)
def words_position(text: str, keyword: str) -> bool:
    """A keyword is the second and the second to last word."""
    found = tokens(text.lower())
    return len(found) >= 3 and found[1] == found[-2] == keyword.lower()


@instruction("sentence:keyword", word=word, N=count)
def sentence_keyword(text: str, word: str, N: int) -> bool:
    """A word stands in the N-th sentence."""
    found = sentences(text)
    return 1 <= N <= len(found) and has_word(found[N - 1], word)
