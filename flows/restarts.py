"""Which failures of a driver a new start can mend, and how often one is made (--use-health-check).

Guarantee: a mistake of the user is final; so is anything after ``--max-global-restart`` new starts, with all
causes told. Each start is told on the terminal, in the run's timeline and to ``--notify-urls``, once.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from data.errors import Lost, NotStarted, UserError
from relax_core import signs
from relax_core.config import RelaxConfig
from relax_core.config.problems import printable
from relax_core.config.secrets import redact_text

LONGEST_PAUSE = 30.0

_SERVICES = ("ray.exceptions", "prefect.exceptions", "httpx", "httpcore")
"""Modules whose errors say that Ray or Prefect cannot be reached; engines' and storage's are ``UserError`` by now."""

T = TypeVar("T")

_again: list[str] = []
"""Why this process drives its run again, which was told."""


class RestartsUsedUp(UserError):
    """The driver failed more often than ``--max-global-restart`` allows."""

    exit_code = 1


def mendable(error: BaseException) -> bool:
    """Whether another start of the driver may do better."""
    if isinstance(error, NotStarted):
        return signs.attempt() > 0  # what has never come up may be a mistake; what has, was right
    if isinstance(error, UserError):
        return isinstance(error, Lost)
    if type(error).__name__.startswith("RayTaskError"):  # an actor lives, and says what is wrong
        return False
    return isinstance(error, MemoryError) or any(kind.__module__.startswith(_SERVICES) for kind in type(error).__mro__)


def restarted() -> bool:
    """Whether somebody has told that this driver was started again."""
    return bool(_again) or signs.attempt() > 0


def watched(config: RelaxConfig, error: Exception) -> bool:
    """Whether somebody will tell of this error: as the cause of a new start, or of there being no more of them."""
    wanted = config.fault_tolerance.use_health_check
    return wanted and (mendable(error) or (bool(_again) and isinstance(error, NotStarted)))


def used_up(config: RelaxConfig, reasons: list[str]) -> RestartsUsedUp:
    """Tell that there is no further start, and return the error that says so.

    Args:
        reasons: why the driver failed, each time.
    """
    limit = config.fault_tolerance.max_global_restart
    causes = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, start=1))
    tell(config, "driver_ended", f"--max-global-restart {limit} is used up; at last: {reasons[-1]}", "gave up on")
    return RestartsUsedUp(
        f"The driver failed {len(reasons)} times, and --max-global-restart is {limit}.",
        "Nothing finished is lost: mend the cause, and the same command goes on. The causes:",
        causes,
    )


def start_again(config: RelaxConfig, cause: str, count: int, who: str = "supervisor") -> None:
    """Tell of a new start.

    Args:
        cause: of the end before it.
        count: how many new starts there were, this one counted.
        who: starts it.
    """
    _again.append(cause)
    limit = config.fault_tolerance.max_global_restart
    tell(config, "driver_restarted", cause, "starts again:", who, attempt=count, of=limit)


def tell(config: RelaxConfig, kind: str, cause: str, title: str, who: str = "supervisor", **details: Any) -> None:
    """Tell the run's timeline, and people."""
    from data.store import RunStore  # here: none of this is needed while all goes well
    from relax_core.tracking.events import EventLog
    from relax_core.tracking.notify import notify

    run_dir = str(config.run.run_dir)
    with contextlib.suppress(UserError):
        EventLog(RunStore(run_dir)).add(kind, who=who, cause=cause, **details)
    count = f" (start {details['attempt']} of {details['of']})" if details else ""
    notify(config, f"Relax {title} {run_dir}", f"{cause}{count}")


@dataclass
class Restarts:
    """How often, and why, a driver of a run was started again.

    Args:
        config: names the run, the limit, and whom to notify.
    """

    config: RelaxConfig
    reasons: list[str] = field(default_factory=list)
    _pause: float = 1.0

    def went_on(self) -> None:
        """A step was committed since."""
        self._pause = 1.0

    def next(self, cause: str) -> float:
        """Count a failure, and tell of it.

        Returns:
            Seconds to wait before the next start.

        Raises:
            RestartsUsedUp: there is none.
        """
        limit = self.config.fault_tolerance.max_global_restart
        self.reasons.append(cause)
        count, pause = len(self.reasons), self._pause
        if count > limit:
            raise used_up(self.config, self.reasons)
        self._pause = min(2 * pause, LONGEST_PAUSE)
        _say(f"the driver failed: {cause}\nrelax: starting it again in {pause:g} s ({count} of {limit})")
        start_again(self.config, cause, count)
        return pause


def in_process(config: RelaxConfig, work: Callable[[], T]) -> T:
    """``work``, done again in this process when something that it needs is lost, if the options want that.

    The death of this process itself is for ``supervise``, below which this does nothing.

    Raises:
        RestartsUsedUp: it failed too often.
    """
    try:
        return _tried(config, work)
    finally:
        _again.clear()


def _tried(config: RelaxConfig, work: Callable[[], T]) -> T:
    if not config.fault_tolerance.use_health_check or signs.watched():
        return work()
    restarts, before = Restarts(config), signs.committed()
    while True:
        try:
            return work()
        except Exception as error:
            if not (mendable(error) or (restarts.reasons and isinstance(error, NotStarted))):
                raise
            if signs.committed() > before:
                restarts.went_on()
            before = signs.committed()
            try:
                pause = restarts.next(_text(error))
            except RestartsUsedUp as end:
                raise end from error
            time.sleep(pause)


def _text(error: BaseException) -> str:
    """One line."""
    text = error.problem if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return printable(redact_text(text.strip().splitlines()[0] if text.strip() else type(error).__name__))


def _say(text: str) -> None:
    print(f"relax: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def telling_the_watcher() -> Iterator[None]:
    """Round a driver: the error that ends it is told to the process that watches over it."""
    try:
        yield
    except Exception as error:
        signs.failed(_text(error), mendable(error))
        raise
