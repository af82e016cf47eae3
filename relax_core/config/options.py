"""The options as a flat table, read off the sections and off the snapshots of Megatron's and SGLang's own options.

Guarantee: every field of every section is in ``OPTIONS`` exactly once, in the order of the sections; whatever else
Megatron or SGLang take is found by ``find_option``. A value that passes ``convert`` is what the option accepts, and one
that does not comes back as a sentence about what was expected.
"""

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from data.nearest import nearest
from relax_core.config.declare import Details, Section, Unwired
from relax_core.config.mistyped import likely_cause
from relax_core.config.passthrough import PassThrough, pass_throughs
from relax_core.config.plain import NotPlainError, check_converted, check_plain, check_text, read_json
from relax_core.config.ranges import Range
from relax_core.config.sections import RelaxConfig
from relax_core.config.sizes import is_byte_size, show_bytes

Kind = Literal["bool", "int", "bytes", "float", "text", "choice", "list", "json"]

PASSED_TO = {"megatron": "Megatron-core", "sglang": "SGLang"}
"""Section -> the package whose further options it takes."""

_PASS_EFFECT = {
    "transformer": "relax_core/training/model.py",
    "optimizer": "relax_core/training/optimizer.py",
    "ddp": "relax_core/training/updates.py",
    "server": "relax_core/engines/spec.py",
}


class BadValueError(ValueError):
    """A value that an option cannot have; the text says what was expected."""


