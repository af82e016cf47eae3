"""What goes between a process that wants scores and one that runs reward functions.

Guarantee: plain data; an error arrives as it would have been raised here.
"""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from data.errors import UserError
from relax_core.rewards.outcome import Outcome, valid_text
from relax_core.rewards.types import RewardInput, RewardSpec


@dataclass(frozen=True)
class FunctionName:
    """How a process finds a reward function.

    Attributes:
        name: of a built-in, or the path of a function of the user.
        custom: it is the user's.
        of_group: it gets the list of a group's samples.
        adapter: of the user's function's signature, see ``relax_core.rewards.adapters``.
        settings: JSON text of what it is configured with, see ``RewardSpec``.
        source: hash of the user's source: a process that has another one of this name loads it anew.
    """

    name: str
    custom: bool = False
    of_group: bool = False
    adapter: str = "auto"
    settings: str = ""
    source: str = ""

    @classmethod
    def of(cls, spec: RewardSpec) -> "FunctionName":
        """The name of a function that is loaded here."""
        source = spec.source_hash if spec.custom else ""
        return cls(spec.name, spec.custom, spec.of_group, spec.convention, spec.settings, source)

    def load(self) -> RewardSpec:
        """The function.

        Raises:
            UserError: it cannot be loaded.
        """
        if self.custom:
            from relax_core.rewards.custom import load_custom

            return load_custom(
                self.name, of_group=self.of_group, adapter=self.adapter, settings=lambda convention: self.settings
            )
        from relax_core.rewards import registry

        return registry.get(self.name).configured(json.loads(self.settings or "{}"))


Samples = tuple[RewardInput, ...]


class Asked(NamedTuple):
    """One call: its samples, and the id of their group where the function gets groups."""

    samples: Samples
    group_id: str | None


@dataclass(frozen=True)
class Task:
    """A call of a plain function."""

    function: FunctionName
    samples: Samples
    group_id: str | None
    reward_key: str | None


class Packed(NamedTuple):
    """A ``Task`` on its way through processes that need not read what it is about.

    Attributes:
        call: pickled ``Asked``.
    """

    function: FunctionName
    call: bytes
    reward_key: str | None

    @classmethod
    def of(cls, task: Task, function: FunctionName) -> "Packed":
        """A task, packed; ``function`` is its, but the same object for all tasks, so that it is sent once."""
        call = pickle.dumps(Asked(task.samples, task.group_id), pickle.HIGHEST_PROTOCOL)
        return cls(function, call, task.reward_key)


@dataclass(frozen=True)
class Batch:
    """Calls of a coroutine function that run together in one process.

    Attributes:
        concurrency: most of them at once.
        seconds: time limit of each.
        until_failed: the first error ends the others.
    """

    function: FunctionName
    calls: tuple[Asked, ...]
    reward_key: str | None
    concurrency: int
    seconds: float
    until_failed: bool


class Numbered(NamedTuple):
    """A question to a worker, or an answer, which has its question's number: no other one is taken for it."""

    request: int
    content: Any


class Load(NamedTuple):
    """To a worker: import this function and call it by this number from now on. It answers None or ``Failed``."""

    number: int
    function: FunctionName


class Ask(NamedTuple):
    """To a worker: one call. It answers with outcomes or ``Failed``."""

    number: int
    call: Asked | bytes
    reward_key: str | None

    def unpacked(self) -> Asked:
        """The call."""
        return pickle.loads(self.call) if isinstance(self.call, bytes) else self.call  # type: ignore[no-any-return]


class AskMany(NamedTuple):
    """To a worker: calls of a coroutine function, see ``Batch``. It sends ``Told`` of each, then ``Ended``."""

    number: int
    calls: tuple[Asked, ...]
    reward_key: str | None
    concurrency: int
    seconds: float
    until_failed: bool


@dataclass(frozen=True)
class Failed:
    """An error as it comes from a worker."""

    problem: str
    fix: str
    details: str

    def __post_init__(self) -> None:
        for name in ("problem", "fix", "details"):
            object.__setattr__(self, name, valid_text(getattr(self, name)))

    def error(self) -> UserError:
        """As it would have been raised here."""
        return UserError(self.problem, self.fix, self.details)

    @classmethod
    def of(cls, error: UserError) -> "Failed":
        return cls(error.problem, error.fix, error.details)


Answer = list[Outcome] | Failed


class Lost(NamedTuple):
    """A call that gave no answer."""

    kind: Literal["timeout", "crash"]
    reason: str


Result = Answer | Lost


CANCELLED = Lost("crash", "it was cancelled")


class Question(NamedTuple):
    """What a pool is asked.

    Attributes:
        places: of its answers among those of its caller: one, of a batch that of each call.
        task: the call, or the calls.
        seconds: time limit of a call.
    """

    places: tuple[int, ...]
    task: Task | Packed | Batch
    seconds: float


Tell: TypeAlias = Callable[[int, Result], None]
"""Is told the place and the result of each call, when it comes."""


def nobody(place: int, result: Result) -> None:
    """Who is told where nobody asks."""


class Results:
    """The results of calls by place, as they come. The first one of a place counts.

    Args:
        count: of calls.
        until_failed: those behind one that failed are not waited for.
        tell: is told each.
    """

    def __init__(self, count: int, until_failed: bool = False, tell: Tell = nobody) -> None:
        self._tell = tell
        self._results: list[Result | None] = [None] * count
        self._until_failed, self._end = until_failed, count
        self.missing = count
        self.failed = False

    def put(self, place: int, result: Result) -> None:
        """There is a result."""
        if self._results[place] is not None:
            return
        self._results[place] = result
        self.missing -= 1
        self._tell(place, result)
        if isinstance(result, Failed):
            self.failed = True
            if self._until_failed:
                self._end = min(self._end, place)

    @property
    def complete(self) -> bool:
        """Whether all that is waited for is there."""
        return not self.missing or (self._end < len(self._results) and None not in self._results[: self._end])

    def all(self) -> list[Result]:
        """The results in their order; those that nobody waited for are lost."""
        return [CANCELLED if result is None else result for result in self._results]


class Ended(NamedTuple):
    """From a worker: ``AskMany`` is done. ``clean``: no call goes on that should have ended."""

    clean: bool


class Told(NamedTuple):
    """From a worker about the call of this place in ``AskMany``: its result; None: it has begun."""

    place: int
    result: Result | None
