"""``if``, ``for``, ``while``, ``case``, ``&&`` and ``||``: which commands are followed.

Guarantee: a condition that cannot be decided takes no branch, and every variable that a branch would have set is in
doubt from there on.
"""

from typing import TYPE_CHECKING

from relax_core.config.shell.arithmetic import UncountableError
from relax_core.config.shell.conditions import matches_any
from relax_core.config.shell.effects import assigned
from relax_core.config.shell.leave import LeaveLoop, TooLongError
from relax_core.config.shell.syntax import (
    AndOr,
    Calculation,
    Case,
    Command,
    CountingFor,
    For,
    If,
    Sequence,
    Simple,
    Test,
    While,
    Word,
)
from relax_core.config.shell.values import Doubt, Status

if TYPE_CHECKING:
    from relax_core.config.shell.evaluate import Shell

_MOST_TURNS = 2_000


def follow_and_or(shell: "Shell", node: AndOr) -> Status:
    """Follow ``&&`` and ``||``; a program that is not run is taken to succeed."""
    status = shell.command(node.first)
    for position, (operator, command) in enumerate(node.rest):
        if status is Status.UNKNOWN and _is_test(command):
            other = shell.command(command)
            decides = Status.YES if operator == "||" else Status.NO
            status = decides if other is decides else Status.UNKNOWN
            continue
        if status is Status.UNKNOWN:
            rest = tuple(later for _, later in node.rest[position:])
            shell.skip(rest, node.line, node.end, f"what follows `{operator}`")
            return Status.UNKNOWN
        if (status is Status.NO) == (operator == "||"):
            status = shell.command(command)
    return status


def _is_test(command: Command) -> bool:
    """Whether a command only tests something."""
    if isinstance(command, Simple) and command.words and isinstance(command.words[0], Word):
        return command.words[0].literal() in ("[", "test")
    return isinstance(command, Test)


def follow_if(shell: "Shell", node: If) -> Status:
    """Follow the branch whose condition holds."""
    for position, (condition, body) in enumerate(node.branches):
        status = shell.run(condition)
        if status is Status.YES:
            return shell.run(body)
        if status is not Status.NO:
            rest = node.branches[position + 1 :]
            return shell.skip((body, *rest, node.otherwise), node.line, node.end, "`if`")
    return shell.run(node.otherwise)


def _turn(shell: "Shell", body: Sequence) -> bool:
    """Follow a loop's body once; whether the loop goes on."""
    try:
        shell.run(body)
    except LeaveLoop as leave:
        if leave.levels > 1:
            raise LeaveLoop(leave.levels - 1, leave.goes_on) from None
        return leave.goes_on
    return True


def follow_for(shell: "Shell", node: For) -> Status:
    """Follow the body once for each word."""
    if node.words is None:
        values = list(shell.state.arguments or ())
    else:
        values = [value for word in node.words for value in shell.expander.fields(word) if value.present]
    for value in values:
        if value.blocks and value.text in {doubt.mark for doubt in value.doubts}:
            shell.state.doubt((node.name,), Doubt(node.line, "`for` was skipped, so {outcome}", True, "", shell.file))
            return shell.skip((node.body,), node.line, node.end, "`for`")
    for value in values:
        shell.state.assign(node.name, value)
        if not _turn(shell, node.body):
            break
    return Status.YES


def follow_counting(shell: "Shell", node: CountingFor) -> Status:
    """Follow ``for (( ))``."""
    try:
        shell.expander.number(node.start)
        for turn in range(_MOST_TURNS):
            if node.condition.parts and not shell.expander.number(node.condition):
                return Status.YES
            if not _turn(shell, node.body):
                return Status.YES
            shell.expander.number(node.step)
            if turn == _MOST_TURNS - 1:
                raise TooLongError(node.line)
    except UncountableError:
        return shell.skip((node.start, node.body), node.line, node.end, "`for`")
    return Status.YES


def follow_while(shell: "Shell", node: While) -> Status:
    """Follow ``while`` or ``until``."""
    for _ in range(_MOST_TURNS):
        status = shell.run(node.condition)
        if status in (Status.UNKNOWN, Status.ASSUMED):
            return shell.skip((node.body,), node.line, node.end, "`until`" if node.until else "`while`")
        if (status is Status.YES) == node.until or not _turn(shell, node.body):
            return Status.YES
    shell.remark(node.line, "a loop that begins here goes on for too long and was left")
    return Status.ASSUMED


def follow_case(shell: "Shell", node: Case) -> Status:
    """Follow the branch whose pattern matches."""
    subject = shell.expander.joined(node.subject)
    through = False
    status = Status.YES
    for position, branch in enumerate(node.branches):
        matches: bool | None = through or matches_any(subject, branch.patterns, shell.expander)
        if matches is None:
            return shell.skip(node.branches[position:], node.line, node.end, "`case`")
        if matches:
            status = shell.run(branch.body)
            through = branch.ending == ";&"
            if branch.ending in (";;", ""):
                break
    return status


def follow_calculation(shell: "Shell", expression: Word) -> Status:
    """Follow ``(( ))``."""
    try:
        return Status.of(shell.expander.number(expression) != 0)
    except UncountableError:
        shell.state.doubt(
            assigned((Calculation(expression, expression.line),), shell.state.functions),
            Doubt(expression.line, "a calculation needs what is not known, so {outcome}", True, "", shell.file),
        )
        return Status.UNKNOWN
