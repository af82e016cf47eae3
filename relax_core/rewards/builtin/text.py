"""The reward ``f1``: words shared with the label, as SQuAD counts them.

Guarantee: from 0 to 1, linear in the response, which makes nothing raise; a response and a label that say the same up
to case, punctuation, articles and spaces have 1.
"""

import re
import unicodedata
from collections import Counter
from typing import Any, NamedTuple

from data.errors import UserError
from relax_core.rewards.answer_text import answer_text
from relax_core.rewards.registry import register
from relax_core.rewards.types import RewardInput

EXACT = frozenset(("yes", "no", "noanswer"))
"""Answers that are right as a whole or not at all."""

_ARTICLES = frozenset(("a", "an", "the"))
_UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")


class Overlap(NamedTuple):
    """How much of two texts is shared, each from 0 to 1."""

    f1: float
    precision: float
    recall: float


NOTHING = Overlap(0.0, 0.0, 0.0)
ALL = Overlap(1.0, 1.0, 1.0)


@register("f1")
def f1(sample: RewardInput) -> float:
    """F1 of the words of response and label (a list: the best of its answers), normalised as SQuAD does; 0 to 1."""
    response = answer_text(sample)
    return max(overlap(response, answer).f1 for answer in _answers(sample))


def overlap(response: str | None, answer: str) -> Overlap:
    """Word overlap after ``normalised``; words count as often as both have them.

    ``yes``, ``no`` and ``noanswer`` overlap with themselves alone. Where nothing of the answer is left (``the``), the
    texts must be the same with their articles; an empty answer is met by an empty response, or ``noanswer``.

    Args:
        response: None counts as no response: nothing overlaps.
        answer: the right one.
    """
    if response is None:
        return NOTHING
    given, wanted = normalised(response), normalised(answer)
    if not wanted:
        given, wanted = normalised(response, articles=True), normalised(answer, articles=True)
        return ALL if given == wanted or (not wanted and "".join(given) == "noanswer") else NOTHING
    if given == wanted:
        return ALL
    if " ".join(given) in EXACT or " ".join(wanted) in EXACT:
        return NOTHING
    shared = (Counter(given) & Counter(wanted)).total()
    if not shared:
        return NOTHING
    precision, recall = shared / len(given), shared / len(wanted)
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def normalised(text: str, *, articles: bool = False) -> list[str]:
    """Words in small letters, without punctuation and articles; each Han character and kana is a word.

    Args:
        articles: keep ``a``, ``an`` and ``the``.
    """
    text = text.lower()
    left_out = {ord(one): None for one in set(text) if one in _SIGNS or unicodedata.category(one).startswith("P")}
    letters = text.translate(left_out)
    words = _UNSPACED.sub(r" \1 ", letters).split()
    return words if articles else [word for word in words if word not in _ARTICLES]


_SIGNS = frozenset("$+<=>^`|~")
"""ASCII punctuation that Unicode calls symbols; SQuAD leaves it out too."""


def _answers(sample: RewardInput) -> list[str]:
    label: Any = sample.label
    found = label if isinstance(label, list | tuple) else [label]
    if not found:
        return [""]
    if label is None or not all(_is_answer(one) for one in found):
        raise UserError(
            f"Sample {sample.sample_id} cannot be scored by f1: its label is {label!r:.60}.",
            "Give a text, or a list of texts that are all right; an empty one where no answer is right.",
        )
    return [one if isinstance(one, str) else format(one, ".15g") for one in found]


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value == value
