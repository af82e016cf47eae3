"""Options that are set although nothing honours them yet.

Guarantee: no switch is dead in silence. Every option either names the module in which it takes effect, or is told when
it is set: as a warning where the run is the same without it, as an error where it would not be.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from relax_core.config.options import OPTIONS, Option, get_option
from relax_core.config.problems import Problem
from relax_core.config.resolve import FOLLOWS
from relax_core.config.secrets import redact
from relax_core.config.sections import RelaxConfig
from relax_core.config.sources import Source, is_given

ANYWAY = "--allow-unwired goes on without it."


def unwired_options() -> list[Option]:
    """The declared options that nothing honours yet."""
    return [option for option in OPTIONS.values() if option.unwired]


def honoured(option: Option, value: Any) -> bool:
    """Whether the code does what this value of an option says."""
    if option.unwired:
        return bool(value == option.default)
    return option.details.honours is None or value in option.details.honours


def _follows(config: RelaxConfig, name: str, value: Any) -> bool:
    """Whether a value is what ``resolve`` would fill in, so that nobody asked for it."""
    return name in FOLLOWS and value == get_option(config, FOLLOWS[name])


def unwired_problems(config: RelaxConfig, sources: Mapping[str, Source]) -> Iterator[Problem]:
    """What is set in a configuration as it was given (not resolved), and is not honoured."""
    for option in OPTIONS.values():
        value = get_option(config, option.name)
        if honoured(option, value) or _follows(config, option.name, value):
            continue
        source = sources.get(option.name, "")
        origin = source if source and is_given(source) else ""
        shown = None if value is True else option.show(redact(option.name, value))
        if option.unwired == "warn":
            reason = "has no effect in this version."
            yield Problem(option.flag, shown, reason, severity="warning", origin=origin)
            continue
        only = " or ".join(option.show(value) for value in option.details.honours or ())
        reason = f"is not supported by this version{f', only {only} is' if only else ''}."
        if config.run.allow_unwired:
            yield Problem(option.flag, shown, f"{reason} The run goes on without it.", "", "warning", origin)
        else:
            yield Problem(option.flag, shown, reason, ANYWAY, origin=origin)
