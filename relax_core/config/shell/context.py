"""What stands around a command, and what comes out of following a script.

Guarantee: the classes hold data alone.
"""

from dataclasses import dataclass, field

from relax_core.config.shell.syntax import Assign
from relax_core.config.shell.values import Doubt, Value


@dataclass
class Context:
    """What stands around a command's words.

    Args:
        environment: variables that are set for the command alone.
        assigns: the assignments among the words of ``export`` and its like, with their values unless they are arrays.
        cleared: whether the command starts with an empty environment otherwise.
    """

    environment: dict[str, Value]
    assigns: list[tuple[Assign, list[Value]]]
    line: int
    cleared: bool = False


@dataclass
class Found:
    """A training command: its arguments and its environment."""

    arguments: list[Value]
    environment: dict[str, Value]
    line: int
    file: str
    doubts: list[Doubt] = field(default_factory=list)


@dataclass
class Reading:
    """What comes out of following a script and all that it calls.

    Args:
        remarks: what to tell the person whatever the result.
        hidden: where a training command is that was not reached, one sentence each.
    """

    launches: list[Found] = field(default_factory=list)
    remarks: list[Doubt] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    steps: int = 0
    depth: int = 0
