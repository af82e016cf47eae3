"""The options as a flat table, read off the sections.

Guarantee: every field of every section is here exactly once, in the order of the sections; a value that passes
``convert`` is what the field itself would accept, and one that does not comes back as a sentence about what was
expected.
"""

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from relax_core.config.problems import nearest
from relax_core.config.sections import RelaxConfig, Section
from relax_core.config.sizes import is_byte_size, show_bytes

Kind = Literal["bool", "int", "bytes", "float", "text", "choice", "list", "json"]


class BadValueError(ValueError):
    """A value that an option cannot have; the text says what was expected."""


@dataclass(frozen=True)
class Option:
    """One option: the field ``name`` of the section ``section``."""

    name: str
    section: str
    model: type[Section]
    field: FieldInfo

    @property
    def flag(self) -> str:
        """The flag, e.g. `--rollout-batch-size`."""
        return flag_of(self.name)

    @property
    def help(self) -> str:
        """What the option does."""
        return " ".join((self.field.description or "").split())

    @property
    def default(self) -> Any:
        """The default as the section states it."""
        return self.field.get_default(call_default_factory=True)

    @cached_property
    def optional(self) -> bool:
        """Whether None is a value of it."""
        return type(None) in get_args(self.field.annotation)

    @cached_property
    def core_type(self) -> Any:
        """The annotation without its `| None`."""
        annotation = self.field.annotation
        if get_origin(annotation) in (Union, types.UnionType):
            return next(member for member in get_args(annotation) if member is not type(None))
        return annotation

    @cached_property
    def kind(self) -> Kind:
        """How the option is written on a command line."""
        if is_byte_size(self.field):
            return "bytes"
        simple: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", str: "text"}
        if self.core_type in simple:
            return simple[self.core_type]
        origins: dict[Any, Kind] = {Literal: "choice", list: "list", dict: "json"}
        return origins[get_origin(self.core_type)]

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a choice, else nothing."""
        return get_args(self.core_type) if self.kind == "choice" else ()

    @property
    def expected(self) -> str:
        """What a value looks like, for an error."""
        items = {int: "whole numbers", float: "numbers"}.get((get_args(self.core_type) or (str,))[0], "texts")
        return {
            "bool": "true or false",
            "int": "a whole number",
            "bytes": "a size in bytes, such as 1048576 or 512MB",
            "float": "a finite number",
            "text": "text",
            "choice": f"one of {', '.join(self.choices)}",
            "list": f"one or more {items}",
            "json": f"a JSON object, such as {json.dumps(self.default) if self.default else '{}'}",
        }[self.kind]

    def convert(self, value: Any) -> Any:
        """The typed value of a text, a list of texts or a value from YAML.

        Raises:
            BadValueError: the field does not accept it; the text says what was expected.
        """
        # pydantic would read true as the number 1
        items = value if isinstance(value, list) else [value]
        if self.kind not in ("bool", "json") and any(isinstance(item, bool) for item in items):
            raise BadValueError(f"expects {self.expected}.")
        try:
            return getattr(self.model.model_validate({self.name: value}), self.name)
        except ValidationError as error:
            hint = nearest(value, self.choices) if self.choices and isinstance(value, str) else ""
            first = error.errors()[0]
            where = "".join(f"[{json.dumps(step)}]" for step in first["loc"][1:] if self.kind == "json")
            inside = f" At {where}: {first['msg']}." if where else ""
            raise BadValueError(f"expects {self.expected}.{inside}{f' {hint}' if hint else ''}") from None

    def convert_text(self, text: str | list[str]) -> Any:
        """``convert`` for the words of a command line: JSON is parsed, and `none` means None where None is a value.

        Raises:
            BadValueError: as ``convert``.
        """
        if text == "none" and self.optional and self.kind != "text":
            return None
        if self.kind != "json":
            return self.convert(text)
        try:
            return self.convert(json.loads(str(text)))
        except json.JSONDecodeError as error:
            raise BadValueError(f"expects {self.expected}. {error.msg} at character {error.pos + 1}.") from None

    def show(self, value: Any) -> str:
        """A value as it is typed on a command line."""
        if value is None or isinstance(value, bool):
            return str(value).lower()
        if self.kind == "bytes":
            return show_bytes(value)
        if self.kind == "json":
            return json.dumps(value)
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def flag_of(name: str) -> str:
    """`rollout_batch_size` -> `--rollout-batch-size`."""
    return f"--{name.replace('_', '-')}"


def section_title(section: str) -> str:
    """The title of a section: the first line of its docstring."""
    return (SECTIONS[section].__doc__ or section).strip().splitlines()[0]


def _read_sections() -> tuple[dict[str, type[Section]], dict[str, Option]]:
    sections: dict[str, type[Section]] = {}
    options: dict[str, Option] = {}
    for section, section_field in RelaxConfig.model_fields.items():
        model = section_field.annotation
        assert isinstance(model, type)
        assert issubclass(model, Section)
        sections[section] = model
        for name, field in model.model_fields.items():
            assert name not in options, f"two options are named {name}"
            options[name] = Option(name, section, model, field)
    return sections, options


SECTIONS, OPTIONS = _read_sections()
"""Section name -> its model, and option name -> its option."""


def get_option(config: RelaxConfig, name: str) -> Any:
    """The value of an option, wherever its section is."""
    return getattr(getattr(config, OPTIONS[name].section), name)


def option_values(config: RelaxConfig) -> dict[str, Any]:
    """Every option's value by its name, in the order of the sections."""
    return {name: get_option(config, name) for name in OPTIONS}


def with_options(config: RelaxConfig, values: Mapping[str, Any]) -> RelaxConfig:
    """A copy of ``config`` with these options set; the values are typed already and are not checked again."""
    by_section: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        by_section.setdefault(OPTIONS[name].section, {})[name] = value
    sections = {
        section: getattr(config, section).model_copy(update=by_section.get(section, {}), deep=True)
        for section in SECTIONS
    }
    return config.model_copy(update=sections)
