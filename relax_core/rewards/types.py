"""What a reward function gets and what a reward is.

Guarantee: these types need no other part of the library; a reward function may be tested with a ``RewardInput`` made by
hand.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Literal, TypeAlias

Score: TypeAlias = Any
"""What a reward function may return: a number, ``None`` (no score: the sample is left out), or a dict of them."""

RewardFunction: TypeAlias = Callable[["RewardInput"], Any]
"""Gives a ``Score``, or something that can be awaited and ends with one."""

LabelMatcher: TypeAlias = Callable[[Any], bool]
"""Whether a label, whole, looks as those of a reward do (--rm-type-infer)."""


Convention: TypeAlias = Literal["relax", "slime", "verl", "trl", "verifiers"]
"""Whose functions look like this one, see ``relax_core.rewards.adapters``."""


class Undecided(Enum):
    """The answer of a quick function that leaves a sample to the full one."""

    UNDECIDED = "undecided"


UNDECIDED = Undecided.UNDECIDED


@dataclass(frozen=True, slots=True)
class RewardInput:
    """One sample, as a reward function sees it.

    Attributes:
        sample_id: names the sample in tables and messages.
        prompt: rendered prompt.
        response: decoded response.
        label: the row's label as a Python value; None without one.
        metadata: the row's metadata, a copy of this sample's own. A function may put ``raw_reward`` (a number) in it:
            the value that metrics report in place of the score.
        response_length: tokens of the response.
        status: ``completed`` or ``truncated``; other samples are never scored.
        index, group_index: number over the whole run, of the sample and of its group; -1: not known.
        tokens: [P + R] int32, prompt, then response; None unless the function is of slime's convention.
    """

    sample_id: str
    prompt: str
    response: str
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    response_length: int = 0
    status: str = "completed"
    index: int = -1
    group_index: int = -1
    tokens: Any = None


@dataclass(frozen=True)
class RewardSpec:
    """A reward that can be asked for by name.

    Attributes:
        name: value of ``--rm-type``, or the path given as ``--custom-rm-path``.
        function: takes a ``RewardInput``, with --group-rm the list of a group's; may return an awaitable.
        is_async: whether the function is a coroutine function, run concurrently with others of its kind.
        doc: one line for help texts.
        source_hash: SHA-256 of the source that the function was loaded from, see ``relax_core.functions.source_hash``.
        custom: whether it is the user's own.
        quick: gives the same score at once for most samples, in time linear in the response, or ``UNDECIDED``; runs in
            the caller's process.
        isolated: the function may take long or crash: it runs in a process that can be ended.
        matches: tells labels of this reward.
        seconds: time limit of the function, where it is less than --reward-timeout; a call that takes longer has the
            score ``late``.
        late: see ``seconds``; None: no score.
        prepare: imports what the function needs, before the time counts.
        options: names of options that function and quick take, as arguments of these names.
        settings: JSON text of what it is configured with; empty: of nothing.
        key: of the score in a dict that the function returns, where --reward-key names none.
        patient: it bounds its own time, and --reward-timeout does not apply.
        of_group: it gets the list of a group's samples and returns a list.
        convention: of the user's function.
        split: of a reward that is made of others: begins the ``relax_core.rewards.sums.Sum`` of a sample, whose parts
            are called in their own ways instead of the function.
    """

    name: str
    function: RewardFunction
    is_async: bool
    doc: str
    source_hash: str
    custom: bool = False
    quick: RewardFunction | None = None
    isolated: bool = False
    matches: LabelMatcher | None = None
    seconds: float | None = None
    late: float | None = None
    prepare: Callable[[], object] | None = None
    options: tuple[str, ...] = ()
    settings: str = ""
    key: str | None = None
    patient: bool = False
    of_group: bool = False
    convention: Convention = "relax"
    split: RewardFunction | None = None

    def configured(self, values: Mapping[str, Any]) -> "RewardSpec":
        """With the values of its ``options``; itself where it needs none.

        Args:
            values: options by name, those that it needs among them, as JSON has them.
        """
        if not self.options:
            return self
        given = {name: values[name] for name in self.options}
        return replace(
            self,
            function=partial(self.function, **given),
            quick=None if self.quick is None else partial(self.quick, **given),
            split=None if self.split is None else partial(self.split, **given),
            settings=json.dumps(given, sort_keys=True),
        )
