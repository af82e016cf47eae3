"""The built-in rewards by name.

Guarantee: a name means one function; asking for an unknown name says which is nearest.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from data.errors import UserError
from data.nearest import nearest
from relax_core.functions import source_hash
from relax_core.rewards.builtin import module_names
from relax_core.rewards.types import LabelMatcher, RewardFunction, RewardSpec

F = TypeVar("F", bound=Callable[..., Any])

BOXED = "boxed_"
"""Before a reward's name: it scores what stands in the last box of the response."""

_SPECS: dict[str, RewardSpec] = {}


def register(
    name: str,
    *,
    quick: RewardFunction | None = None,
    isolated: bool = False,
    matches: LabelMatcher | None = None,
    seconds: float | None = None,
    late: float | None = None,
    prepare: Callable[[], object] | None = None,
    options: tuple[str, ...] = (),
    key: str | None = None,
    patient: bool = False,
    split: RewardFunction | None = None,
) -> Callable[[F], F]:
    """Decorator: make a reward function available as ``--rm-type name``. Its docstring's first line is its help.

    Args:
        name: value of ``--rm-type``.
        quick, isolated, matches, seconds, late, prepare, options, key, patient, split: see ``RewardSpec``.

    Raises:
        ValueError: the name is taken by another function.
    """

    def add(function: F) -> F:
        doc = (inspect.getdoc(function) or "").split("\n", 1)[0]
        known = _SPECS.get(name)
        if known and known.function.__module__ != function.__module__:
            raise ValueError(f"reward {name!r} is already defined in {known.function.__module__}")
        is_async = inspect.iscoroutinefunction(function)
        _SPECS[name] = RewardSpec(
            name,
            function,
            is_async,
            doc,
            source_hash(function),
            quick=quick,
            isolated=isolated,
            matches=matches,
            seconds=seconds,
            late=late,
            prepare=prepare,
            options=options,
            key=key,
            patient=patient,
            split=split,
        )
        return function

    return add


def get(name: str) -> RewardSpec:
    """The built-in reward of this name.

    Raises:
        UserError: there is none.
    """
    specs = builtin_rewards()
    if name in specs:
        return specs[name]
    plain = name.removeprefix(BOXED)
    if plain != name and plain in specs:
        return _boxed(specs[plain])
    raise UserError(
        f"There is no reward named {name!r} (--rm-type or a row's metadata.rm_type).",
        nearest(name, specs, "{!r}") or f"Choose one of {', '.join(specs)}, or pass --custom-rm-path.",
    )


def _boxed(spec: RewardSpec) -> RewardSpec:
    """The reward for what stands in the last box of the response."""
    from relax_core.rewards.answers.boxed import boxed  # here: it belongs to the rewards, not to their list

    def of_box(function: RewardFunction) -> RewardFunction:
        return lambda sample, **given: function(boxed(sample), **given)

    quick = None if spec.quick is None else of_box(spec.quick)
    split = None if spec.split is None else of_box(spec.split)
    return replace(spec, name=BOXED + spec.name, function=of_box(spec.function), quick=quick, split=split)


def builtin_rewards() -> dict[str, RewardSpec]:
    """All built-in rewards by name, in alphabetical order."""
    for module in module_names():
        importlib.import_module(module)
    return dict(sorted(_SPECS.items()))
