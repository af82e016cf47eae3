"""Rewards for responses in a given form: ``openr1mm`` (``<answer>``) and ``geo3k`` (thinking, then a box).

Guarantee: a form that is broken is told, never repaired; answers are graded as by ``math``.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Any

from relax_core.rewards.answer_text import answer_text, opens_reasoning
from relax_core.rewards.answers import symbolic
from relax_core.rewards.answers.boxed import last_box
from relax_core.rewards.answers.grading import at_once, verdict
from relax_core.rewards.answers.labels import label_text
from relax_core.rewards.answers.thinking import CLOSE, OPEN
from relax_core.rewards.builtin.math import SECONDS
from relax_core.rewards.registry import register
from relax_core.rewards.types import UNDECIDED, RewardInput, Undecided

ACCURACY, FORMAT = 0.9, 0.1
"""Parts of the two in ``geo3k``."""

_TAGS = (CLOSE, "<answer>", "</answer>")
_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_STATED = re.compile(r"answer(?: is|:)\s*:?\s*(?P<answer>[^\n]{1,200})", re.IGNORECASE)
_NUMBERS = re.compile(
    r"(?<![\w.])[-+]?(?:\\[dt]?frac\{-?\d+\}\{-?\d+\}|\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?%?", re.ASCII
)
_TAKEN_BEFORE = re.compile(r"(?:[\^_{\\/]|[\w)}]\*{1,2}|\bnot\s+|\d\s*,\s*|\d\s+(?:or|and)\s+)\Z")
_TAKEN_BEHIND = re.compile(r"[\^_}]|\*\w")
"""What makes of the last number of a text a part of something else: of a power or a root, of several answers."""

_LONGEST = 4000

Decide = Callable[[str, str], bool | None]


def tagged_answer(response: str) -> str | None:
    """Text of the last ``<answer>``, without spaces round it; None without one."""
    _, opened, rest = response.rpartition("<answer>")
    if not opened:
        return None
    inside, closed, _ = rest.partition("</answer>")
    return inside.strip() if closed else None


def candidate(text: str) -> str:
    """The answer that a text gives: its last box, else its last mathematics, else its last number, else itself."""
    boxed = last_box(text)
    if boxed is not None:
        return boxed
    text = text[-_LONGEST:]
    stated = deque(_STATED.finditer(text), maxlen=1)
    scope = stated[0]["answer"] if stated else text
    found = deque(_MATH.finditer(scope), maxlen=1)
    if found:
        mathematics = next(part for part in found[0].groups() if part).strip()
        after = _NUMBERS.findall(scope, found[0].end())
        return after[-1] if after and not any(map(str.isdigit, mathematics)) else mathematics
    numbers = deque(_NUMBERS.finditer(scope), maxlen=1)
    if (
        numbers
        and not _TAKEN_BEFORE.search(scope, 0, numbers[0].start())
        and not _TAKEN_BEHIND.match(scope, numbers[0].end())
    ):
        return numbers[0].group()
    return scope.strip().rstrip(".")


def _openr1mm(sample: RewardInput, decide: Decide) -> float | Undecided | None:
    label = label_text(sample)
    if label is None:
        return None
    label = tagged_answer(label) or label
    if any(sample.response.count(tag) > 1 for tag in _TAGS):
        return 0.0
    answer = answer_text(sample)
    tagged = tagged_answer(answer)
    text = answer if tagged is None else tagged
    if not text:
        return 0.0
    if text == label:
        return 1.0
    whole = decide(label, text) if tagged is not None else False
    if whole:
        return 1.0
    part = candidate(text)
    found = whole if part == text else decide(label, part)
    if found:
        return 1.0
    return UNDECIDED if whole is None or found is None else 0.0


def _geo3k(sample: RewardInput, decide: Decide) -> float | Undecided | None:
    label: Any = sample.label
    if isinstance(label, dict):
        label = next((label[key] for key in ("ground_truth", "answer") if label.get(key) is not None), "")
    text = label_text(sample, label)
    if text is None:
        return 0.0
    answer = last_box(answer_text(sample))
    right = False if answer is None else decide(text, answer)
    if right is None:
        return UNDECIDED
    opened = OPEN if opens_reasoning(sample.prompt) else ""
    return ACCURACY * right + FORMAT * thinks_then_boxes(opened + sample.response)


def thinks_then_boxes(response: str) -> bool:
    """Whether a response is one block of thinking and a box after it."""
    response = response.strip()
    if response.count(OPEN) != 1 or response.count(CLOSE) != 1 or not response.startswith(OPEN):
        return False
    return last_box(response.partition(CLOSE)[2]) is not None


def _quick_openr1mm(sample: RewardInput) -> float | Undecided | None:
    return _openr1mm(sample, at_once)


def _quick_geo3k(sample: RewardInput) -> float | Undecided | None:
    return _geo3k(sample, at_once)


@register("openr1mm", quick=_quick_openr1mm, isolated=True, seconds=SECONDS, late=0.0, prepare=symbolic.prepare)
def openr1mm(sample: RewardInput) -> Any:
    """1 when the text of ``<answer>``, or the last answer of a response without it, is the label's; else 0.

    More than one ``</think>``, ``<answer>`` or ``</answer>`` is 0. No score where the label is empty.

    Raises:
        UserError: no label, or one that is neither text nor a number.
    """
    return _openr1mm(sample, verdict)


@register("geo3k", quick=_quick_geo3k, isolated=True, seconds=SECONDS, late=0.0, prepare=symbolic.prepare)
def geo3k(sample: RewardInput) -> Any:
    """0.9 for the right last box, and 0.1 for the form: a block of thinking, then a box. 0 where the label is empty.

    The label may be a dict with ``ground_truth`` or ``answer``.

    Raises:
        UserError: no label, or one that is neither text nor a number.
    """
    return _geo3k(sample, verdict)
