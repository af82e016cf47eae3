"""The parts of a weighted sum of rewards: what ``--reward-mix`` and ``metadata.reward_mix`` say.

Guarantee: a mistake in them is a ValueError that names the part and what it must be; a part is the reward or the
shaping term of its name and nothing else.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from data.errors import UserError
from relax_core.rewards import shaping
from relax_core.rewards.answer_text import opens_reasoning, without_end_marks
from relax_core.rewards.language import LANGUAGES
from relax_core.rewards.types import RewardInput, RewardSpec

MIX = "mix"
"""The reward that is the sum."""

OF_PARTS = ("rm_url", "genrm_urls", "genrm_sampling_config", "genrm_template", "code_sandbox", "reward_timeout")
"""Options that rewards which are parts may take."""

WEIGHT, KEY = "weight", "key"

GIVE_LENGTH = "Give response_length, in tokens."
"""What to do where a part needs the length of a response and nobody said it."""

_TAGS = re.compile(r"</?(?:think|answer)>")


@dataclass(frozen=True)
class Term:
    """A shaping term.

    Attributes:
        value: its value for a sample, given its settings.
        settings: name -> what checks a value; returns what is wrong with it, or None.
        defaults: the settings that need not be given.
        agree: what is wrong between settings.
    """

    value: Callable[..., float]
    settings: Mapping[str, Callable[[Any], str | None]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    agree: Callable[[Mapping[str, Any]], str | None] = lambda settings: None


@dataclass(frozen=True)
class Part:
    """One part of a sum.

    Attributes:
        name: of the reward or term.
        weight: what its value is multiplied with.
        term: the shaping term; None: it is a reward.
        spec: the reward.
        settings: of the term.
        key: of the value in the dict that the reward returns.
    """

    name: str
    weight: float
    term: Term | None = None
    spec: RewardSpec | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None


def read_parts(mix: Any) -> tuple[Part, ...]:
    """The parts of a mix.

    Args:
        mix: name of each part -> its weight, or a dict of ``weight`` (1 without) and the part's settings.

    Raises:
        ValueError: what is wrong, as the end of a sentence that begins with the option.
    """
    if not isinstance(mix, Mapping) or not mix:
        raise ValueError('must name the parts of the sum and their weights, as {"math": 1, "format": 0.1}')
    try:
        return _read(json.dumps(mix))
    except TypeError:
        raise ValueError("must be JSON") from None


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[Part, ...]:
    parts = tuple(_part(name, given) for name, given in json.loads(text).items())
    if not any(part.weight for part in parts):
        raise ValueError("has no part with a weight other than 0")
    return parts


def _part(name: str, given: Any) -> Part:
    settings = dict(given) if isinstance(given, Mapping) else {WEIGHT: given}
    weight = settings.pop(WEIGHT, 1.0)
    if not _is_number(weight):
        raise ValueError(f"gives the part {name} the weight {weight!r}, which must be a number")
    term = TERMS.get(name)
    if term is None:
        return _reward(name, float(weight), settings)
    for setting in settings:
        if setting not in term.settings:
            raise ValueError(f"gives the part {name} the setting {setting!r}; it has {_listed(term.settings)}")
    for setting, wrong in term.settings.items():
        if setting not in settings and setting not in term.defaults:
            raise ValueError(f"gives the part {name} no {setting!r}")
        if setting in settings and (must_be := wrong(settings[setting])):
            raise ValueError(f"gives the part {name} the {setting} {settings[setting]!r}, which must be {must_be}")
    settings = {**term.defaults, **settings}
    if problem := term.agree(settings):
        raise ValueError(f"gives the part {name} {problem}")
    return Part(name, float(weight), term, settings=settings)


def _reward(name: str, weight: float, settings: dict[str, Any]) -> Part:
    from relax_core.rewards import registry  # here: it imports the rewards, the sum among them

    key = settings.pop(KEY, None)
    if settings or not (key is None or isinstance(key, str)):
        raise ValueError(
            f"gives the part {name} the settings {_listed(settings or [KEY])}; a reward has weight and key"
        )
    try:
        spec = registry.get(name)
    except UserError as error:
        known = f"The shaping terms are {_listed(TERMS)}."
        raise ValueError(
            f"has the part {name!r}, which is no reward and no shaping term. {error.fix} {known}"
        ) from None
    if name == MIX:
        raise ValueError("cannot have itself as a part")
    if missing := set(spec.options) - set(OF_PARTS):
        raise ValueError(f"cannot have the part {name}, which needs {_listed(sorted(missing))}")
    return Part(name, weight, spec=spec, key=key or spec.key or "score")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _count(low: int) -> Callable[[Any], str | None]:
    def wrong(value: Any) -> str | None:
        exact = isinstance(value, int) and not isinstance(value, bool)
        return None if exact and value >= low else f"a whole number, {low} or more"

    return wrong


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _penalty(value: Any) -> str | None:
    return None if _is_number(value) and value <= 0 else "a number, 0 or less"


def _language(value: Any) -> str | None:
    return None if value in LANGUAGES else f"one of {', '.join(LANGUAGES)}"


def _buffer_fits(settings: Mapping[str, Any]) -> str | None:
    if settings["buffer"] > settings["max"]:
        return f"the buffer {settings['buffer']}, which must not be more than its max {settings['max']}"
    return None


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "none but weight"


def _format(sample: RewardInput, answer: bool) -> float:
    response = without_end_marks(sample.response)
    return float(shaping.format_valid(response, answer=answer, opened=opens_reasoning(sample.prompt)))


def _overlong(sample: RewardInput, max: int, buffer: int) -> float:
    return shaping.soft_overlong(_length(sample), max, buffer)


def _distance(sample: RewardInput, target: int, width: int) -> float:
    return shaping.length_distance(_length(sample), target, width)


def _repetition(sample: RewardInput, n: int, max: float) -> float:
    return shaping.repetition(shaping.repetition_words(without_end_marks(sample.response)), n, max)


def _consistency(sample: RewardInput, language: str) -> float:
    return shaping.language_consistency(_TAGS.sub(" ", without_end_marks(sample.response)), language)


def _length(sample: RewardInput) -> int:
    if sample.response and not sample.response_length:
        raise UserError(
            f"The length of the response of sample {sample.sample_id} is not known, and its reward needs it.",
            GIVE_LENGTH,
        )
    return sample.response_length


TERMS: Mapping[str, Term] = {
    "format": Term(_format, {"answer": _flag}, {"answer": False}),
    "overlong": Term(_overlong, {"max": _count(1), "buffer": _count(1)}, agree=_buffer_fits),
    "length": Term(_distance, {"target": _count(0), "width": _count(1)}),
    "repetition": Term(_repetition, {"n": _count(1), "max": _penalty}, {"n": 3, "max": -1.0}),
    "language": Term(_consistency, {"language": _language}),
}
"""The shaping terms by name, see ``relax_core.rewards.shaping``."""
