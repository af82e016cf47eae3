"""Cases for the rules between options.

Guarantee: ``check_case`` shows for one rule that some options break it, with the text that a person reads, and that
others keep it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs import valid_config

from relax_core.config.examine import Report, examine
from relax_core.config.options import get_option
from relax_core.config.rules.base import Rule
from relax_core.config.values import Values


class Case(NamedTuple):
    """How one rule is broken and kept.

    Args:
        broken: options that break it.
        text: part of what is told: `--lr 1: ...`.
        kept: options that keep it.
        becomes: for a rule that corrects, the values that it sets.
    """

    broken: dict[str, Any]
    text: str
    kept: dict[str, Any]
    becomes: dict[str, Any] = {}  # noqa: RUF012  (never changed)


def report_of(folder: Path, options: dict[str, Any]) -> Report:
    """What the check says of a small valid run with these options changed; `{folder}` in a text is replaced."""
    return examine(valid_config(folder, **{name: _placed(value, folder) for name, value in options.items()}))


def problems_of(folder: Path, rule: Rule, options: dict[str, Any]) -> list[str]:
    """What one rule says of the run that comes out when these options are changed."""
    report = report_of(folder, options)
    values = Values(report.config, report.model, frozenset(options))
    return [str(problem) for problem in rule.problems(values, {})]


def check_case(folder: Path, rules: Sequence[Rule], name: str, case: Case) -> None:
    """Hold a rule to a case."""
    [rule] = [rule for rule in rules if rule.name == name]
    report = report_of(folder, case.broken)
    text = _placed(case.text, folder)
    told = [problem for problem in report.problems if text in str(problem)]
    assert len(told) == 1, [str(problem) for problem in report.problems]
    assert told[0].severity == ("warning" if rule.corrects else rule.severity)
    assert bool(case.becomes) == (rule.corrects is not None)
    assert {option: get_option(report.config, option) for option in case.becomes} == case.becomes
    assert problems_of(folder, rule, case.kept) == []
    if rule.corrects:  # what is corrected is right
        assert problems_of(folder, rule, case.broken) == []


def check_names(rules: Sequence[Rule], cases: Sequence[tuple[str, Case]]) -> None:
    """Every rule has a case."""
    assert {rule.name for rule in rules} == {name for name, _ in cases}


def _placed(value: Any, folder: Path) -> Any:
    if isinstance(value, str):
        return value.replace("{folder}", str(folder))
    if isinstance(value, list):
        return [_placed(item, folder) for item in value]
    return value
