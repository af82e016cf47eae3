"""The JSON Schema of the run file, for editors that complete and check YAML.

Guarantee: a run file that ``relax train --config`` accepts is valid against it, and a key that no section has is not.
"""

from typing import Any, get_args

from relax_core.config.options import PASSED_TO, find_option
from relax_core.config.passthrough import pass_throughs
from relax_core.config.sections import RelaxConfig

_TYPES = {"bool": "boolean", "int": "integer", "float": "number", "text": "string"}


def run_file_schema() -> dict[str, Any]:
    """The schema, with the options that are passed through, and with `base`, `sources` and `x-` keys."""
    schema = RelaxConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Relax run file"
    for section in PASSED_TO:
        reference = schema["properties"][section]
        name = str(reference.get("$ref", reference.get("allOf", [{}])[0].get("$ref"))).rsplit("/", 1)[-1]
        definition = schema["$defs"][name]
        definition["additionalProperties"] = False
        for option_name, passed in pass_throughs().items():
            if passed.section == section and option_name not in definition["properties"]:
                definition["properties"][option_name] = _passed_schema(option_name)
    for definition in schema["$defs"].values():
        fields = definition.get("properties", {})
        definition["properties"] = {name: _field(name, field) for name, field in fields.items()}
    schema["properties"] |= {
        "base": {
            "description": "Run files whose options this one overrides, relative to it.",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}],
        },
        "sources": {
            "description": "Written by Relax: where each value came from.",
            "type": ["object", "null"],
            "additionalProperties": {"type": "string"},
        },
    }
    for section in RelaxConfig.model_fields:  # nothing below a section is no option of it
        schema["properties"][section] = {"anyOf": [schema["properties"][section], {"type": "null"}]}
    schema["patternProperties"] = {"^x-": {"description": "Anchors; not read."}}
    return schema


def _passed_schema(name: str) -> dict[str, Any]:
    option = find_option(name)
    assert option is not None
    if option.choices:
        kind: dict[str, Any] = {"enum": list(option.choices)}
    elif option.kind == "list":
        items = {int: "integer", float: "number"}.get(get_args(option.core_type)[0], "string")
        kind = {"type": "array", "items": {"type": items}}
    else:
        kind = {"type": _TYPES[option.kind]} if option.kind in _TYPES else {}
    return {"description": option.help, "anyOf": [kind, {"type": "null"}]}


_ABOUT = ("title", "description", "default", "examples")
_VARIABLE = {"type": "string", "pattern": r"\{env:[A-Za-z_]"}
_NUMBER = {"type": "string", "pattern": r"^\s*[-+]?\.?[0-9]"}
_WORDS = ("true", "false", "yes", "no", "on", "off", "t", "f", "y", "n")
_TRUTH: dict[str, Any] = {"enum": [0, 1, "0", "1", *(f(w) for w in _WORDS for f in (str.lower, str.upper, str.title))]}
_JSON = {"type": "string", "pattern": r"^\s*([\[{]|none$)"}


def _field(name: str, field: dict[str, Any]) -> dict[str, Any]:
    """The schema of an option, or of a field of an evaluation set, with every way in which its value may be written."""
    option = find_option(name)
    about = {key: field[key] for key in _ABOUT if key in field}
    kinds = [kind for one in field.get("anyOf", [_core(field)]) for kind in _written(one)]
    if option is not None and option.kind == "json":
        kinds.append(_JSON)
    if name in ("stop", "stop_token_ids"):  # of an evaluation set: one alone is a list too
        kinds += [{"type": "string"}, {"type": "integer"}]
    return about | {"anyOf": [*kinds, _VARIABLE]}


def _core(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in _ABOUT}


def _written(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The ways to write a value: as it is, as text, and its parts in all these ways."""
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return [schema, _NUMBER]
    if kind == "boolean":
        return [schema, _TRUTH]
    changed = dict(schema)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict) and schema[key]:
            changed[key] = {"anyOf": [*_written(schema[key]), _VARIABLE]}
    if "prefixItems" in schema:
        changed["prefixItems"] = [{"anyOf": [*_written(one), _VARIABLE]} for one in schema["prefixItems"]]
    return [changed]
