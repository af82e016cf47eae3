"""A bash launch script as a run file.

Guarantee: every argument of the script's training command is in the run file or in the notes, never in neither; the
script is read and not run.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data.errors import UserError
from relax_core.config.options import SECTIONS, find_option, json_values
from relax_core.config.parser import read_words
from relax_core.config.secrets import HIDDEN, is_secret_name, redact_text
from relax_core.config.shell import read_launch
from relax_core.config.yaml_text import dump_yaml

_SLIME = re.compile(r"\btrain(_async)?\.py\b")
_WITHOUT_EFFECT = ("PATH", "HOME", "PWD", "PYTHONPATH", "PYTHONBUFFERED", "PYTHONUNBUFFERED")


@dataclass(frozen=True)
class Imported:
    """A run file and what a person must look at.

    Args:
        text: the run file, in YAML.
        notes: what is not in it, a line each.
    """

    text: str
    notes: tuple[str, ...]


def import_script(path: str, variables: Mapping[str, str] | None = None) -> Imported:
    """Read the training command of a launch script.

    Args:
        path: the script.
        variables: values of variables that the script expects from outside.

    Raises:
        UserError: the file cannot be read, is no bash, or starts no training.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: the path has the character NUL
        text_error = isinstance(error, UnicodeDecodeError)
        reason = "is no UTF-8 text" if text_error else getattr(error, "strerror", None) or "is no path"
        name = path or repr(path)
        raise UserError(f"{name} cannot be read: {reason}.", "Give the path of a bash script.") from None
    launch = read_launch(text, folder=os.path.dirname(os.path.abspath(path)), variables=variables or {})
    values, problems = read_words(launch.arguments)
    added, told = _implied(text, values)
    notes = [f"{path}, line {note.line}: {note.text}" for note in launch.notes]
    notes += [*(str(problem) for problem in problems), *told]
    return Imported(_run_file(path, values | added, notes, launch.environment), tuple(notes))


def _implied(script: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What slime does without being told: it trains in bfloat16, and asynchronously with train_async.py."""
    added: dict[str, Any] = {}
    notes = []
    if _SLIME.search(script) and not {"bf16", "fp16"} & set(values):
        added["bf16"] = True
        notes.append("bf16: true is added: slime's train.py trains in bfloat16 unless --fp16 is given.")
    if "train_async.py" in script and "fully_async" not in values:
        added["fully_async"] = True
        notes.append("fully_async: true is added: train_async.py overlaps steps.")
    return added, notes


def _run_file(path: str, values: dict[str, Any], notes: list[str], environment: Mapping[str, str]) -> str:
    lines = [f"# The options of {os.path.basename(path)}, by `relax import-args`."]
    if notes:
        lines += ["#", "# Not taken over, or taken over with a change:"]
        lines += [f"#   {line}" for note in notes for line in redact_text(note).splitlines()]
    wanted = {name: value for name, value in environment.items() if name not in _WITHOUT_EFFECT}
    if wanted:
        lines += ["#", "# Environment of the script; write what the run needs into configs/env.yaml:", "# env_vars:"]
        for name, value in wanted.items():
            shown = HIDDEN if is_secret_name(name) and value else value
            lines.append(f"#   {name}: {yaml.safe_dump(shown, default_style=chr(34), width=10**6).strip()}")
    return "\n".join(lines) + "\n" + run_file_text(values)


def run_file_text(values: Mapping[str, Any]) -> str:
    """Options as the text of a run file, in the order of the sections."""
    by_section: dict[str, dict[str, Any]] = {}
    for name, value in json_values(values).items():
        option = find_option(name)
        assert option is not None
        by_section.setdefault(option.section, {})[name] = value
    ordered = {section: by_section[section] for section in SECTIONS if section in by_section}
    return dump_yaml(ordered) if ordered else ""
