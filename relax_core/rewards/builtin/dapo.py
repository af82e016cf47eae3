"""The reward ``dapo``: the last "Answer:" near the end of the response, 1 or -1.

Guarantee: fractions and decimals are compared exactly (0 is not 0.5), and Markdown, leading zeros and a full stop do
not matter. Always a dict of the same keys.
"""

import re
from collections.abc import Callable
from typing import Any

from relax_core.rewards.answer_text import opens_reasoning
from relax_core.rewards.answers import symbolic
from relax_core.rewards.answers.boxed import last_box
from relax_core.rewards.answers.grading import at_once, verdict
from relax_core.rewards.answers.labels import label_text
from relax_core.rewards.answers.thinking import CLOSE, final_part
from relax_core.rewards.builtin.math import SECONDS
from relax_core.rewards.registry import register
from relax_core.rewards.types import UNDECIDED, RewardInput, Undecided

WINDOW = 300
"""Characters at the end of a response that are looked at."""
INVALID = "[INVALID]"
"""``pred`` of a response without an answer."""

_ANSWER = re.compile(r"answer(?:\*\*|__)?\s*[:：][ \t]*([^\n]*)", re.IGNORECASE)
_ENDING = re.compile(r"<\|[\w ]{1,30}\|>\s*|</s>\s*")
_AROUND = " \t\r*_`\"'"


def stated_answer(response: str) -> str | None:
    """What follows the last "Answer:" within the last ``WINDOW`` characters, on its line; None without one."""
    found = None
    for match in _ANSWER.finditer(response[-WINDOW:]):
        text = _ENDING.sub("", match[1]).strip(_AROUND)
        if text:
            found = text
    if found is None:
        return None
    boxed = last_box(found)
    return found.rstrip(".").rstrip(_AROUND) if boxed is None else boxed


def _score(sample: RewardInput, decide: Callable[[str, str], bool | None]) -> dict[str, Any] | Undecided | None:
    label = label_text(sample)
    if label is None:
        return None
    inside = CLOSE not in sample.response and opens_reasoning(sample.prompt)
    answer = None if inside else stated_answer(final_part(sample.response))
    right = False if answer is None else decide(label, answer)
    if right is None:
        return UNDECIDED
    return {"score": 1.0 if right else -1.0, "acc": float(right), "pred": INVALID if answer is None else answer}


def _quick(sample: RewardInput) -> dict[str, Any] | Undecided | None:
    return _score(sample, at_once)


@register("dapo", quick=_quick, isolated=True, seconds=SECONDS, late=-1.0, prepare=symbolic.prepare, key="score")
def dapo(sample: RewardInput) -> Any:
    """1 when the last "Answer:" of the last 300 characters is the label, else -1; a dict (--reward-key score).

    Returns:
        ``score`` (1 or -1), ``acc`` (1 or 0), ``pred`` (the answer as read); None where the label is empty.

    Raises:
        UserError: no label, or one that is neither text nor a number.
    """
    return _score(sample, verdict)
