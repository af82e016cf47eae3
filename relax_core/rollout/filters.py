"""Functions that say which groups are trained on (--dynamic-sampling-filter-path), and which of those that were carried
over go on next (--buffer-filter-path).

Guarantee: a group is known by its id, whatever a function does with the lists that it gets; what a function raises or
returns wrongly is an error that names it and the group. Without a function every group is trained on, and the oldest
go on first.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from data.errors import UserError
from relax_core.config.options import as_namespace
from relax_core.config.sections import RelaxConfig
from relax_core.functions import UserFunction, load_function
from relax_core.rollout.hooks import called
from relax_core.rollout.sample import Sample

NO_SPREAD = 1e-6
"""A standard deviation that is not above it is none."""

Groups = list[list[Sample]]


class Verdict(NamedTuple):
    """Whether a group is trained on; where not, the filter's reason, if it has one."""

    keep: bool
    reason: str | None = None


def check_reward_nonzero_std(args: Any, samples: Sequence[Any], **kwargs: Any) -> Verdict:
    """Keep a group whose rewards differ: their standard deviation (unbiased, float64) is above 1e-6.

    A group without spread has no advantage to learn from (Yu et al., "DAPO", 2025, section 3.2). Samples without a
    score are left out. slime's path of this name stands for it.

    Args:
        args: every option.
        samples: the group; a list among them is one sample in parts, which have the same reward.
    """
    rewards = [(one[0] if isinstance(one, list) else one).reward for one in samples]
    scores = [float(reward) for reward in rewards if reward is not None and not math.isnan(reward)]
    if len(scores) > 1 and float(np.std(np.array(scores, np.float64), ddof=1)) > NO_SPREAD:
        return Verdict(True)
    return Verdict(False, f"zero_std_{round(scores[0], 1)}" if scores else "zero_std_none")


def dynamic_filter(config: RelaxConfig) -> UserFunction | None:
    """``--dynamic-sampling-filter-path``: ``filter(args, group)``, see ``verdict``; None without it.

    Raises:
        UserError: it cannot be loaded, or is a coroutine function.
    """
    path, option = config.rollout.dynamic_sampling_filter_path, "--dynamic-sampling-filter-path"
    return _plain(load_function(path, option, "filter(args, group)", 2)) if path else None


def buffer_filter(config: RelaxConfig) -> UserFunction | None:
    """``--buffer-filter-path``: ``choose(args, rollout_id, buffer, num_samples)``, or ``choose(buffer)``, gives the
    groups that go on, in order; None without it.

    Raises:
        UserError: it cannot be loaded or called with four arguments or one, or is a coroutine function.
    """
    path, option = config.rollout.buffer_filter_path, "--buffer-filter-path"
    if not path:
        return None
    signature = "choose(args, rollout_id, buffer, num_samples)"
    function = load_function(path, option, signature, None)
    if not (_binds(function, 4) or _binds(function, 1)):
        load_function(path, option, signature, 4)  # says why
    return _plain(function)


def filter_sources(config: RelaxConfig) -> dict[str, str]:
    """The sources of both functions, for the identity of a generation."""
    functions = [dynamic_filter(config), buffer_filter(config)]
    return {function.option: function.source_hash for function in functions if function is not None}


def verdict(function: UserFunction, config: RelaxConfig, group: Sequence[Sample]) -> Verdict:
    """What a dynamic filter says of a group: whether it is kept, or that and a reason, as a pair or as an object with
    ``keep`` and ``reason``.

    Raises:
        UserError: it failed, or said nothing that is a verdict.
    """
    where = f"on group {group[0].group_id}"
    said = called(function, where, config, as_namespace(config), list(group))
    reason = None
    if isinstance(said, tuple) and len(said) == 2:
        said, reason = said
    elif hasattr(said, "keep"):
        said, reason = said.keep, getattr(said, "reason", None)
    try:
        keep = None if said is None or isinstance(said, str | list | tuple | dict) else bool(said)
    except Exception:
        keep = None
    if keep is None:
        raise UserError(
            f"{function.name} returned a {type(said).__name__} {where}.",
            "Return whether the group is kept, (keep, reason), or an object with `keep` and `reason`.",
        )
    return Verdict(keep, None if reason is None else str(reason))


def choose(
    function: UserFunction | None, config: RelaxConfig, step: int, buffer: Mapping[str, Sequence[Sample]], count: int
) -> tuple[list[str], list[str]]:
    """Groups that leave the buffer.

    Args:
        function: ``buffer_filter``; None: the first ones go on.
        step: rollout step.
        buffer: group id -> its samples, the oldest group first.
        count: most groups that go on.

    Returns:
        Ids of those that go on, in order; and of those that the function has taken out of its list and not returned,
        which nobody wants any more.

    Raises:
        UserError: it failed, or returned something else than groups of the buffer, each once.
    """
    if function is None:
        return list(buffer)[:count], []
    given: Groups = [list(samples) for samples in buffer.values()]
    arguments = (as_namespace(config), step, given, count) if _binds(function, 4) else (given,)
    returned = _ids(function, step, called(function, f"on the buffer of step {step}", config, *arguments), buffer)
    left = {*_ids(function, step, given, buffer), *returned}
    return returned[:count], [name for name in buffer if name not in left]


def _ids(function: UserFunction, step: int, groups: Any, buffer: Mapping[str, Any]) -> list[str]:
    try:
        names = [str(group[0].group_id) for group in groups]
    except (TypeError, AttributeError, IndexError, KeyError) as error:
        raise UserError(
            f"{function.name} returned a {type(groups).__name__} in step {step} that is no list of groups: {error}.",
            "Return groups of the buffer: lists of samples.",
        ) from error
    unknown = [name for name in names if name not in buffer]
    if unknown or len(set(names)) != len(names):
        what = f"the group {unknown[0]}, which the buffer does not have" if unknown else "a group twice"
        raise UserError(f"{function.name} returned {what}, in step {step}.", "Return groups of the buffer, each once.")
    return names


def _binds(function: UserFunction, count: int) -> bool:
    try:
        inspect.signature(function.call).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return count == 4
    return True


def _plain(function: UserFunction) -> UserFunction:
    if function.is_async:
        raise UserError(f"{function.name} is a coroutine function.", "Define it with `def`.")
    return function
