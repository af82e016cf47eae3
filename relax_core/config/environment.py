"""The environment: ``RELAX_<OPTION>`` variables, and ``configs/env.yaml`` for the processes of a run.

Guarantee: a variable is converted and checked as the option that it names, and its mistakes are told like those of the
command line; a name that begins with ``RELAX_`` and is no option is told, with the nearest name and without its value,
which may be a secret. Every entry of the file reaches every Ray actor as the text that it is written as.
"""

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from data.nearest import nearest
from relax_core.config.options import OPTIONS, BadValueError, Option, find_option
from relax_core.config.passthrough import pass_through_flags, pass_throughs
from relax_core.config.plain import NotPlainError, check_text
from relax_core.config.problems import Problem
from relax_core.config.sources import ENVIRONMENT, Source
from relax_core.config.variables import insert_variables
from relax_core.config.yaml_text import load_yaml, read_text, why_unreadable

DEFAULT_FILE = "configs/env.yaml"
"""Read where it exists and no other file is named."""

PREFIX = "RELAX_"

OTHER_VARIABLES = ("RELAX_HOME", "RELAX_ENGINE_PARENT", "RELAX_ENGINE_GIVES_WAY", "RELAX_EVALUATION_GIVES_WAY")
"""Variables of Relax that are no options: where standing services are recorded, and whose child an engine is."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FIX = "Give a YAML file with `env_vars:`."


def read_environment_file(path: str | None) -> tuple[dict[str, str], list[Problem]]:
    """The variables in ``env_vars`` of a runtime environment file, and what is wrong with it.

    Args:
        path: the file; None: ``configs/env.yaml``, if it is there.
    """
    if path == "" or (path is None and not os.path.lexists(DEFAULT_FILE)):  # "" is told as an option that is empty
        return {}, []
    path = path or DEFAULT_FILE
    option = f"--env-file {path}"
    try:
        content = load_yaml(read_text(path), numbers_as_text=True)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return {}, [Problem(option, None, why_unreadable(error), _FIX)]
    if content is None:
        return {}, []
    if not isinstance(content, dict):
        return {}, [Problem(option, None, "holds no `env_vars:`.", "Write `env_vars:` and below it NAME: value.")]
    problems = [
        Problem(f"{key} in {path}", None, "is not read: of a runtime environment only `env_vars` is.")
        for key in content
        if key != "env_vars" and not str(key).startswith("x-")
    ]
    variables = content.get("env_vars")
    if variables is not None and not isinstance(variables, dict):
        problems.append(Problem(f"env_vars in {path}", variables, "expects NAME: value below it, indented."))
        return {}, problems
    read: dict[str, str] = {}
    for name, value in (variables or {}).items():
        where = f"env_vars.{'null' if name is None else name} in {path}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(Problem(where, None, "is no name of an environment variable."))
        elif name == "RELAX_ENV_FILE":
            problems.append(Problem(where, None, "has no effect: it would name this file.", "Give --env-file."))
        else:
            try:
                read[name] = _text(value)
            except ValueError as error:
                problems.append(Problem(where, "null" if value is None else value, str(error)))
    return read, problems


def _text(value: Any) -> str:
    """The text of a variable.

    Raises:
        ValueError: it can be none; the text says what is expected.
    """
    if isinstance(value, bool):
        raise ValueError(f'expects text. Write "{str(value).lower()}" or "1", quoted.')
    if not isinstance(value, str):
        raise ValueError("expects text. Quote it.")
    value = str(insert_variables(value))
    try:
        check_text(value)
    except NotPlainError as error:
        raise ValueError(f"expects text. {error}") from None
    return value


def environment_options(
    variables: Mapping[str, str], of_file: set[str]
) -> tuple[dict[str, tuple[Any, Source]], list[Problem]]:
    """The options that ``RELAX_*`` variables set, by name, each with its source, and what is wrong with them.

    Args:
        variables: the environment.
        of_file: names that come from the environment file.
    """
    values: dict[str, tuple[Any, Source]] = {}
    problems: list[Problem] = []
    for variable, text in variables.items():
        if variable in OTHER_VARIABLES or not variable.upper().replace("-", "_").startswith(PREFIX):
            continue
        origin = "environment file" if variable in of_file else ""
        option = find_option(variable.removeprefix(PREFIX).lower()) if variable.isupper() else None
        if option is None:
            if problem := _unknown(variable, origin):
                problems.append(problem)
            continue
        try:
            source = f"{ENVIRONMENT} {variable}{' of the environment file' if variable in of_file else ''}"
            values[option.name] = (_convert(option, text), source)
        except BadValueError as error:
            fix = "" if text.strip() else "Unset it where nothing is meant."
            problems.append(Problem(variable, text, str(error), fix, origin=origin))
    return values, problems


def _unknown(variable: str, origin: str) -> Problem | None:
    """What to tell of a variable that is no option; nothing where it is not meant for Relax."""
    reason = "names no option, so that it has no effect."
    if variable == "RELAX_CONFIG":
        fix = "A run file is named on the command line: --config FILE."
        return Problem(variable, None, reason, fix, "warning", origin)
    spelt = variable.upper().replace("-", "_")
    name = spelt.removeprefix(PREFIX).lower()
    flag = f"--{name.replace('_', '-')}"
    if find_option(name) is not None:
        fix = f"Names are in capitals: {spelt}."
    elif not variable.startswith(PREFIX):  # `relax_logs` may be anybody's
        return None
    elif flag in pass_through_flags():
        passed, positive = pass_through_flags()[flag]
        fix = f"Write RELAX_{passed.name.upper()}{'' if positive else '=false'}."
    elif name.startswith("no_") and (option := find_option(name.removeprefix("no_"))) and option.kind == "bool":
        fix = f"Write {option.environment_variable}=false."
    else:
        known = [f"{PREFIX}{one.upper()}" for one in (*OPTIONS, *pass_throughs())]
        fix = nearest(spelt, [*known, *OTHER_VARIABLES]) or "Unset it if it is meant for something else."
    return Problem(variable, None, reason, fix, "warning", origin)


def _convert(option: Option, text: str) -> Any:
    if option.kind != "list" or text.strip() == "none":
        return option.convert_text(text if option.kind in ("text", "json") else text.strip())
    try:
        words = shlex.split(text)
    except ValueError:
        raise BadValueError(f"expects {option.expected}. A quote is not closed.") from None
    return option.convert_text(words or [""])
