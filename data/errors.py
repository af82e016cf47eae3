"""The one error that a person sees.

Guarantee: a ``UserError`` reads as one paragraph that names the cause and the fix; the command line prints it without a
traceback and exits with ``exit_code``, which is never 0.
"""


class UserError(Exception):
    """A mistake that the person at the keyboard can mend.

    Args:
        problem: what is wrong: the option or row, the value, the reason. One or two sentences.
        fix: what to do about it. One sentence; empty when the problem says it.
        details: lines shown below the paragraph, e.g. the last lines of an engine's log.
    """

    exit_code = 2

    def __init__(self, problem: str, fix: str = "", details: str = "") -> None:
        super().__init__(problem, fix, details)
        self.problem, self.fix, self.details = problem, fix, details

    def __str__(self) -> str:
        text = f"{self.problem} {self.fix}".strip()
        return f"{text}\n{self.details}" if self.details else text


class Lost(UserError):
    """Something that the work needs has died or cannot be reached: no mistake, and a new start can mend it.

    ``--use-health-check`` makes that start.
    """

    exit_code = 75  # EX_TEMPFAIL


class NotStarted(UserError):
    """A process did not come up: a mistake in the options where it never has, ``Lost`` where it has before."""
