"""The label of a problem as text.

Guarantee: a label that cannot be an answer is a ``UserError`` that names the sample, the label and the fix; an empty
one is None: there is nothing to grade against.
"""

import math
from typing import Any

from data.errors import UserError
from relax_core.rewards.answers.boxed import last_box
from relax_core.rewards.types import RewardInput

MAX_BITS = 4096
"""Of an integer."""

NAME_LABELS = "Name the column of the answers with --label-key (--eval-label-key for evaluation)."
"""What to do where a sample has no label."""


def label_text(sample: RewardInput, label: Any = ...) -> str | None:
    """The answer that a label gives; of one with a box, the content of its last one.

    Args:
        sample: whose label it is.
        label: in place of the sample's own.

    Raises:
        UserError: no label, or one that is no text and no number.
    """
    label = sample.label if label is ... else label
    if label is None:
        raise UserError(
            f"Sample {sample.sample_id} has no label to compare with.",
            NAME_LABELS,
        )
    text = _text(label)
    if text is None:
        shown = f"a {type(label).__name__}" if isinstance(label, int) else repr(label)
        raise UserError(
            f"The label of sample {sample.sample_id} is neither text nor a number: "
            f"{shown[:80]}{'…' * (len(shown) > 80)}.",
            "Give the answer as text, e.g. '\\\\frac{1}{2}', or as a number, or choose another --rm-type.",
        )
    if "box" in text and (boxed := last_box(text)) is not None:
        return boxed
    return text.strip() or None


def _text(label: Any) -> str | None:
    """A text or a number as text; None for what is neither."""
    if isinstance(label, str):
        return label
    if isinstance(label, bool) or not isinstance(label, (int, float)):
        return None
    if isinstance(label, float):
        return repr(label) if math.isfinite(label) else None
    return str(label) if label.bit_length() < MAX_BITS else None
