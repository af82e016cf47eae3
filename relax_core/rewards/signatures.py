"""The arguments of a user's reward function, and which convention they tell.

Guarantee: nothing is guessed: arguments that fit no convention, or several, are an error that lists them and the ways
to say which it is.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.errors import UserError
from relax_core.rewards.types import Convention

SIGNATURE = "--custom-rm-signature"

VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
VERL_BATCH = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
VERIFIERS = ("prompt", "completion", "answer", "info", "state", "task")
VERIFIERS_GROUP = ("prompts", "completions", "answers", "infos", "states", "tasks")

SHAPES: dict[Convention, str] = {
    "relax": "reward(sample)",
    "slime": "reward(args, sample, **kwargs)",
    "verl": "compute_score(data_source, solution_str, ground_truth, extra_info=None)",
    "trl": "reward(completions, **columns)",
    "verifiers": "reward(completion, answer, state)",
}
"""Convention -> what its functions look like."""


@dataclass(frozen=True)
class Parameters:
    """The arguments of a function.

    Attributes:
        names: of all that have one.
        required: those without a default.
        positional: those that may be given by position.
        takes_more: it has `**kwargs`.
        text: as they are written.
        known: False for a function that does not tell.
    """

    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    takes_more: bool = False
    text: str = ""
    known: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Parameters":
        """Those of a function."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # one that is compiled
            return cls()
        named = [one for one in signature.parameters.values() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return cls(
            tuple(one.name for one in named),
            tuple(one.name for one in named if one.default is one.empty),
            tuple(one.name for one in named if one.kind in by_place),
            any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()),
            str(signature.replace(return_annotation=signature.empty)),
            True,
        )

    def wanted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What it takes of named values."""
        return dict(given) if self.takes_more else {name: given[name] for name in self.names if name in given}


def recognised(parameters: Parameters, what: str) -> Convention:
    """The convention that a function's arguments tell.

    Raises:
        UserError: none, or several.
    """
    if not parameters.known:
        return "relax"
    looks = list(_looks(parameters))
    if len(looks) == 1:
        return looks[0]
    said = f"look like those of {' and '.join(looks)}" if looks else "fit no convention"
    raise UserError(
        f"{what}: its arguments {parameters.text} {said}, so that it is not known how to call it.",
        f"Say it with {SIGNATURE}: "
        + "; ".join(f"{name} for `{shape}`" for name, shape in SHAPES.items())
        + ". Or define it as `def reward(sample)` or `async def reward(sample)`.",
    )


def _looks(parameters: Parameters) -> Sequence[Convention]:
    names, places = set(parameters.names), parameters.positional
    found: list[Convention] = []
    if len(places) >= 2 and (places[0] == "args" or places[1] in ("sample", "samples")):
        found.append("slime")
    if names & {"solution_str", "solution_strs"} or {"data_source", "ground_truth"} <= names:
        found.append("verl")
    if "completions" in names and "states" not in names:
        found.append("trl")
    required = set(parameters.required) - {"parser"}
    several = "completions" in names and names & set(VERIFIERS_GROUP[2:])
    if names & {"completion", "state", "states"} or several or (required and required <= set(VERIFIERS)):
        found.append("verifiers")
    if not found or found == ["slime"]:
        one_is_enough = len(parameters.required) <= 1 and set(parameters.required) <= set(places)
        if one_is_enough and places:
            found.append("relax")
    return found
