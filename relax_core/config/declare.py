"""How an option is declared: all that is known of it, in one place.

Guarantee: an option says in its declaration what it defaults to, which values it may have, which stages it
changes, where in the code it takes effect, and what it does in two languages; the tables of the other modules are read
off the declarations. Importing this module needs pydantic only.
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, field_validator, model_validator

from relax_core.config.plain import check_converted, check_plain, check_text
from relax_core.config.ranges import Range
from relax_core.config.secrets import redact

Unwired = Literal["warn", "refuse"]
"""What happens when an option is set that the code does not honour yet: a warning where the run is the same without
it, a refusal where something else would be trained than what was asked for."""

STAGE_NAMES = ("generate", "reward", "forward", "advantage", "train_critic", "train", "evaluate")


class Section(BaseModel):
    """A section of options: unknown names are refused, the docstring below a field is its help text.

    Errors name the option and do not show its value, which may be a secret.
    """

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        validate_assignment=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    title_zh: ClassVar[str] = ""
    """The Chinese title; the English one is the first line of the docstring."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _check_plain(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        """Hold values from Python and from Prefect's form to what the command line and a run file may say."""
        converted = handler(value)
        check_converted(value, converted)
        if isinstance(converted, str):
            check_text(converted)
        elif isinstance(converted, dict):
            check_plain(converted)
        return converted


class PassThroughSection(Section):
    """A section that also takes the options of another package, checked against the snapshot of them.

    Those that are given are attributes like any other; those that are not are absent.
    """

    model_config = ConfigDict(extra="allow")

    package: ClassVar[str] = ""
    """The section's name in the snapshots."""

    @model_validator(mode="before")
    @classmethod
    def _check_passed(cls, data: Any) -> Any:
        if not isinstance(data, dict) or cls.model_fields.keys() >= data.keys():
            return data
        # here: the table of options is read off the sections, this class among them
        from data.nearest import nearest
        from relax_core.config.options import BadValueError, find_option
        from relax_core.config.passthrough import pass_throughs

        checked = dict(data)
        for name, value in data.items():
            if name in cls.model_fields:
                continue
            option = find_option(name)
            if option is None or option.section != cls.package:
                names = [
                    *cls.model_fields,
                    *(key for key, one in pass_throughs().items() if one.section == cls.package),
                ]
                raise ValueError(f"{name}: no such option. {nearest(name, names)}".strip())
            try:
                checked[name] = option.convert(value)
            except BadValueError as error:
                raise ValueError(f"{name} {redact(name, value)}: {error}") from None
        return checked


class Details:
    """What a declaration adds to pydantic's field. Pydantic calls it to complete the field's JSON Schema."""

    def __init__(
        self,
        zh: str,
        range: Range | None,
        stages: tuple[str, ...],
        effect: str | None,
        unwired: Unwired | None,
        honours: tuple[Any, ...] | None,
        choices: tuple[str, ...],
    ) -> None:
        self.zh = zh
        self.range = range
        self.stages = stages
        self.effect = effect
        self.unwired = unwired
        self.honours = honours
        self.choices = choices

    def __call__(self, schema: dict[str, Any]) -> None:
        if self.range is not None:
            places = [place for place in schema.get("anyOf", [schema]) if place.get("type") in ("integer", "number")]
            for place in places:
                place.update(self.range.schema)
        if self.choices:
            schema["examples"] = list(self.choices)


def option(
    default: Any,
    range: Range | None = None,
    *,
    zh: str,
    stages: str = "",
    effect: str | None = None,
    unwired: Unwired | None = None,
    honours: tuple[Any, ...] | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare an option.

    Args:
        default: its value when nobody gives one; None: not set.
        range: the values that a number may have.
        zh: what it does, in Chinese; the docstring below the field says it in English.
        stages: the stages whose output it changes, separated by spaces (see ``relax_core.config.stages``).
        effect: the module, as a path from the project's root, in which it takes effect.
        unwired: it is not honoured yet; exactly one of ``effect`` and ``unwired`` is given.
        honours: the only values that are honoured yet; another one is refused like an unwired option.
        choices: the known values of a text that may also be something else (a built-in's name, or a path).
    """
    named = tuple(stages.split())
    if (effect is None) == (unwired is None):
        raise TypeError("an option is wired (effect) or it is not (unwired)")
    if not set(named) <= set(STAGE_NAMES):
        raise TypeError(f"no such stage: {stages}")
    if unwired and named:
        raise TypeError("what is not honoured changes no stage")
    details = Details(zh, range, named, effect, unwired, honours, choices)
    return Field(default=default, json_schema_extra=details)
