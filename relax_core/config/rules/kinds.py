"""Conditions and kinds of rules that come up in several themes.

Guarantee: nothing here raises for a value of the right type, and what reads options says which ones, so that a rule can
name all that it reads.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from relax_core.algorithms.registry import EstimatorSpec, estimators, get_estimator
from relax_core.config.options import OPTIONS
from relax_core.config.resolve import FOLLOWS
from relax_core.config.rules.base import Rule
from relax_core.config.values import Values

TRACKER = "latest_checkpointed_iteration.txt"
"""File in a folder of Megatron checkpoints that holds the number of the newest one."""

KL = ("use_kl_loss", "kl_coef")
"""What ``has_kl`` reads."""


def is_rl(values: Values) -> bool:
    """Whether the run learns from rewards; false for supervised fine-tuning. Reads ``loss_type``."""
    return values.loss_type not in ("sft", "sft_loss")


def is_sft(values: Values) -> bool:
    """Whether the run learns from given answers. Reads ``loss_type``."""
    return not is_rl(values)


def has_kl(values: Values) -> bool:
    """Whether anything compares with a reference model. Reads ``KL``."""
    return bool(values.use_kl_loss or values.kl_coef)


def estimator(values: Values) -> EstimatorSpec:
    """What the registry says of the advantage estimator. Reads ``advantage_estimator``."""
    return get_estimator(values.advantage_estimator)


def estimator_text(chosen: Callable[[EstimatorSpec], Any]) -> str:
    """The names of some estimators, for a sentence: `ppo or reinforce_plus_plus`."""
    *others, last = [spec.name for spec in estimators() if chosen(spec)]
    return f"{', '.join(others)} or {last}" if others else last


def is_changed(values: Values, name: str) -> bool:
    """Whether an option differs from its default, and from the option that it follows. Reads both."""
    value = values[name]
    if name in FOLLOWS:
        return value is not None and value != values[FOLLOWS[name]]
    return bool(value != OPTIONS[name].default)


def changed(values: Values, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The options of these that ``is_changed``, as places of a rule."""
    return ({"option": name} for name in names if is_changed(values, name))


def with_followed(names: Iterable[str]) -> tuple[str, ...]:
    """What ``changed`` reads."""
    return tuple(dict.fromkeys(read for name in names for read in (name, FOLLOWS.get(name)) if read is not None))


def idle(
    name: str,
    options: tuple[str, ...],
    reads: tuple[str, ...],
    off: Callable[[Values], Any],
    message: str,
    fix: str = "Add it, or leave this out.",
) -> Rule:
    """A warning for each of these options that is changed while what it belongs to is off.

    Args:
        name: of the rule.
        options: the idle ones.
        reads: what ``off`` and the message read.
        off: whether what they belong to is off.
        message: why the option does nothing.
        fix: what to do.
    """
    return Rule(
        name=name,
        option=options[0],
        reads=tuple(dict.fromkeys((*reads, *with_followed(options)))),
        each=lambda values: changed(values, options) if off(values) else (),
        message=message,
        fix=fix,
        severity="warning",
    )


def local(path: object) -> str | None:
    """The path of this machine that a value names; None for a URL and for nothing."""
    text = str(path) if path else ""
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return None if not text or "://" in text or "::" in text else os.path.expanduser(text)


def is_model(folder: object) -> bool:
    """Whether this is a Hugging Face folder of this machine."""
    path = local(folder)
    return path is not None and os.path.isfile(os.path.join(path, "config.json"))


def newest_iteration(folder: object) -> int | None:
    """The step that the tracker of a local folder of Megatron checkpoints names; None where it names none."""
    path = local(folder)
    try:
        with open(os.path.join(path or "", TRACKER), encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def fills(template: object, *names: str) -> bool:
    """Whether a path with placeholders has none but these. An empty value has none."""
    try:
        str(template or "").format(**dict.fromkeys(names, 0))
    except (KeyError, IndexError, ValueError, AttributeError, TypeError):
        return False
    return True
