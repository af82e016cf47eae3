"""The reward ``mopd``, for distillation from several teachers: each sample is scored as its metadata says.

Guarantee: the scoring is named by the data, never guessed: a sample that names none is an error. It is the reward of
that name, with all that belongs to it, a dict where that gives one.
"""

from typing import Any

from data.errors import UserError
from relax_core.rewards.registry import register
from relax_core.rewards.types import UNDECIDED, RewardInput, RewardSpec

NAME, DOMAIN = "mopd_rm_type", "domain"
"""Keys of the metadata: the name of a reward, which wins, and that of a domain."""
NONE = "none"
"""A name, or a domain, of samples that only their teacher judges."""
DOMAINS = {
    "math": "math",
    "geometry": "geo3k",
    "science": "gpqa",
    "choice": "multiple_choice",
    "instruction": "ifbench",
    "reading": "f1",
}
"""Domain -> the reward of its samples."""


def scoring(sample: RewardInput) -> str:
    """The name of the reward that scores a sample, or ``NONE``.

    Raises:
        UserError: the metadata names neither a reward nor a domain that is known.
    """
    named = sample.metadata.get(NAME)
    domain = str(sample.metadata.get(DOMAIN) or "").strip().lower()
    name = str(named) if named else domain if domain == NONE else DOMAINS.get(domain)
    if name is None or name.removeprefix("boxed_") == "mopd":
        given = f"{NAME} {named!r}" if named else f"{DOMAIN} {domain!r}" if domain else "neither"
        raise UserError(
            f"The reward mopd cannot tell how to score sample {sample.sample_id}: its metadata has {given}.",
            f"Give it {NAME} (a name as for --rm-type, or {NONE}), or {DOMAIN}: one of {', '.join(DOMAINS)}, {NONE}.",
        )
    return name


def _spec(sample: RewardInput) -> RewardSpec | None:
    from relax_core.rewards import registry  # here: it imports this module

    name = scoring(sample)
    return None if name == NONE else registry.get(name)


def _quick(sample: RewardInput) -> Any:
    spec = _spec(sample)
    if spec is None:
        return 0.0
    if spec.quick is not None:
        return spec.quick(sample)
    return UNDECIDED if spec.is_async or spec.isolated else spec.function(sample)


@register("mopd", quick=_quick, isolated=True)
def mopd(sample: RewardInput) -> Any:
    """The reward that metadata.mopd_rm_type names, else that of metadata.domain; 0 where that is none.

    Raises:
        UserError: the metadata names no scoring, or that reward raises it.
    """
    spec = _spec(sample)
    return 0.0 if spec is None else spec.function(sample)
