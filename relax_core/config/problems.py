"""What is wrong with an option, and the one error that lists all of it.

Guarantee: a person who made five mistakes learns of five, each in a paragraph of its own with the option, the value,
where the value came from, the reason and the fix. It shows no secret (see ``relax_core.config.secrets``) and no
character that a terminal would not print.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from data.errors import UserError
from relax_core.config.secrets import redact, redact_text

Severity = Literal["error", "warning"]

MAX_SHOWN = 100
"""An error lists no more problems."""

_LONGEST_VALUE = 80
_LONGEST_OPTION = 200


@dataclass(frozen=True)
class Problem:
    """One mistake, or one thing to know.

    Args:
        option: the option as the person writes it: `--lr`, or `optimizer.lr in run.yaml`.
        value: its value; None when the mistake is that there is none.
        reason: why that cannot be.
        fix: what to do about it; empty when the reason says it.
        severity: whether a run can go on with it.
        origin: where the value came from; empty when that is said already, or when there is none.
    """

    option: str
    value: Any
    reason: str
    fix: str = ""
    severity: Severity = "error"
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.shown_reason}{f' {self.shown_fix}' if self.fix else ''}"

    @property
    def what(self) -> str:
        """Option, value and origin: `--lr -1 (file run.yaml)`."""
        value = self.shown_value
        origin = f" ({printable(redact_text(self.origin))})" if self.origin else ""
        return f"{self.shown_option}{'' if value is None else f' {value}'}{origin}"

    @property
    def shown_option(self) -> str:
        """The option, cut where it is long."""
        return _cut(printable(redact_text(self.option)), _LONGEST_OPTION) or '""'

    @property
    def shown_value(self) -> str | None:
        """The value as it would be typed, cut where it is long; None when there is none."""
        return None if self.value is None else show_value(redact(option_name(self.option), self.value))

    @property
    def shown_reason(self) -> str:
        """The reason on one line."""
        return printable(redact_text(self.reason))

    @property
    def shown_fix(self) -> str:
        """The fix on one line."""
        return printable(redact_text(self.fix))


def option_name(option: str) -> str:
    """`--wandb-key`, `sglang.sglang_api_key in run.yaml` and `RELAX_HTTP_PROXY` as the name of an option."""
    word = option.split(" ", 1)[0].lstrip("-").rpartition(".")[2]
    return (
        word.removeprefix("RELAX_").lower().replace("-", "_") if word.startswith("RELAX_") else word.replace("-", "_")
    )


def show_value(value: Any) -> str:
    """A value as it would be typed, cut where it is long."""
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        text = " ".join(_word(item) for item in value)
    else:
        text = _word(value)
    return _cut(printable(text), _LONGEST_VALUE)


def printable(text: str) -> str:
    """A text on one line, with characters that cannot be seen written as Python writes them."""
    text = " ".join(text.split("\n")) if "\n" in text else text
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value) if value != "" else '""'


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def errors_of(problems: Iterable[Problem]) -> list[Problem]:
    """Those that stop a run."""
    return [problem for problem in problems if problem.severity == "error"]


def told(problems: Sequence[Problem]) -> list[str]:
    """Problems as texts, ``MAX_SHOWN`` of them, and how many more there are."""
    more = len(problems) - MAX_SHOWN
    return [*map(str, problems[:MAX_SHOWN]), *([f"... and {more} more."] if more > 0 else [])]


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise one `UserError` that lists every error; return when there is none."""
    errors = errors_of(problems)
    if len(errors) == 1:
        raise UserError(f"{errors[0].what}: {errors[0].shown_reason}", errors[0].shown_fix)
    if errors:
        raise UserError(f"{len(errors)} options are wrong.", details="\n".join(told(errors)))
