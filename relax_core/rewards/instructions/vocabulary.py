"""Instructions about kinds of English words: words:start_verb, words:odd_even_syllables.

Guarantee: both go by lists and rules and know no context: a word that may be a verb is one (``Water the plants`` is not
told from ``Water is wet``), and syllables of names and loanwords may be counted wrong by one.
"""

import re
from functools import cache
from itertools import pairwise

from relax_core.rewards.instructions.base import instruction
from relax_core.rewards.instructions.text import bare, chunks, word_set
from relax_core.rewards.instructions.verbs import IRREGULAR, NO_VERBS, VERBS

_VERB_ENDINGS = ("ize", "ise", "ify", "izes", "ises", "ifies", "ized", "ised", "ified")

_SYLLABLE = re.compile(r"[aeiouy]+")
_TWO_VOWELS = re.compile(
    r"(?<![tcs])ia(?!g)|(?<![tcsg])io(?!u|n)|(?<![tcsxg])iou|(?<![tcs])(?<!fr)ien|eo(?!u)|iu|ua(?!r)|ue(?=n)|ao|eum\b"
    r"|[aeiouy]ing\b|ier\b|iet|uou|[ao]y(?=er|al)|yo[^u]|creat(?!ure)|uid\b"
)
_SILENT_ED = re.compile(r"[^aeioutdl]ed\b|[aeiourl]led\b")
_SILENT_ES = re.compile(r"[^aeiousxzcghl]es\b|[aeioul]les\b|[^cs]hes\b")
_EXCEPTIONS = {
    "business": 2, "every": 2, "evening": 2, "different": 3, "people": 2, "colonel": 2, "area": 3, "idea": 3,
    "being": 2, "doing": 2, "going": 2, "seeing": 2, "poem": 2, "poet": 2, "poetry": 3, "science": 2, "quiet": 2,
    "diet": 2, "lion": 2, "riot": 2, "dial": 2, "trial": 2, "giant": 2, "real": 1, "really": 2, "queue": 1,
    "beautiful": 3, "favorite": 3, "something": 2, "someone": 2, "sometimes": 2, "somewhere": 2, "everyone": 3,
    "everything": 3, "therefore": 2, "moreover": 3, "whereas": 2, "create": 2, "created": 3, "creates": 2, "ocean": 2,
    "social": 2, "special": 2, "chocolate": 3, "vegetable": 4, "recipe": 3, "apostrophe": 4, "cafe": 2, "maybe": 2,
    "the": 1, "hundred": 2, "naked": 2, "wicked": 2, "sacred": 2, "rhythm": 2, "prism": 2, "useful": 2, "lovely": 2,
    "homework": 2, "safety": 2, "likely": 2, "movement": 2, "statement": 2, "careful": 2, "hopeful": 2,
    "ideas": 3, "ideal": 3, "reality": 4,
    "linear": 3, "nuclear": 3, "argue": 2, "fluid": 2, "european": 4, "guide": 1, "build": 1, "guy": 1, "guest": 1,
}  # fmt: skip
_SILENT_INSIDE = word_set("ly ment ful less ness time times where thing one work some fore land way day")


@instruction("words:start_verb")
def start_verb(text: str) -> bool:
    """The first word may be a verb, in any form."""
    found = chunks(text.lower())
    return bool(found) and is_verb(re.split("['\u2019-]", found[0])[0])


@instruction("words:odd_even_syllables")
def odd_even_syllables(text: str) -> bool:
    """Words with an odd and with an even number of syllables alternate."""
    found = [syllables(one) for chunk in chunks(text.lower()) if (one := bare(chunk))]
    return all(one % 2 != two % 2 for one, two in pairwise(found))


def is_verb(word: str) -> bool:
    """Whether an English word, in small letters, may be a verb."""
    if word in NO_VERBS:
        return False
    if word in _verb_forms() or word.endswith(_VERB_ENDINGS):
        return True
    return len(word) > 4 and word.endswith(("ing", "ed"))


def syllables(word: str) -> int:
    """Syllables of an English word, in small letters: its groups of vowels, without those that are not spoken."""
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    word = re.sub("[qg]u(?=[aeiou])", "q", word)
    count = len(_SYLLABLE.findall(word)) + len(_TWO_VOWELS.findall(word))
    if (
        (word.endswith("e") and not word.endswith(("le", "ee", "ie", "oe", "ye", "ue")))
        or word.endswith(("gue", "que", "ale", "ile", "ole", "ule", "ele", "yle"))
        or _SILENT_ED.search(word)
        or _SILENT_ES.search(word)
    ):
        count -= 1
    for ending in _SILENT_INSIDE:
        stem = word[: -len(ending)]
        if word.endswith(ending) and stem.endswith("e") and len(stem) > 3 and not stem.endswith(("ee", "ie", "le")):
            count -= 1
            break
    return max(1, count)


@cache
def _verb_forms() -> frozenset[str]:
    return frozenset(form for verb in VERBS for form in _forms(verb)) | IRREGULAR


def _forms(verb: str) -> tuple[str, ...]:
    """A verb's regular forms."""
    stem = verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else verb
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb, f"{verb[:-1]}ies", f"{verb[:-1]}ied", f"{verb}ing"
    plural = f"{verb}es" if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else f"{verb}s"
    doubled = f"{verb}{verb[-1]}"
    return verb, plural, f"{stem}ed", f"{stem}ing", f"{doubled}ed", f"{doubled}ing"
