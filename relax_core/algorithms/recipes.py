"""Named sets of option values: published variants that are an estimator with settings, and no estimator of their own.

Guarantee: data only; every name is an option's, and a recipe keeps the demands of its estimator. Importing this module
does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from data.errors import UserError
from data.nearest import nearest


@dataclass(frozen=True)
class Recipe:
    """A published variant.

    Args:
        name: what it is called.
        summary: one line.
        options: the values that make it, by option name; everything else is free.
        also: what the paper does besides, which no value here can say.
        source: the paper.
    """

    name: str
    summary: str
    options: Mapping[str, Any]
    also: str
    source: str


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name="dr_grpo",
        summary="GRPO without the spread of a group and without the length of a response in any denominator.",
        options=MappingProxyType(
            {
                "advantage_estimator": "grpo",
                "disable_grpo_std_normalization": True,
                "custom_pg_loss_reducer_function_path": "relax_core.algorithms.reduce.dr_grpo",
                "calculate_per_token_loss": False,
                "use_kl_loss": False,
            }
        ),
        also="The constant length is --rollout-max-response-len.",
        source='Liu et al., "Understanding R1-Zero-Like Training: A Critical Perspective" (2025)',
    ),
    Recipe(
        name="dapo",
        summary="GRPO with a higher upper clip, a mean over tokens and no KL.",
        options=MappingProxyType(
            {
                "advantage_estimator": "grpo",
                "eps_clip": 0.2,
                "eps_clip_high": 0.28,
                "calculate_per_token_loss": True,
                "use_kl_loss": False,
                "kl_coef": 0.0,
            }
        ),
        also="The reward of a response near the length limit is lowered: the part overlong of --rm-type mix."
        " DAPO also samples groups of equal rewards anew, which this version does not: they are trained on, with"
        " advantages of 0.",
        source='Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (2025)',
    ),
)


def get_recipe(name: str) -> Recipe:
    """The recipe of this name.

    Raises:
        UserError: no such recipe; the nearest name is suggested.
    """
    known = {recipe.name: recipe for recipe in RECIPES}
    if name not in known:
        raise UserError(
            f"There is no recipe '{name}'.", f"{nearest(name, known)} Choose one of {', '.join(known)}.".lstrip()
        )
    return known[name]
