"""The configuration as Prefect's form shows it.

Guarantee: the schema of ``SubmittedConfig`` refuses unknown names, other types and numbers out of range, and a form
that is made from it sends what was filled in and nothing else: an option has no default there, it is named in the
description. A field is called what its flag is called.
"""

from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from relax_core.config import RelaxConfig
from relax_core.config.options import find_option


class SubmittedConfig(RelaxConfig):
    """Options by section, as in a run file. What is left empty is the default, or what the run file says."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        whole = handler.resolve_ref_schema(schema)
        for section in whole["properties"].values():
            section.pop("default", None)
            shown = handler.resolve_ref_schema(section)
            shown["properties"] = {name: _field(name, field) for name, field in shown.get("properties", {}).items()}
        return schema


def given_options(config: SubmittedConfig) -> dict[str, Any]:
    """What was filled in, by section."""
    return config.model_dump(mode="json", exclude_unset=True)


def _field(name: str, field: dict[str, Any]) -> dict[str, Any]:
    """An option as the form shows it: one type, no default, the flag as its title."""
    option = find_option(name)
    kinds = [kind for kind in field.get("anyOf", []) if kind.get("type") != "null"]
    shown = {key: value for key, value in field.items() if key not in ("default", "anyOf")}
    if len(kinds) == 1:
        shown |= kinds[0]
    elif kinds:
        shown["anyOf"] = kinds
    if shown.get("type") == "boolean":  # a switch cannot be left alone: the interface sends false
        del shown["type"]
        shown["enum"] = [True, False]
    if option is None:
        return shown
    shown["title"] = option.flag
    text = " ".join(option.help.split())
    default = field.get("default")
    if default not in (None, "", [], {}) and "Default:" not in text:
        text += f" Default: {_plain(default)}."
    return {**shown, "description": text}


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
