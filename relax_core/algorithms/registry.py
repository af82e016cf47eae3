"""The advantage estimators and what each of them needs.

Guarantee: an estimator is one declarative ``EstimatorSpec``; the command line's choices, its guard rails and the stages
read the specification and have no branch on a name. Importing this module does not import torch.

To add an estimator, write its functions where you like and call ``register`` with its specification.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from data.errors import UserError
from relax_core.algorithms.advantages import AdvantageInputs, Advantages, spread_over_tokens
from relax_core.algorithms.rewards import Normalizer

if TYPE_CHECKING:
    from relax_core.algorithms.losses import PolicyLoss


@dataclass(frozen=True)
class EstimatorSpec:
    """An advantage estimator."""

    name: str
    """Value of --advantage-estimator."""
    summary: str
    """One line for ``--help`` and the documentation."""
    normalizer: Normalizer
    """What happens to rewards before the estimator sees them."""
    advantages: Callable[[AdvantageInputs], Advantages]
    policy_loss: str
    """``module:function`` of the loss, resolved late because losses need torch."""
    needs_critic: bool = False
    min_group_size: int = 1
    """Least --n-samples-per-prompt that is allowed."""

    def load_policy_loss(self) -> Callable[..., PolicyLoss]:
        """The function named by ``policy_loss``."""
        module, _, function = self.policy_loss.partition(":")
        loss: Any = getattr(import_module(module), function)
        return loss


_SPECS: dict[str, EstimatorSpec] = {}


def register(spec: EstimatorSpec) -> EstimatorSpec:
    """Adds an estimator.

    Raises:
        ValueError: the name is taken.
    """
    if spec.name in _SPECS:
        raise ValueError(f"advantage estimator '{spec.name}' is registered twice")
    _SPECS[spec.name] = spec
    return spec


def estimator_names() -> tuple[str, ...]:
    """Names in order of registration."""
    return tuple(_SPECS)


def get_estimator(name: str) -> EstimatorSpec:
    """The specification of ``name``.

    Raises:
        UserError: no such estimator; the nearest name is suggested.
    """
    if name not in _SPECS:
        near = difflib.get_close_matches(name, _SPECS, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UserError(f"--advantage-estimator is '{name}'.", f"{hint}Choose one of {', '.join(_SPECS)}.")
    return _SPECS[name]


register(
    EstimatorSpec(
        name="grpo",
        summary="Reward relative to the group's mean and standard deviation, the same for every token; no critic.",
        normalizer="group_mean_std",
        advantages=spread_over_tokens,
        policy_loss="relax_core.algorithms.losses:policy_loss",
    )
)
