"""The reward ``mix``: a weighted sum of rewards and shaping terms.

Guarantee: every part's value is kept beside the sum; a part without a score makes the sum no score, never 0. What a
part raises is raised.
"""

from collections.abc import Awaitable
from typing import Any

from data.errors import UserError
from relax_core.rewards.parts import OF_PARTS, Part, read_parts
from relax_core.rewards.registry import register
from relax_core.rewards.sums import Sum
from relax_core.rewards.types import UNDECIDED, RewardInput


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


def _begun(sample: RewardInput, reward_mix: Any = None, **given: Any) -> Sum:
    return Sum.begun(parts_of(sample, reward_mix), sample, given)


def _quick(sample: RewardInput, reward_mix: Any = None, **given: Any) -> Any:
    begun = _begun(sample, reward_mix, **given)
    return UNDECIDED if begun.open else begun.value([begun.finished(place) for place in range(len(begun.parts))])


@register("mix", quick=_quick, isolated=True, options=("reward_mix", *OF_PARTS), key="score", split=_begun)
def mix(sample: RewardInput, reward_mix: Any = None, **given: Any) -> Any:
    """Weighted sum of rewards and shaping terms, named by --reward-mix or metadata.reward_mix; each is kept.

    As a function it calls all parts itself. Where rewards are scored, ``relax_core.rewards.calls.Scorer`` does that.
    """
    begun = _begun(sample, reward_mix, **given)
    values = [begun.finished(place) for place in range(len(begun.parts))]
    return _waited(begun, values) if any(isinstance(value, Awaitable) for value in values) else begun.value(values)


async def _waited(begun: Sum, values: list[Any]) -> dict[str, Any]:
    return begun.value([await value if isinstance(value, Awaitable) else value for value in values])
