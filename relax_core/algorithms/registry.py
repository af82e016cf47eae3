"""The advantage estimators and what each of them needs.

Guarantee: an estimator is one declarative ``EstimatorSpec``; the command line's choices, its guard rails and the stages
read the specification and have no branch on a name. Importing this module imports neither torch nor numpy: functions
are named and loaded when they are called, so that the command line answers at once.

To add an estimator, put one file into ``relax_core/algorithms/estimators/`` that calls ``register``, with the functions
that it needs and nobody else has; every module of that package is found. What an option must be with the estimator is
data too (``Demand``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from data.errors import UserError
from data.nearest import nearest

if TYPE_CHECKING:
    from relax_core.algorithms.advantages import AdvantageInputs, Advantages
    from relax_core.algorithms.losses import PolicyLoss
    from relax_core.algorithms.rewards import Normalizer
    from relax_core.algorithms.whitening import Whitening

KLRole = Literal["loss", "reward"]
"""Where an estimator may have a KL to the reference: as a term of the loss, or in the reward of each token."""


@dataclass(frozen=True)
class Demand:
    """What an option must be with an estimator. Exactly one of ``allowed``, ``at_least`` and ``above`` is given.

    Args:
        option: its name.
        reason: why, to follow the option's name; ``{advantage_estimator}`` is the estimator.
        allowed: the values that it may have.
        at_least, above: bounds of its value.
        when: an option that must be on for the demand to count; None: always.
        fix: what to do about it; may be empty.
        told_unless: an option beside which the checks say nothing of this one, because another rule tells of both.
        told_of_given: the checks tell a value that a person gave, because another rule tells of a missing one.
    """

    option: str
    reason: str
    allowed: tuple[Any, ...] | None = None
    at_least: float | None = None
    above: float | None = None
    when: str | None = None
    fix: str = ""
    told_unless: str | None = None
    told_of_given: bool = False

    def holds(self, value: Callable[[str], Any]) -> bool:
        """Whether the options keep it.

        Args:
            value: gives an option's value by its name.
        """
        if self.when is not None and not value(self.when):
            return True
        found = value(self.option)
        if self.allowed is not None:
            return found in self.allowed
        if self.at_least is not None:
            return found is not None and found >= self.at_least
        return found is not None and self.above is not None and found > self.above


SYNCHRONOUS = Demand(
    "fully_async",
    "cannot be used with --advantage-estimator {advantage_estimator}: it needs a whole step of samples by the current"
    " weights.",
    allowed=(False,),
    fix="Leave it out.",
)
"""What follows from ``EstimatorSpec.sync_only``."""


@dataclass(frozen=True)
class EstimatorSpec:
    """An advantage estimator."""

    name: str
    """Value of --advantage-estimator."""
    summary: str
    """One line for ``--help`` and the documentation."""
    normalizer: Normalizer
    """What happens to rewards before the estimator sees them."""
    advantages: str
    """``module:function`` that makes ``Advantages`` of ``AdvantageInputs``."""
    policy_loss: str
    """``module:function`` of the loss (see ``relax_core/algorithms/losses.py`` for how it is called)."""
    needs_critic: bool = False
    """It reads the values of a critic, which is trained beside the policy."""
    min_group_size: int = 1
    """Least --n-samples-per-prompt that is allowed."""
    normalizers: tuple[Normalizer, ...] = ()
    """Normalisers that are allowed instead of ``normalizer``; ``none`` is --disable-rewards-normalization."""
    loss_options: tuple[str, ...] = ("eps_clip", "eps_clip_high", "eps_clip_c")
    """Options that its policy loss takes, as keyword arguments of these names."""
    sequence_loss: bool = False
    """Its policy loss looks at whole samples: it also takes ``sequences``."""
    advantage_options: tuple[str, ...] = ()
    """Options that ``advantages`` reads (fields of ``AdvantageOptions``)."""
    whitening: Whitening = "whiten"
    """Form of --normalize-advantages."""
    kl_role: KLRole = "loss"
    """``reward``: --kl-coef has an effect; ``loss``: it has none, and --use-kl-loss may be used."""
    sync_only: bool = False
    """It needs all samples of a step together and made by the current weights: not with --fully-async."""
    context_parallel: bool = True
    """Samples may be split over context-parallel ranks."""
    roles: tuple[str, ...] = ()
    """Roles that --resource must have beside actor and rollout."""
    demands: tuple[Demand, ...] = ()
    """What options must be, beyond what the fields above say."""
    source: str = ""
    """The paper."""

    def load_advantages(self) -> Callable[[AdvantageInputs], Advantages]:
        """The function named by ``advantages``."""
        return _load(self.advantages)

    def load_policy_loss(self) -> Callable[..., PolicyLoss]:
        """The function named by ``policy_loss``."""
        return _load(self.policy_loss)

    @property
    def all_demands(self) -> tuple[Demand, ...]:
        """``demands``, and those that follow from the other fields."""
        return (*self._implied_demands(), *self.demands)

    def broken(self, value: Callable[[str], Any]) -> list[Demand]:
        """The demands that these options do not keep.

        Args:
            value: gives an option's value by its name.
        """
        return [demand for demand in self.all_demands if not demand.holds(value)]

    def _implied_demands(self) -> Iterator[Demand]:
        if self.min_group_size > 1:
            yield Demand(
                "n_samples_per_prompt",
                "leaves --advantage-estimator {advantage_estimator} no other response to compare with.",
                at_least=self.min_group_size,
                fix=f"Make it {self.min_group_size} or more.",
            )
        if self.normalizer != "none" and "none" not in self.normalizers:
            yield Demand(
                "disable_rewards_normalization",
                "takes the baseline away from --advantage-estimator {advantage_estimator}.",
                allowed=(False,),
                fix="Leave it out.",
            )
        if self.kl_role == "loss":
            yield Demand(
                "kl_coef",
                "has no effect with --advantage-estimator {advantage_estimator}: no KL is part of its rewards.",
                allowed=(0,),
                fix="Use --use-kl-loss and --kl-loss-coef.",
                told_unless="kl_loss_coef",
            )
        if self.sync_only:
            yield SYNCHRONOUS
        if not self.context_parallel:
            yield Demand(
                "context_parallel_size",
                "must be 1 with --advantage-estimator {advantage_estimator}, which sums along a whole response.",
                allowed=(1,),
            )


_SPECS: dict[str, EstimatorSpec] = {}


def _load(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


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


def estimators() -> tuple[EstimatorSpec, ...]:
    """All specifications, in order of registration."""
    return tuple(_SPECS.values())


def get_estimator(name: str) -> EstimatorSpec:
    """The specification of ``name``.

    Raises:
        UserError: no such estimator; the nearest name is suggested.
    """
    if name not in _SPECS:
        raise UserError(
            f"--advantage-estimator is '{name}'.",
            f"{nearest(name, _SPECS)} Choose one of {', '.join(_SPECS)}.".lstrip(),
        )
    return _SPECS[name]


import_module("relax_core.algorithms.estimators")  # at the end: its modules import this one
