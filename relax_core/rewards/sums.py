"""A weighted sum of rewards while its parts are called.

Guarantee: each part is called once, in its own way: terms and what a quick function decides at once, the others by
whoever makes calls; what a part fails with is kept as its own, until all are there.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from data.errors import UserError
from relax_core.rewards.calls import Call
from relax_core.rewards.outcome import Outcome, outcome_of
from relax_core.rewards.parts import Part
from relax_core.rewards.types import UNDECIDED, RewardFunction, RewardInput, RewardSpec

Options = Mapping[str, Any]


@dataclass
class Sum:
    """The sum of one sample.

    Attributes:
        parts: of the sum.
        values: of each part: what it returned, the error that it raised, or ``UNDECIDED``: it is still to be called.
        sample: that is scored.
        given: options by name.
        found: place of a part -> its outcome, where it has no value.
        seconds: that the values took.
    """

    parts: tuple[Part, ...]
    values: tuple[Any, ...]
    sample: RewardInput
    given: Options
    found: dict[int, Outcome] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def begun(cls, parts: tuple[Part, ...], sample: RewardInput, given: Options) -> "Sum":
        """With what is known at once."""
        return cls(parts, tuple([_at_once(part, sample, given) for part in parts]), sample, given)

    @property
    def open(self) -> bool:
        """Whether a part is still to be called."""
        return any(value is UNDECIDED for value in self.values)

    @cached_property
    def calls(self) -> dict[int, Call]:
        """Place of a part -> its call, of those that are still to be called, with the options that they take."""
        return {
            place: Call(_configured(_spec(part), self.given), (self.sample,), key=part.key)
            for place, (part, value) in enumerate(zip(self.parts, self.values, strict=True))
            if value is UNDECIDED
        }

    def raised(self) -> dict[int, UserError]:
        """Place of a part -> the error that it raised."""
        return {place: self._error(place) for place, value in enumerate(self.values) if isinstance(value, Exception)}

    def finished(self, place: int) -> Any:
        """What a part returns, which is called here where it has no value: may be one to wait for.

        Raises:
            UserError: the part has raised it.
        """
        value, spec = self.values[place], _spec(self.parts[place])
        if isinstance(value, Exception):
            raise self._error(place)
        return spec.function(self.sample, **_taken(spec, self.given)) if value is UNDECIDED else value

    def value(self, values: Sequence[Any]) -> dict[str, Any]:
        """The sum of what the parts returned, see ``weighted``.

        Raises:
            UserError: a dict lacks the part's key.
        """
        return weighted(
            self.parts, [_checked(part, value, self.sample) for part, value in zip(self.parts, values, strict=True)]
        )

    def outcome(self, spec: RewardSpec, reward_key: str | None) -> Outcome:
        """The outcome of the sum, when all that have no value are ``found``.

        Args:
            spec: of the sum.
            reward_key: of the score, or of a part in its place.

        Returns:
            A part that failed makes the sum a failed one, which has a score where the part has: its ``late``, or the 0
            of the policy. A part without a score leaves it without one. ``error`` names the parts.

        Raises:
            UserError: the sum is beyond what float32 holds.
        """
        values = list(self.values)
        for place, outcome in self.found.items():
            values[place] = _of_outcome(self.parts[place], outcome)
        summed = outcome_of(spec, self.sample, weighted(self.parts, values), reward_key)
        seconds = self.seconds + sum(outcome.seconds or 0.0 for outcome in self.found.values())
        named = [(self.parts[place].name, outcome) for place, outcome in sorted(self.found.items())]
        if failed := [f"its part {name}: {outcome.error}" for name, outcome in named if outcome.kind == "failed"]:
            return replace(summed, kind="failed", error="; ".join(failed), seconds=seconds)
        if summed.kind == "no_score":
            silent = [part.name for part, value in zip(self.parts, values, strict=True) if _score(part, value) is None]
            return replace(summed, error=f"no score from {', '.join(silent)}", seconds=seconds)
        return replace(summed, seconds=seconds)

    def _error(self, place: int) -> UserError:
        error = self.values[place]
        return error if isinstance(error, UserError) else Call(_spec(self.parts[place]), (self.sample,)).failure(error)


def weighted(parts: Iterable[Part], values: Iterable[Any]) -> dict[str, Any]:
    """The sum, with every value beside it.

    Args:
        values: what each part returned, dicts with the parts' keys.

    Returns:
        ``score`` (None where a part has none), the value of each part under its name, and of a part that returned a
        dict the other entries as ``part/entry``.
    """
    total: float | None = 0.0
    kept: dict[str, Any] = {}
    for part, value in zip(parts, values, strict=True):
        if isinstance(value, Mapping):
            kept |= {f"{part.name}/{name}": entry for name, entry in value.items() if name != part.key}
            value = value[part.key]
        kept[part.name] = None if value is None else float(value)
        total = None if total is None or value is None else total + part.weight * float(value)
    return {"score": total, **kept}


def _checked(part: Part, value: Any, sample: RewardInput) -> Any:
    """What a part has returned.

    Raises:
        UserError: a dict without the part's key.
    """
    if isinstance(value, Mapping) and part.key not in value:
        raise UserError(
            f"The part {part.name} of the reward mix returned a dict without the key {part.key!r} for "
            f"sample {sample.sample_id}; its keys are {', '.join(map(repr, value))}.",
            f'Name one of them: {{"{part.name}": {{"weight": {part.weight:g}, "key": ...}}}}.',
        )
    return value


def _taken(spec: RewardSpec, given: Options) -> Options:
    """The options that a reward takes."""
    return {name: given[name] for name in spec.options if name in given}


def _at_once(part: Part, sample: RewardInput, given: Options) -> Any:
    try:
        if part.term is not None:
            return part.term.value(sample, **part.settings)
        spec = _spec(part)
        function = _quick_function(spec)
        if function is None:
            return UNDECIDED
        value = function(sample, **_taken(spec, given))
        return UNDECIDED if isinstance(value, Awaitable) else _checked(part, value, sample)
    except Exception as error:  # it is this part's: the others have their values
        return error


def _quick_function(spec: RewardSpec) -> RewardFunction | None:
    """What may be called at once; None where there is nothing."""
    if spec.quick is not None:
        return spec.quick
    return None if spec.isolated or spec.is_async else spec.function


def _configured(spec: RewardSpec, given: Options) -> RewardSpec:
    return spec.configured({name: given.get(name) for name in spec.options})


def _spec(part: Part) -> RewardSpec:
    """The reward of a part; of a term one of its name, for messages."""
    return part.spec or RewardSpec(part.name, lambda sample: None, False, "", "")


def _of_outcome(part: Part, outcome: Outcome) -> dict[str, Any]:
    """What a part would have returned, with all that is kept of it."""
    return {str(part.key): outcome.score, **outcome.components, **outcome.texts}


def _score(part: Part, value: Any) -> Any:
    return value.get(part.key) if isinstance(value, Mapping) else value
