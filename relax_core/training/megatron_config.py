"""Megatron's configuration objects: what Relax decides, and over it what a person passes through.

Guarantee: an option that is passed through reaches the constructor as it expects it; one that the installed Megatron
does not know, or refuses, is an error that names what was passed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from data.errors import UserError
from relax_core.config.options import find_option, passed_values
from relax_core.config.sections import RelaxConfig
from relax_core.training.introspect import constructor_arguments

T = TypeVar("T")


def megatron_object(kind: type[T], target: str, config: RelaxConfig, own: Mapping[str, Any]) -> T:
    """A configuration object of Megatron.

    Args:
        kind: its class.
        target: what ``PassThrough.targets`` calls it: ``transformer``, ``optimizer`` or ``ddp``.
        own: the fields that Relax sets; those that are None keep Megatron's default.

    Raises:
        UserError: Megatron does not have a field that is passed, or refuses the values together.
    """
    given = passed_values(config, "megatron")
    passed = constructor_arguments(target, given)
    unknown = passed.keys() - {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown:
        raise UserError(
            f"The installed Megatron-core has no {', '.join(sorted(unknown))}.",
            f"Leave out {_flags(given)}, or install a version that has it.",
        )
    fields = {**{name: value for name, value in own.items() if value is not None}, **passed}
    try:
        return kind(**fields)
    except (AssertionError, ValueError, RuntimeError, NotImplementedError, ImportError) as error:
        reason = str(error).strip() or type(error).__name__
        among = f" (passed on: {_flags(given)})" if passed else ""
        raise UserError(f"Megatron refuses its options{among}: {reason}", "Change the options it names.") from error


def _flags(given: Mapping[str, Any]) -> str:
    """The flags of options that are passed through, as they are typed."""
    found = ((find_option(name), value) for name, value in given.items())
    return " ".join(f"{option.flag} {option.show(value)}" for option, value in found if option is not None)
