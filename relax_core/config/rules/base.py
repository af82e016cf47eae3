"""What a rule is, and how rules are applied.

Guarantee: a rule says which options it reads and is left out when one of them is wrong by itself; what it finds is told
with the option, its value, where that came from, the reason and the fix.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from relax_core.config.options import find_option
from relax_core.config.problems import Problem, Severity
from relax_core.config.secrets import redact
from relax_core.config.values import Values

Purpose = Literal["train", "evaluate"]
"""What the configuration is for: the options that are required differ."""


@dataclass(frozen=True)
class Rule:
    """One condition between options that must not hold.

    Args:
        name: what the rule is called, in words with dashes; unique.
        option: the name of the option that is told.
        reads: every option that the condition reads, ``option`` included where it reads it.
        broken: the condition; true when the rule is broken. ``each`` instead: the places where it is broken, each with
            the fields that its text needs; a field ``value`` is told as the option's value.
        message: the reason, as a format text over option names, derived sizes and the fields of ``each``.
        fix: what to do about it, a format text too.
        severity: whether a run can go on.
        corrects: for a rule that mends what it finds: the options to set. Its message then says what is done; it is
            told as a warning.
        needs_model: the rule is judged only when the shape of the model is known.
        purpose: the rule is only for this purpose; None: for all.
        shows: False when the option's value says nothing (a switch).
    """

    name: str
    option: str
    reads: tuple[str, ...]
    message: str
    broken: Callable[[Values], Any] | None = None
    each: Callable[[Values], Iterable[Mapping[str, Any]]] | None = None
    fix: str = ""
    severity: Severity = "error"
    corrects: Callable[[Values], dict[str, Any]] | None = None
    needs_model: bool = False
    purpose: Purpose | None = None
    shows: bool = True

    def problems(self, values: Values, sources: Mapping[str, str]) -> Iterator[Problem]:
        """What is wrong by this rule."""
        places: Iterable[Mapping[str, Any]]
        if self.each is not None:
            places = self.each(values)
        else:
            assert self.broken is not None
            places = [{}] if self.broken(values) else []
        for place in places:
            yield self._problem(values, sources, place)

    def _problem(self, values: Values, sources: Mapping[str, str], place: Mapping[str, Any]) -> Problem:
        name = place.get("option", self.option)
        option = find_option(name)
        assert option is not None, f"the rule {self.name} tells of an unknown option {name}"
        value = place.get("value", values[name]) if self.shows else None
        shown = value if value is None or "value" in place else option.show(redact(name, value))
        if value is True or (value is False and "value" not in place):
            shown = None if value is True else "false"
        fields = _Fields(values, place)
        severity: Severity = "warning" if self.corrects else self.severity
        source = sources.get(name, "")
        return Problem(
            option.flag,
            shown,
            self.message.format_map(fields),
            self.fix.format_map(fields),
            severity,
            "" if source in ("", "default", "derived") else source,
        )


class _Fields(dict[str, Any]):
    """The fields of a message: those of a place first, then options and sizes as they are typed."""

    def __init__(self, values: Values, place: Mapping[str, Any]) -> None:
        super().__init__(place)
        self._values = values

    def __missing__(self, name: str) -> Any:
        option = find_option(name)
        value = self._values[name]
        return value if option is None else option.show(value)
