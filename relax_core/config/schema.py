"""The JSON Schema of the run file, for editors that complete and check YAML.

Guarantee: a run file that ``relax train --config`` accepts is valid against it, and a key that no section has is not.
"""

from typing import Any

from relax_core.config.options import PASSED_TO, find_option
from relax_core.config.passthrough import pass_throughs
from relax_core.config.sections import RelaxConfig

_TYPES = {"bool": "boolean", "int": "integer", "float": "number", "text": "string", "json": "object"}


def run_file_schema() -> dict[str, Any]:
    """The schema, with the options that are passed through, and with `base`, `sources` and `x-` keys."""
    schema = RelaxConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Relax run file"
    schema["properties"] |= {
        "base": {
            "description": "Run files whose options this one overrides, relative to it.",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        },
        "sources": {"description": "Written by Relax: where each value came from.", "type": "object"},
    }
    schema["patternProperties"] = {"^x-": {"description": "Anchors; not read."}}
    for section in PASSED_TO:
        reference = schema["properties"][section]
        name = str(reference.get("$ref", reference.get("allOf", [{}])[0].get("$ref"))).rsplit("/", 1)[-1]
        definition = schema["$defs"][name]
        definition["additionalProperties"] = False
        for option_name, passed in pass_throughs().items():
            if passed.section == section and option_name not in definition["properties"]:
                definition["properties"][option_name] = _passed_schema(option_name)
    for definition in schema["$defs"].values():
        for name, field in definition.get("properties", {}).items():
            _allow_variables(name, field)
    return schema


def _passed_schema(name: str) -> dict[str, Any]:
    option = find_option(name)
    assert option is not None
    if option.choices:
        kind: dict[str, Any] = {"enum": list(option.choices)}
    elif option.kind == "list":
        kind = {"type": "array"}
    else:
        kind = {"type": _TYPES[option.kind]}
    return {"description": option.help, "anyOf": [kind, {"type": "null"}]}


def _allow_variables(name: str, field: dict[str, Any]) -> None:
    """A text with an environment variable in it stands for a value of any type."""
    option = find_option(name)
    if option is None or option.kind == "text":
        return
    places = field.setdefault("anyOf", [{key: field.pop(key) for key in _CORE if key in field}])
    places.append({"type": "string", "pattern": r"\{env:[A-Za-z_]"})
    if option.kind in ("int", "float", "bytes"):
        places.append({"type": "string", "pattern": r"^[0-9]"})


_CORE = ("type", "enum", "items", "$ref", "additionalProperties", "minimum", "maximum", "const", "exclusiveMinimum")
