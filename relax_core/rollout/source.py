"""Where the groups of a step come from: those that were carried over first, then the prompts.

Guarantee: which prompts come next follows from the cursor alone, and ids and seeds of new groups from their number in
the step, in however many portions they are taken: the first ones are those of ``step_requests``. A group is handed out
once.
"""

from collections.abc import Callable, Iterable, Mapping

from data.cursor import Cursor
from data.prompts import PromptDataset
from relax_core.config.sections import RelaxConfig
from relax_core.rollout.buffer import Group, new_groups
from relax_core.rollout.requests import group_requests


class NewGroups:
    """The prompts of a step, as groups.

    Args:
        prompts: training prompts.
        cursor: where the step begins.
        step: rollout step.
        config: size of a group, seed, order.
    """

    def __init__(self, prompts: PromptDataset, cursor: Cursor, step: int, config: RelaxConfig) -> None:
        self._prompts, self._begin, self._step, self._config = prompts, cursor, step, config
        self.cursor = cursor
        """Behind the last one."""

    @property
    def drawn(self) -> int:
        """How many there were."""
        return self.cursor.groups - self._begin.groups

    def take(self, count: int) -> list[Group]:
        """The next ones."""
        options, before = self._config.data, self.drawn
        rows, self.cursor = self._begin.take(
            before + count, len(self._prompts), options.rollout_seed, options.rollout_shuffle
        )
        requests = group_requests(
            [self._prompts[row] for row in rows],  # from the first on: seeds count how often a prompt comes in the step
            prefix=f"{self._step:06d}",
            samples=self._config.rollout.n_samples_per_prompt,
            run_seed=options.rollout_seed,
            step=self._step,
            first_group=self._begin.groups,
        )
        return new_groups(requests)[before:]

    def number(self, group_id: str) -> int | None:
        """Which one of the step has this id, from 0; None: it is of another step."""
        prefix, _, number = group_id.rpartition("-")
        return int(number) if prefix == f"{self._step:06d}" else None


Choose = Callable[[Mapping[str, Group], int], tuple[list[str], list[str]]]
"""Of the buffer's groups, by id, and how many are wanted: those that go on, and those that nobody wants any more."""


class Source:
    """All groups.

    Args:
        buffer: those that were carried over, the oldest first.
        new: prompts.
        choose: which of the buffer go on.
        known: changes each group before it is handed out.
    """

    def __init__(
        self,
        buffer: Iterable[Group],
        new: NewGroups,
        choose: Choose,
        known: Callable[[Group], Group] = lambda group: group,
    ) -> None:
        self._buffer = {group.group_id: group for group in buffer}
        self._new, self._choose, self._known = new, choose, known
        self.carried: list[Group] = []
        """Groups of the buffer that went on."""
        self.discarded: list[Group] = []
        """Groups of the buffer that nobody wants any more."""

    @property
    def drawn(self) -> int:
        """How many groups came from the prompts."""
        return self._new.drawn

    @property
    def left(self) -> list[Group]:
        """Groups of the buffer that stay there."""
        return list(self._buffer.values())

    def take(self, count: int) -> list[Group]:
        """``count`` groups."""
        chosen: list[Group] = []
        if self._buffer:
            names, discarded = self._choose(self._buffer, count)
            self.discarded += [self._buffer.pop(name) for name in discarded]
            chosen = [self._buffer.pop(name) for name in names]
            self.carried += chosen
        new = self._new.take(count - len(chosen)) if len(chosen) < count else []
        return [self._known(group) for group in [*chosen, *new]]
