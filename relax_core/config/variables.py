"""Environment variables in the texts of a run file: `{env:NAME}` and `{env:NAME:-default}`.

Guarantee: a text without `{env:` stays as it is; what begins like a variable and is none, and a variable that is not
set and has no default, is an error that says so. What is in a variable is never looked at again.
"""

import os
import re
from typing import Any

_VARIABLE = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
_BEGIN = "{env:"


class BadVariableError(ValueError):
    """A variable that cannot be put in; the text says why, and what to do."""


def insert_variables(value: Any) -> Any:
    """``value`` with every variable in its texts replaced, at any depth.

    Raises:
        BadVariableError: see the module.
    """
    if isinstance(value, str):
        return _in_text(value) if _BEGIN in value else value
    if isinstance(value, list):
        return [insert_variables(item) for item in value]
    if isinstance(value, dict):
        return {key: insert_variables(item) for key, item in value.items()}
    return value


def _in_text(text: str) -> str:
    if _BEGIN in _VARIABLE.sub("", text):
        raise BadVariableError("a variable is written {env:NAME} or {env:NAME:-default}, and none inside another.")
    return _VARIABLE.sub(_variable, text)


def _variable(match: re.Match[str]) -> str:
    name, default = match[1], match[2]
    value = os.environ.get(name, default)
    if value is None:
        raise BadVariableError(f"the environment variable {name} is not set. Set it, or write {{env:{name}:-default}}.")
    return value
