"""The reward ``mix``: a weighted sum of rewards and shaping terms.

Guarantee: every part's value is kept beside the sum; a part without a score makes the sum no score, never 0. What a
part raises is raised.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from data.errors import UserError
from relax_core.rewards.parts import OF_PARTS, Part, read_parts
from relax_core.rewards.registry import register
from relax_core.rewards.types import UNDECIDED, RewardInput, RewardSpec

Options = Mapping[str, Any]


def parts_of(sample: RewardInput, reward_mix: Any) -> tuple[Part, ...]:
    """The parts of a sample's sum: metadata.reward_mix, else the option.

    Raises:
        UserError: there are none, or they are wrong.
    """
    own = sample.metadata.get("reward_mix")
    where, mix = ("--reward-mix", reward_mix) if own is None else ("its metadata.reward_mix", own)
    if mix is None:
        raise UserError(
            f"Sample {sample.sample_id} has the reward mix, and nothing says what it is the sum of.",
            'Give --reward-mix \'{"math": 1, "format": 0.1}\', or the row a metadata.reward_mix.',
        )
    try:
        return read_parts(mix)
    except ValueError as error:
        raise UserError(f"Sample {sample.sample_id}: {where} {error}.", "Correct it.") from None


def weighted(parts: Iterable[Part], values: Iterable[Any], sample_id: str) -> dict[str, Any]:
    """The sum, with every value beside it.

    Args:
        values: what each part returned.
        sample_id: for messages.

    Returns:
        ``score`` (None where a part has none), the value of each part under its name, and of a part that returned a
        dict the other entries as ``part/entry``.
    """
    total: float | None = 0.0
    kept: dict[str, Any] = {}
    for part, value in zip(parts, values, strict=True):
        if isinstance(value, Mapping):
            if part.key not in value:
                raise UserError(
                    f"The part {part.name} of the reward mix returned a dict without the key {part.key!r} for "
                    f"sample {sample_id}; its keys are {', '.join(map(repr, value))}.",
                    f'Name one of them: {{"{part.name}": {{"weight": {part.weight:g}, "key": ...}}}}.',
                )
            kept |= {f"{part.name}/{name}": entry for name, entry in value.items() if name != part.key}
            value = value[part.key]
        kept[part.name] = None if value is None else float(value)
        total = None if total is None or value is None else total + part.weight * float(value)
    return {"score": total, **kept}


def _value(part: Part, sample: RewardInput, given: Options, call: Callable[[RewardSpec], Any]) -> Any:
    if part.term is not None:
        return part.term.value(sample, **part.settings)
    assert part.spec is not None
    function = call(part.spec)
    return (
        UNDECIDED
        if function is None
        else function(sample, **{name: given[name] for name in part.spec.options if name in given})
    )


def _quick_function(spec: RewardSpec) -> Any:
    """What may be called at once; None where there is nothing."""
    if spec.quick is not None:
        return spec.quick
    return None if spec.isolated or spec.is_async else spec.function


def _quick(sample: RewardInput, reward_mix: Any = None, **given: Any) -> Any:
    parts, values = parts_of(sample, reward_mix), []
    for part in parts:
        value = _value(part, sample, given, _quick_function)
        if value is UNDECIDED or isinstance(value, Awaitable):
            return UNDECIDED
        values.append(value)
    return weighted(parts, values, sample.sample_id)


@register("mix", quick=_quick, isolated=True, options=("reward_mix", *OF_PARTS), key="score")
def mix(sample: RewardInput, reward_mix: Any = None, **given: Any) -> Any:
    """Weighted sum of rewards and shaping terms, named by --reward-mix or metadata.reward_mix; each is kept."""
    parts = parts_of(sample, reward_mix)
    values = [_value(part, sample, given, lambda spec: spec.function) for part in parts]
    if any(isinstance(value, Awaitable) for value in values):
        return _waited(parts, values, sample.sample_id)
    return weighted(parts, values, sample.sample_id)


async def _waited(parts: tuple[Part, ...], values: list[Any], sample_id: str) -> dict[str, Any]:
    return weighted(parts, [await value if isinstance(value, Awaitable) else value for value in values], sample_id)
