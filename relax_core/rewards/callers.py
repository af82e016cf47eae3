"""What callers of a pool have asked of it, and what they are told.

Guarantee: the number of answers that a caller waits for is known at any time. For ``RewardPool``, under its lock.
"""

import threading
from collections.abc import Callable

from relax_core.rewards.messages import Question, Result


class Run:
    """What one caller has asked of a pool, and the answers that it has yet to take.

    Args:
        until_failed: after a ``Failed`` no further call is made.
        lock: of the pool.
    """

    def __init__(self, until_failed: bool, lock: threading.RLock) -> None:  # type: ignore[valid-type, unused-ignore]
        self.until_failed = until_failed
        self.answers: list[tuple[int, Result]] = []
        self.left, self.enough, self.over = 0, 1, False
        self.changed = threading.Condition(lock)


class OpenQuestion:
    """A question of a run."""

    def __init__(self, run: Run, question: Question) -> None:
        self.run, self.question = run, question
        self.open = set(question.places)  # those without an answer


class ToldResults(list[Result | None]):
    """Results of a batch, each of which is told when it is put in."""

    def __init__(self, count: int, tell: Callable[[int, Result], None]) -> None:
        super().__init__([None] * count)
        self._tell = tell

    def __setitem__(self, at: int, result: Result | None) -> None:  # type: ignore[override]
        super().__setitem__(at, result)
        if result is not None:
            self._tell(at, result)

    def left(self) -> list[int]:
        """Where there is none."""
        return [at for at, result in enumerate(self) if result is None]

    def fill(self, result: Result) -> None:
        """Put it where there is none."""
        for at in self.left():
            self[at] = result
