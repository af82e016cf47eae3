"""Instructions about case, language and the letters of words: change_case:*, language:*, and some of words:*.

Guarantee: languages are told by ``relax_core.rewards.language``; vowels and consonants are those of English.
"""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from relax_core.rewards.instructions.base import count, instruction, language, relation
from relax_core.rewards.instructions.text import bare, chunks, tokens
from relax_core.rewards.language import is_in

Relation = Callable[[int, int], bool]

_VOWELS = frozenset("aeiou")
_CONSONANTS = frozenset("bcdfghjklmnpqrstvwxyz")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_PRIMES = frozenset(n for n in range(2, 98) if all(n % d for d in range(2, n)))

PALINDROMES, PALINDROME_LETTERS = 10, 5


@instruction("language:response_language", language=language)
def response_language(text: str, language: str) -> bool:
    """The response is in a language, and every long paragraph of it."""
    return is_in(text, language)


@instruction("change_case:capital_word_frequency", capital_frequency=count, capital_relation=relation)
def capital_word_frequency(text: str, capital_frequency: int, capital_relation: Relation) -> bool:
    """Less than, or at least, so many words are in capital letters; ``A`` and ``I`` count."""
    return capital_relation(sum(token.isupper() for token in tokens(text)), capital_frequency)


@instruction("change_case:english_capital")
def english_capital(text: str) -> bool:
    """English, in capital letters alone."""
    return text.isupper() and is_in(text, "en")


@instruction("change_case:english_lowercase")
def english_lowercase(text: str) -> bool:
    """English, in small letters alone."""
    return text.islower() and is_in(text, "en")


@instruction("words:alphabet")
def alphabet(text: str) -> bool:
    """Each word starts with the letter after that of the word before it, a after z."""
    first = [one[0] for one in _bare_words(text)]
    in_order = all(later == _next_letter(earlier) for earlier, later in pairwise(first))
    return bool(first) and first[0] in _ALPHABET and in_order


@instruction("words:consonants")
def consonants(text: str) -> bool:
    """Every word has two consonants side by side; y is one."""
    return all(
        any(one in _CONSONANTS and two in _CONSONANTS for one, two in pairwise(word)) for word in chunks(text.lower())
    )


@instruction("words:vowel")
def vowel(text: str) -> bool:
    """One paragraph, with at most three of the five vowels."""
    given = text.strip().lower()
    return "\n" not in given and len(_VOWELS.intersection(given)) <= 3


@instruction("words:palindrome")
def palindromes(text: str) -> bool:
    """At least ten words of five letters or more read the same backwards."""
    found = _bare_words(text)
    return sum(len(one) >= PALINDROME_LETTERS and one == one[::-1] for one in found) >= PALINDROMES


@instruction("words:prime_lengths")
def prime_lengths(text: str) -> bool:
    """The length of every word is a prime number."""
    return all(len(one) in _PRIMES for one in _bare_words(text))


@instruction("words:no_consecutive")
def no_consecutive(text: str) -> bool:
    """No two words in a row start with the same letter."""
    return all(one[0] != two[0] for one, two in pairwise(_bare_words(text)))


@instruction("words:repeats", small_n=count)
def repeats(text: str, small_n: int) -> bool:
    """No word is used more than so many times."""
    return all(times <= small_n for times in Counter(_bare_words(text)).values())


def _bare_words(text: str) -> list[str]:
    return [one for chunk in chunks(text.lower()) if (one := bare(chunk))]


def _next_letter(letter: str) -> str:
    place = _ALPHABET.find(letter)
    return "" if place < 0 else _ALPHABET[(place + 1) % 26]
