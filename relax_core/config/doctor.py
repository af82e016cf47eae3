"""The report of ``relax doctor``: verdict, what is wrong, what follows, and the plan of the run.

Guarantee: text and JSON say the same; secrets are hidden in both; nothing is started and torch is not imported. The
exit code is 0 when nothing is to say, 1 with warnings, 2 with errors.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from data.errors import UserError
from relax_core.config.examine import Report
from relax_core.config.files import local_path
from relax_core.config.options import OPTIONS, get_option, json_values, option_values
from relax_core.config.plan import Plan, count_rows, plan
from relax_core.config.plan_memory import Device
from relax_core.config.problems import Problem, told
from relax_core.config.run_file import load, refuse_other_configuration
from relax_core.config.secrets import HIDDEN, redact, redact_text
from relax_core.config.sections import RelaxConfig
from relax_core.config.sources import CORRECTED, DERIVED, is_given
from relax_core.training.shape import ModelShape

WIDTH = 100


def exit_code(report: Report) -> int:
    """0: nothing to say; 1: warnings; 2: errors."""
    return 2 if report.errors else 1 if report.warnings else 0


def verdict(report: Report) -> str:
    """One line: whether a run with this configuration would start."""
    errors, warnings = len(report.errors), len(report.warnings)
    counts = [_count(errors, "error"), _count(warnings, "warning")]
    said = " and ".join(count for count in counts if count)
    if errors:
        return f"This configuration cannot run: {said}."
    return f"This configuration can run{f', with {said}' if said else ''}."


def with_run(report: Report) -> Report:
    """The report with what keeps a run that has begun from going on under this configuration.

    Only a run directory on this machine is looked into.
    """
    place = report.config.run.run_dir
    folder = local_path(place) if place else None
    if folder is None or not (folder / "steps").is_dir() or not (folder / "config.yaml").is_file():
        return report
    try:
        old = load((folder / "config.yaml").read_text(encoding="utf-8"))[0]
        refuse_other_configuration(old, report.config)
    except UserError as error:
        reason = " ".join([error.problem, *error.details.splitlines()])
        return replace(report, problems=(*report.problems, Problem("--run-dir", str(place), reason, error.fix)))
    except (OSError, UnicodeDecodeError):
        problem = Problem("--run-dir", str(place), "its config.yaml cannot be read.")
        return replace(report, problems=(*report.problems, problem))
    return report


def planned(report: Report, device: Device | None = None) -> Plan | None:
    """The plan of the run; None where the errors leave none.

    Args:
        device: memory of each; None: not known.
    """
    if any(not problem.option.startswith("--") for problem in report.errors) or report.model is None:
        return None
    source = report.config.data.prompt_data
    try:
        rows = count_rows(source) if source else None
        return plan(report.config, report.model, rows, judge=_judge(report.config), device=device)
    except (ArithmeticError, ValueError, TypeError, KeyError, IndexError):
        if report.errors:  # sizes that make no sense have no plan
            return None
        raise


def _judge(config: RelaxConfig) -> ModelShape | None:
    """The shape of the judge's model; None where there is none, or one that only SGLang knows."""
    try:
        return ModelShape.from_hf(config.genrm.genrm_model_path) if config.genrm.genrm_model_path else None
    except (UserError, OSError):
        return None


def as_json(report: Report, training: bool = True, device: Device | None = None) -> dict[str, Any]:
    """The report for programs; the plan is that of a training run."""
    made = planned(report, device) if training else None
    return {
        "verdict": "errors" if report.errors else "warnings" if report.warnings else "ok",
        "errors": [_problem_json(problem) for problem in report.errors],
        "warnings": [_problem_json(problem) for problem in report.warnings],
        "options": _sourced(report, is_given),
        "derived": _sourced(report, lambda source: source in (DERIVED, CORRECTED)),
        "sources": {name: redact_text(source) for name, source in report.sources.items() if source != "default"},
        "plan": redact("plan", made.to_json()) if made else None,
    }


def as_text(report: Report, training: bool = True, device: Device | None = None) -> str:
    """The report for people; the plan is that of a training run."""
    blocks = [verdict(report)]
    for problems, title in ((report.errors, "Errors"), (report.warnings, "Warnings")):
        if problems:
            blocks.append("\n".join([title, *map(_wrapped, told(problems))]))
    derived = _derived(report)
    if derived:
        blocks.append("\n".join(["Follows from what was given", *derived]))
    made = planned(report, device) if training else None
    if made is not None:
        blocks.append("\n".join(["Plan", *(_indented(redact_text(line)) for line in made.lines())]))
    return "\n\n".join(blocks)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}" if number else ""


def _problem_json(problem: Problem) -> dict[str, Any]:
    value, shown = problem.value, problem.shown_value
    return {
        "option": problem.shown_option,
        "value": value if isinstance(value, bool | int | float) and shown != HIDDEN else shown,
        "origin": redact_text(problem.origin),
        "reason": problem.shown_reason,
        "fix": problem.shown_fix,
    }


def _sourced(report: Report, wanted: Any) -> dict[str, Any]:
    values: Mapping[str, Any] = option_values(report.config)
    chosen = {name: value for name, value in values.items() if wanted(report.sources.get(name, "default"))}
    return {name: redact(name, value) for name, value in json_values(chosen).items()}


def _derived(report: Report) -> list[str]:
    """What follows, without what only an evaluation or a critic reads where there is none."""
    evaluates, critic = bool(report.config.eval.eval_datasets), "critic" in report.config.cluster.resource
    lines = []
    for name, option in OPTIONS.items():
        source = report.sources.get(name, "default")
        idle = source == DERIVED and (
            (name.startswith("eval_") and not evaluates) or (name.startswith("critic_") and not critic)
        )
        if source in (DERIVED, CORRECTED) and not idle:
            value = option.show(redact(name, get_option(report.config, name)))
            lines.append(_wrapped(f"{option.flag} {value}{' (corrected)' if source == CORRECTED else ''}"))
    return lines


def _indented(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line.strip(), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
