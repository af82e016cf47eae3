"""Which built-in rewards a configuration names, and what each returns.

Guarantee: ``REWARDS`` and ``KEYS`` say what the rewards themselves do, which a test holds them to, so that a rule need
not import them.
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from relax_core.config.values import Values

REWARDS = (
    "deepscaler",
    "dapo",
    "math",
    "f1",
    "gpqa",
    "ifbench",
    "multiple_choice",
    "openr1mm",
    "geo3k",
    "mopd",
    "random",
    "dummy",
    "remote_rm",
    "code",
    "dapo-genrm",
    "judge",
    "exact_number",
    "gsm8k",
    "gsm8k_flexible",
    "mix",
)
"""Names of built-in rewards; each may have `boxed_` before it."""

KEYS: dict[str, tuple[str, ...]] = {
    "dapo": ("score", "acc"),
    "code": ("score", "passed", "tests"),
    "ifbench": ("score", "followed", "*:*"),
    "judge": ("score", "verdict", "verdict_swapped", "criterion_*"),
    "dapo-genrm": ("score", "verdict", "verdict_swapped", "criterion_*"),
    "mix": ("score",),
}
"""Built-in reward that returns a dict -> its keys that hold numbers, ``*`` standing for what the row decides. Those of
a mix are the names of its parts too."""

OF_DICTS = (*KEYS, "dummy", "mopd", "remote_rm")
"""Built-in rewards that return, or may return, a dict."""

JUDGED = ("dapo-genrm", "judge")
"""Built-in rewards that ask the judge."""

NAMING = ("rm_type", "rm_type_fallback", "custom_rm_path", "eval_datasets", "eval_config")
"""What ``named`` reads."""


def plain(name: object) -> str:
    """The name of a reward without `boxed_`."""
    return str(name or "").removeprefix("boxed_")


def named(values: Values, reward: str) -> Iterator[str]:
    """The options that name this reward. Reads ``NAMING``."""
    if values.custom_rm_path is None:
        yield from (name for name in ("rm_type", "rm_type_fallback") if plain(values[name]) == reward)
    sets = values.eval_datasets or ()
    if any(plain(one.added_metadata.get("rm_type")) == reward and not one.custom_rm_path for one in sets):
        yield "eval_config" if values.eval_config else "eval_datasets"


def is_part(values: Values, *rewards: str) -> bool:
    """Whether --reward-mix has one of these rewards as a part. Reads ``reward_mix``."""
    return any(plain(name) in rewards for name in values.reward_mix or ())


def keys_of(values: Values, reward: str) -> tuple[str, ...] | None:
    """The keys of what a reward returns; None where it is a number, or not known. Reads ``reward_mix``."""
    keys = KEYS.get(plain(reward))
    if keys is None or plain(reward) != "mix":
        return keys
    parts = values.reward_mix
    return None if not parts else (*keys, *parts, *(f"{name}/*" for name in parts))


def has_key(keys: tuple[str, ...], key: str) -> bool:
    """Whether one of the keys is this one."""
    return any(fnmatchcase(key, re.sub(r"([\[?])", r"[\1]", known)) for known in keys)
