"""Rewards for mathematical answers in a box: ``math`` and ``deepscaler``.

Guarantee: exact arithmetic decides first, in the caller's process; what it leaves to sympy runs where it can be ended,
and what takes longer than ``SECONDS`` is no right answer. The rules are those of ``relax_core.rewards.answers``.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from relax_core.rewards.answer_text import answer_text
from relax_core.rewards.answers import symbolic
from relax_core.rewards.answers.boxed import last_box, last_boxes
from relax_core.rewards.answers.grading import at_once, verdict
from relax_core.rewards.answers.labels import label_text
from relax_core.rewards.answers.thinking import CLOSE
from relax_core.rewards.registry import register
from relax_core.rewards.types import UNDECIDED, RewardInput, Undecided

SECONDS = 10.0
"""Time limit of one answer; a longer --reward-timeout does not make it longer."""

_RESPONSE = "###Response"
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:/\d+)?|[-+]?\\[dt]?frac\{-?\d+\}\{\d+\}", re.ASCII)


def looks_like_number(label: Any) -> bool:
    """Whether a label is a signed number, decimal or fraction: what ``math`` is inferred from."""
    if isinstance(label, (int, float)):
        return not isinstance(label, bool)
    return isinstance(label, str) and _NUMBER.fullmatch(label.strip()) is not None


def _boxed_score(
    sample: RewardInput, part: Callable[[RewardInput], str], decide: Callable[[str, str], bool | None]
) -> float | Undecided | None:
    """1 or 0 for the last box of a part of the response; None without a label."""
    label = label_text(sample)
    if label is None:
        return None
    text = part(sample)
    answer = last_box(text)
    if answer is None:
        return 0.0
    decided = decide(label, answer)
    if decided is False and (several := last_boxes(text)) is not None:
        decided = decide(label, several)  # solutions in a box each
    return UNDECIDED if decided is None else float(decided)


def _after_marker(sample: RewardInput) -> str:
    """The answer; of a response without thinking, what follows ``###Response``, where that stands."""
    if CLOSE not in sample.response and _RESPONSE in sample.response:
        sample = replace(sample, prompt="", response=sample.response.rpartition(_RESPONSE)[2])
    return answer_text(sample)


def _quick_math(sample: RewardInput) -> float | Undecided | None:
    return _boxed_score(sample, answer_text, at_once)


def _quick_deepscaler(sample: RewardInput) -> float | Undecided | None:
    return _boxed_score(sample, _after_marker, at_once)


@register(
    "math",
    quick=_quick_math,
    isolated=True,
    matches=looks_like_number,
    seconds=SECONDS,
    late=0.0,
    prepare=symbolic.prepare,
)
def math(sample: RewardInput) -> Any:
    """1 when the last box of the answer is the label's answer, else 0.

    No score where the label is empty.

    Raises:
        UserError: no label, or one that is neither text nor a number.
    """
    return _boxed_score(sample, answer_text, verdict)


@register("deepscaler", quick=_quick_deepscaler, isolated=True, seconds=SECONDS, late=0.0, prepare=symbolic.prepare)
def deepscaler(sample: RewardInput) -> Any:
    """As math; without ``</think>`` the part after ``###Response`` counts, where the response has that.

    A response with neither marker, of a model that does not think, counts as a whole.

    Raises:
        UserError: as for ``math``.
    """
    return _boxed_score(sample, _after_marker, verdict)