@dataclass(frozen=True)
class Option:
    """One option, declared in a section or passed through to Megatron or SGLang.

    Args:
        name: its name in a run file and in Python.
        section: the section it belongs to.
        annotation: its type.
        default: its value when nobody gives one.
        help: what it does; `help_zh` says it in Chinese.
        details: the rest of its declaration.
        passed: for an option that is passed through, its entry in the snapshot.
        is_bytes: whether it counts bytes.
        validators: what pydantic runs beside the type.
    """

    name: str
    section: str
    annotation: Any
    default: Any
    help: str
    details: Details
    passed: PassThrough | None = None
    is_bytes: bool = False
    validators: tuple[Any, ...] = ()

    @property
    def help_zh(self) -> str:
        """What the option does, in Chinese."""
        return self.details.zh

    @property
    def flag(self) -> str:
        """The flag, e.g. `--rollout-batch-size`."""
        return self.passed.flag if self.passed else flag_of(self.name)

    @property
    def range(self) -> Range | None:
        """The values that a number may have."""
        return self.details.range

    @property
    def effect(self) -> str | None:
        """The module in which it takes effect; None while it is not honoured."""
        return self.details.effect

    @property
    def unwired(self) -> Unwired | None:
        """How the option is met when it is set although nothing honours it; None for one that is honoured."""
        return self.details.unwired

    @property
    def environment_variable(self) -> str:
        """The environment variable that sets it."""
        return f"RELAX_{self.name.upper()}"

    @cached_property
    def optional(self) -> bool:
        """Whether None is a value of it."""
        return type(None) in get_args(self.annotation)

    @cached_property
    def core_type(self) -> Any:
        """The annotation without its `| None`."""
        if get_origin(self.annotation) in (Union, types.UnionType):
            return next(member for member in get_args(self.annotation) if member is not type(None))
        return self.annotation

    @cached_property
    def kind(self) -> Kind:
        """How the option is written on a command line."""
        if self.is_bytes:
            return "bytes"
        simple: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", str: "text"}
        if self.core_type in simple:
            return simple[self.core_type]
        origin = get_origin(self.core_type)
        if origin is list and get_args(self.core_type)[0] in (int, float, str):
            return "list"
        return "choice" if origin is Literal else "json"

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a choice, else nothing."""
        return tuple(str(choice) for choice in get_args(self.core_type)) if self.kind == "choice" else ()

    @property
    def expected(self) -> str:
        """What a value looks like, for an error."""
        items = {int: "whole numbers", float: "numbers"}.get((get_args(self.core_type) or (str,))[0], "texts")
        what = "list" if get_origin(self.core_type) is list else "object"
        shown = json.dumps(self.default) if self.default else EXAMPLES.get(self.name, "{}")
        return {
            "bool": "true or false",
            "int": "a whole number",
            "bytes": "a size in bytes, such as 1048576 or 512MB",
            "float": "a finite number",
            "text": "text",
            "choice": f"one of {', '.join(self.choices)}",
            "list": f"one or more {items}",
            "json": f"a JSON {what}, such as {shown}",
        }[self.kind]

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        kind: Any = Annotated[(self.annotation, *self.validators)] if self.validators else self.annotation
        return TypeAdapter(kind)

    def convert(self, value: Any) -> Any:
        """The typed value of a text, a list of texts or a value from YAML.

        Raises:
            BadValueError: the option does not accept it; the text says what was expected.
        """
        try:
            self._check_kind(value)
            converted = self._adapter.validate_python(value)
            check_converted(value, converted)
        except NotPlainError as error:
            said = self.kind == "float" and "finite" in str(error)
            raise BadValueError(f"expects {self.expected}. {'' if said else error}".rstrip()) from None
        except ValidationError as error:
            raise BadValueError(f"expects {self.expected}.{self._why(value, error)}") from None
        if self.passed and self.kind != "choice":
            self._check_passed(converted, self.passed)
        return converted

    def convert_text(self, text: str | list[str]) -> Any:
        """``convert`` for the words of a command line: JSON is parsed, and `none` means None where None is a value and
        `none` is no choice.

        Raises:
            BadValueError: as ``convert``; the text also says what the shell or a web page made of the value.
        """
        unsets = self.optional and (self.kind != "text" or self.passed is not None) and "none" not in self.choices
        if text == "none" and unsets:
            return None
        if self.kind == "list" and text == [""]:
            return self.convert([])
        try:
            return self.convert(self._read_json(str(text)) if self.kind == "json" else text)
        except BadValueError as error:
            hint = likely_cause(text if isinstance(text, list) else [text], self.kind, unsets=unsets)
            raise BadValueError(f"{error} {hint}".rstrip()) from None

    def _read_json(self, text: str) -> Any:
        try:
            return read_json(text)
        except NotPlainError as error:
            raise BadValueError(f"expects {self.expected}. {error}") from None

    def _check_kind(self, value: Any) -> None:
        """Refuse what pydantic would read as something else, and what no value of any option may be.

        Raises:
            NotPlainError: with the reason where the expected kind does not say it.
        """
        items = value if isinstance(value, list) else [value]
        if self.kind == "json":
            check_plain(value)
        elif self.kind != "bool" and any(isinstance(item, bool) for item in items):
            of_texts = self.kind in ("text", "choice") or get_args(self.core_type)[:1] == (str,)
            raise NotPlainError("Quote it: YAML reads yes, no, on and off as true and false." if of_texts else "")
        elif self.kind == "text" and isinstance(value, int | float):
            raise NotPlainError("Quote it.")
        elif isinstance(value, str):
            check_text(value)
        else:
            check_plain(value)

    def _check_passed(self, value: Any, passed: PassThrough) -> None:
        """What of the library's own conditions the type does not say."""
        given = [item for item in (value if isinstance(value, list) else [value]) if item is not None]
        if passed.choices and any(item not in passed.choices for item in given):
            raise BadValueError(f"expects {self.expected}, each one of {', '.join(map(str, passed.choices))}.")
        if self.kind == "text" and passed.default == "{}" and given:  # SGLang reads it as JSON, when it starts
            try:
                read_json(value)
            except NotPlainError as error:
                raise BadValueError(f"expects the text of a JSON object. {error}") from None

    def _why(self, value: Any, error: ValidationError) -> str:
        """What pydantic says beyond that the kind is wrong, and what is likely meant."""
        hint = nearest(value, self.choices) if self.choices and isinstance(value, str) else ""
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{json.dumps(step)}]" for step in first["loc"] if self.kind == "json")
        inside = (
            f" At {where}: {_REASONS.get(first['type'], first['msg']).removeprefix('Value error, ')}." if where else ""
        )
        return f"{inside}{f' {hint}' if hint else ''}"

    def show(self, value: Any) -> str:
        """A value as it is typed on a command line."""
        if value is None or isinstance(value, bool):
            return str(value).lower()
        if self.kind == "bytes":
            return show_bytes(value)
        if self.kind == "json":
            return json.dumps(TypeAdapter(Any).dump_python(value, mode="json"), ensure_ascii=False)
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)


EXAMPLES = {
    "resource": '{"actor": [1, 1], "rollout": [1, 1]}',
    "multimodal_keys": '{"image": "images"}',
    "conversation_key_map": '{"from": "role", "value": "content"}',
    "genrm_engine_config": '{"max_total_tokens": 8192}',
    "genrm_sampling_config": '{"temperature": 0.1}',
    "train_env_vars": '{"NCCL_DEBUG": "WARN"}',
    "eval_datasets": '[{"name": "aime", "path": "aime.jsonl"}]',
}
"""JSON values as they may look, for options whose default shows none."""


_REASONS = {"extra_forbidden": "there is no such field", "missing": "is missing"}
"""Pydantic's kind of error -> the same in our words."""


def flag_of(name: str) -> str:
    """`rollout_batch_size` -> `--rollout-batch-size`."""
    return f"--{name.replace('_', '-')}"


def section_title(section: str) -> str:
    """The title of a section: the first line of its docstring."""
    return (SECTIONS[section].__doc__ or section).strip().splitlines()[0]


