"""What ends the present command from inside: ``exit``, ``return``, ``break``, an output that is not known.

Guarantee: none of these leaves ``read_launch``.
"""

from relax_core.config.shell.values import Status


class ExitScript(Exception):
    """``exit``."""

    def __init__(self, status: Status = Status.YES) -> None:
        super().__init__(status)
        self.status = status


class ReturnFrom(Exception):
    """``return``, from a function or a sourced file."""

    def __init__(self, status: Status = Status.YES) -> None:
        super().__init__(status)
        self.status = status


class LeaveLoop(Exception):
    """``break``, or ``continue`` where the loop goes on."""

    def __init__(self, levels: int, goes_on: bool) -> None:
        super().__init__(levels, goes_on)
        self.levels, self.goes_on = levels, goes_on


class UnknownOutput(Exception):
    """A command whose output is wanted would have to be run."""


class TooLongError(Exception):
    """The script does too much to be followed; the line where that was noticed."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line
