"""The text of a response that is graded: its answer, without reasoning and without end marks of the chat format.

Guarantee: linear in the response; a response that ends inside its reasoning has no answer, whether the model or the
prompt opened it.
"""

import re

from relax_core.rewards.answers.thinking import CLOSE, OPEN, final_part
from relax_core.rewards.types import RewardInput

_END_MARK = re.compile(r"(?:<\|\w{1,40}\|>|<\uff5c[^<>\s]{1,40}\uff5c>|</s>|<eos>|<end_of_turn>)\Z")
_MOST_MARKS, _LONGEST_MARK = 8, 48


def answer_text(sample: RewardInput) -> str:
    """What stands after the reasoning, stripped. Reasoning that the prompt opens (it ends with ``<think>``) counts."""
    if CLOSE not in sample.response and opens_reasoning(sample.prompt):
        return ""
    return without_end_marks(final_part(sample.response))


def opens_reasoning(prompt: str) -> bool:
    """Whether a response to a prompt starts inside the reasoning."""
    return prompt.rstrip().endswith(OPEN)


def without_end_marks(text: str) -> str:
    """A text, stripped, without marks such as ``<|im_end|>`` at its end."""
    text = text.strip()
    for _ in range(_MOST_MARKS):
        mark = _END_MARK.search(text[-_LONGEST_MARK:])
        if mark is None:
            break
        text = text[: len(text) - len(mark.group())].rstrip()
    return text