def _declared(name: str, section: str, field: FieldInfo) -> Option:
    details = field.json_schema_extra
    assert isinstance(details, Details), f"{name} is not declared with option()"
    default = field.get_default(call_default_factory=True)
    help_text = " ".join((field.description or "").split())
    validators = tuple(field.metadata)
    return Option(name, section, field.annotation, default, help_text, details, None, is_byte_size(field), validators)


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
            options[name] = _declared(name, section, field)
    return sections, options


SECTIONS, OPTIONS = _read_sections()
"""Section name -> its model, and option name -> its declared option."""


@cache
def find_option(name: str) -> Option | None:
    """The option of a name, declared or passed through; None when there is none."""
    if name in OPTIONS:
        return OPTIONS[name]
    passed = pass_throughs().get(name)
    return None if passed is None else _passed_option(passed)


def all_options() -> dict[str, Option]:
    """Every option by its name: the declared ones, then those of Megatron, then those of SGLang."""
    options = dict(OPTIONS)
    for name in pass_throughs():
        if (option := find_option(name)) is not None:
            options.setdefault(name, option)
    return options


def _passed_option(passed: PassThrough) -> Option:
    package = PASSED_TO[passed.section]
    owned = passed.role == "owned"
    texts = {
        "passed": (f"Passed to {package} as `{passed.field}`.", f"原样传给 {package} 的 `{passed.field}`。"),
        "shape": (
            f"Megatron's `{passed.field}`: it must agree with the model's config.json, which decides.",
            f"Megatron 的 `{passed.field}`：必须与模型的 config.json 一致，以后者为准。",
        ),
        "owned": (
            f"`{passed.field}` of {package}: Relax sets it itself, so that it can only be given as Relax has it.",
            f"{package} 的 `{passed.field}`：由 Relax 自行设定，不接受其他值。",
        ),
    }
    help_text, zh = texts[passed.role]
    stages = {"megatron": ("train_critic", "train"), "sglang": ("generate", "evaluate")}[passed.section]
    effect = "relax_core/config/rules/model.py" if passed.role == "shape" else _PASS_EFFECT[passed.targets[0]]
    details = Details(
        zh=zh,
        range=None,
        stages=stages if passed.role == "passed" else (),
        effect="relax_core/config/rules/passed.py" if owned else effect,
        unwired=None,
        honours=None,
        choices=(),
    )
    # nothing given is None, whatever the package's default is: the package fills it in itself
    return Option(passed.name, passed.section, _annotation(passed) | None, None, help_text, details, passed)


def _annotation(passed: PassThrough) -> Any:
    items: dict[str, Any] = {"int": int, "float": float, "text": str}
    lists: dict[str, Any] = {"int": list[int], "float": list[float], "text": list[str]}
    if passed.kind == "list":
        return lists[passed.item]
    if passed.kind == "choice":
        choices: Any = Literal
        return choices[tuple(passed.choices)]
    return {"bool": bool, "json": JsonValue, **items}[passed.kind]


def get_option(config: RelaxConfig, name: str) -> Any:
    """The value of an option, wherever its section is; of one that is passed through, None when it is not given."""
    if name in OPTIONS:
        return getattr(getattr(config, OPTIONS[name].section), name)
    return passed_values(config, pass_throughs()[name].section).get(name)


def passed_values(config: RelaxConfig, section: str) -> dict[str, Any]:
    """The options of a section that are given and only passed through, by name."""
    return dict(getattr(config, section).model_extra or {})


def option_values(config: RelaxConfig) -> dict[str, Any]:
    """Every declared option's value by its name, in the order of the sections, then what is passed through."""
    values = {name: get_option(config, name) for name in OPTIONS}
    for section in PASSED_TO:
        values |= passed_values(config, section)
    return values


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options as JSON has them: lists, objects, numbers, texts."""
    return dict(TypeAdapter(dict[str, Any]).dump_python(dict(values), mode="json"))


def with_options(config: RelaxConfig, values: Mapping[str, Any]) -> RelaxConfig:
    """A copy of ``config`` with these options set; the values are typed already and are not checked again."""
    by_section: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        option = find_option(name)
        assert option is not None, f"no option is named {name}"
        by_section.setdefault(option.section, {})[name] = value
    sections = {
        section: getattr(config, section).model_copy(update=by_section.get(section, {}), deep=True)
        for section in SECTIONS
    }
    return config.model_copy(update=sections)


def as_namespace(config: RelaxConfig) -> types.SimpleNamespace:
    """Every option as an attribute, plus the keys of --custom-args: the ``args`` that a user's function gets."""
    return types.SimpleNamespace(**{**config.run.custom_args, **option_values(config)})
