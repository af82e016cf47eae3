"""Rewards that need no label: ``random`` and ``dummy``, for trials of the loop.

Guarantee: both give the same value for the same sample in every process.
"""

import hashlib

from relax_core.rewards.registry import register
from relax_core.rewards.types import RewardInput


@register("random")
def random_reward(sample: RewardInput) -> float:
    """0 or 1 with equal chances, fixed by the sample's id."""
    return float(hashlib.sha256(sample.sample_id.encode()).digest()[0] & 1)


@register("dummy")
def dummy(sample: RewardInput) -> float:
    """Always 0."""
    return 0.0
