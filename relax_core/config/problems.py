"""What is wrong with an option, and the one error that lists all of it.

Guarantee: a person who made five mistakes learns of five, each in a paragraph of its own with the option, the value,
the reason and the fix.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from data.errors import UserError


@dataclass(frozen=True)
class Problem:
    """One mistake.

    Args:
        option: the option as the person writes it: `--lr`, or `optimizer.lr in run.yaml`.
        value: its value; None when the mistake is that there is none.
        reason: why that cannot be.
        fix: what to do about it; empty when the reason says it.
    """

    option: str
    value: Any
    reason: str
    fix: str = ""

    def __str__(self) -> str:
        shown = "" if self.value is None else f" {show_value(self.value)}"
        return f"{self.option}{shown}: {self.reason}{f' {self.fix}' if self.fix else ''}"


def show_value(value: Any) -> str:
    """A value as it would be typed, cut where it is long."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def nearest(name: str, names: Iterable[str]) -> str:
    """`Did you mean A?`, or `A or B` where two are about as near; an empty text when nothing is near."""
    close = difflib.get_close_matches(name, sorted(names), n=2, cutoff=0.65)
    likeness = [difflib.SequenceMatcher(None, candidate, name).ratio() for candidate in close]
    close = [candidate for candidate, ratio in zip(close, likeness, strict=True) if ratio >= likeness[0] - 0.05]
    return f"Did you mean {' or '.join(close)}?" if close else ""


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise one `UserError` that lists every problem; return when there is none."""
    if len(problems) == 1:
        raise UserError(str(Problem(problems[0].option, problems[0].value, problems[0].reason)), problems[0].fix)
    if problems:
        raise UserError(f"{len(problems)} options are wrong.", details="\n".join(map(str, problems)))
