"""What the advantage estimators and recipes ask of the options, as text for people.

Guarantee: every estimator and recipe of the registry is there, with everything that it demands and whether this version
honours it. Importing this module needs no torch.
"""

import textwrap
from collections.abc import Iterator, Sequence

from data.errors import UserError
from data.nearest import nearest
from relax_core.algorithms.recipes import RECIPES, Recipe
from relax_core.algorithms.registry import Demand, EstimatorSpec, estimators
from relax_core.config.options import OPTIONS, get_option
from relax_core.config.sections import RelaxConfig

_REWARDS = {
    "group_mean_std": "less the group's mean, over its standard deviation",
    "group_mean": "less the group's mean",
    "group_leave_one_out": "less the mean of the group's other rewards",
    "none": "as they are",
}


def algorithms_text(name: str | None = None) -> str:
    """All estimators and recipes, or one.

    Args:
        name: of an estimator or a recipe.

    Raises:
        UserError: no such name; the nearest one is suggested.
    """
    parts = {spec.name: "\n".join(_estimator(spec)) for spec in estimators()}
    recipes = {recipe.name: "\n".join(_recipe(recipe)) for recipe in RECIPES}
    if name is not None:
        known = parts | recipes
        if name not in known:
            fix = f"{nearest(name, known)} There are {', '.join(known)}.".lstrip()
            raise UserError(f"There is no estimator or recipe '{name}'.", fix)
        return known[name]
    head = "Estimators, by --advantage-estimator:"
    return "\n\n".join([head, *parts.values(), "Recipes, which are an estimator with settings:", *recipes.values()])


def honoured_estimators() -> tuple[str, ...]:
    """Names that --advantage-estimator takes in this version."""
    honours = OPTIONS["advantage_estimator"].details.honours
    return tuple(spec.name for spec in estimators() if honours is None or spec.name in honours)


def demand_text(demand: Demand) -> str:
    """What an option must be, in a few words: ``--kl-coef above 0``."""
    flag = OPTIONS[demand.option].flag
    if demand.allowed is None:
        text = f"{flag} above {demand.above:g}" if demand.above is not None else f"{flag} {demand.at_least:g} or more"
    elif any(value is True for value in demand.allowed):
        text = flag
    else:
        without = any(value is False or value is None for value in demand.allowed)
        words = [f"{flag} {value}" for value in demand.allowed if value is not False and value is not None]
        text = " or ".join([*words, *([f"no {flag}"] if without else [])])
    return text if demand.when is None else f"{text} with {OPTIONS[demand.when].flag}"


def _estimator(spec: EstimatorSpec) -> Iterator[str]:
    yield spec.name + ("" if spec.name in honoured_estimators() else "  (not supported by this version)")
    yield f"  {spec.summary}"
    yield f"  rewards: {_REWARDS[spec.normalizer]}"
    if needs := [demand_text(demand) for demand in spec.all_demands] + [f"a role {role}" for role in spec.roles]:
        yield from _listed("needs", needs)
    taken = [OPTIONS[name].flag for name in (*spec.advantage_options, *spec.loss_options)]
    if taken:
        yield from _listed("takes", taken)
    yield f"  source: {spec.source}"


def _listed(title: str, words: Sequence[str]) -> list[str]:
    lines = textwrap.wrap(", ".join(words), 100, break_on_hyphens=False, break_long_words=False)
    return [f"  {title}: {lines[0]}", *(f"         {line}" for line in lines[1:])]


def _recipe(recipe: Recipe) -> Iterator[str]:
    defaults = RelaxConfig()
    yield recipe.name
    yield f"  {recipe.summary}"
    words = []
    for name, value in recipe.options.items():
        option = OPTIONS[name]
        if value == get_option(defaults, name) and name != "advantage_estimator":
            continue
        words.append(option.flag if value is True else f"{option.flag} {value}")
    yield f"  options: {' '.join(words)}"
    yield f"  beside them: {recipe.also}"
    yield f"  source: {recipe.source}"
