"""Following a script: which commands come one after the other, and what each leaves behind.

Guarantee: nothing is run. A condition that cannot be decided takes no branch, and every variable that a branch would
have set is in doubt from there on; what loops for too long is left with a ``TooLongError``.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from relax_core.config.shell import flow
from relax_core.config.shell.assign import assign as set_variable
from relax_core.config.shell.assign import scalar
from relax_core.config.shell.conditions import evaluate_condition
from relax_core.config.shell.context import Context, Reading
from relax_core.config.shell.dispatch import dispatch
from relax_core.config.shell.effects import assigned, trains
from relax_core.config.shell.expand import Expander, short
from relax_core.config.shell.leave import ExitScript, LeaveLoop, ReturnFrom, TooLongError, UnknownOutput
from relax_core.config.shell.patterns import expand_braces
from relax_core.config.shell.syntax import (
    AndOr,
    Assign,
    Calculation,
    Case,
    Command,
    CountingFor,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Redirect,
    Sequence,
    Simple,
    Substitution,
    Test,
    While,
    Word,
)
from relax_core.config.shell.values import Doubt, State, Status, Value, concatenated

_MOST_STEPS = 50_000
_DEEPEST = 40


class Shell:
    """One script that is followed, with its state.

    Args:
        folder: where the script lies; None where that is not known.
        script: its path, as ``BASH_SOURCE`` has it.
    """

    def __init__(self, reading: Reading, state: State, folder: str | None, script: Value, file: str = "") -> None:
        self.reading, self.state, self.folder = reading, state, folder
        self.script, self.main, self.file = script, script, file
        self.output: list[Value] | None = None
        self.stdin: Value | None = None
        self.inside = 0
        self.captured = Status.YES
        self.scopes: list[dict[str, Any]] = []
        self.expander = Expander(self)

    def remark(self, line: int, text: str) -> None:
        """Tell the person."""
        doubt = Doubt(line, text, file=self.file)
        if doubt not in self.reading.remarks:
            self.reading.remarks.append(doubt)

    def write(self, value: Value | None) -> None:
        """Add to the output, where one is wanted; None is an output that is not known."""
        if self.output is not None and value is None:
            raise UnknownOutput
        if self.output is not None and value is not None:
            self.output.append(value)

    def child(self, state: State, folder: str | None, script: Value, file: str) -> "Shell":
        """Another script that this one starts."""
        shell = Shell(self.reading, state, folder, script, file)
        shell.output, shell.stdin, shell.inside = self.output, self.stdin, self.inside
        return shell

    def whole(self, commands: Sequence) -> Status:
        """Follow a whole script, up to its ``exit``."""
        self.reading.depth += 1
        try:
            if self.reading.depth > _DEEPEST:
                raise TooLongError(0)
            return self.run(commands)
        except (ExitScript, ReturnFrom) as leave:
            return leave.status
        except LeaveLoop:
            return Status.YES
        finally:
            self.reading.depth -= 1

    def run(self, commands: Sequence) -> Status:
        """Follow commands; how the last of them ended."""
        status = Status.YES
        for command in commands.commands:
            status = self.command(command)
        return status

    def command(self, node: Command) -> Status:
        """Follow one command."""
        self.reading.steps += 1
        if self.reading.steps > _MOST_STEPS:
            raise TooLongError(getattr(node, "line", 0))
        if isinstance(node, Simple):
            return self._simple(node)
        if isinstance(node, AndOr):
            return flow.follow_and_or(self, node)
        if isinstance(node, If):
            return flow.follow_if(self, node)
        if isinstance(node, For):
            return flow.follow_for(self, node)
        if isinstance(node, CountingFor):
            return flow.follow_counting(self, node)
        if isinstance(node, While):
            return flow.follow_while(self, node)
        if isinstance(node, Case):
            return flow.follow_case(self, node)
        if isinstance(node, Group):
            return self._group(node)
        if isinstance(node, Pipeline):
            return self._pipeline(node)
        if isinstance(node, Test):
            return Status.of(evaluate_condition(node.condition, self.expander))
        if isinstance(node, Calculation):
            return flow.follow_calculation(self, node.expression)
        self.state.functions[node.name] = node
        return Status.YES

    def skip(self, nodes: Iterable[Any], line: int, end: int, kind: str) -> Status:
        """Pass commands without following them, because it is not known whether they run."""
        nodes = tuple(nodes)
        where = f"line {line}" if line == end else f"lines {line} to {end}"
        reason = f"{kind} in {where} depends on what is not known here and was skipped"
        if trains(nodes, self.state.functions):
            self.remark(line, f"{reason}, with a training command in it")
            self.reading.hidden.append(f"{kind} in {where}{f' of {self.file}' if self.file else ''} was skipped.")
        doubt = Doubt(line, f"{reason}, so {{outcome}}", True, "", self.file)
        self.state.doubt(assigned(nodes, self.state.functions), doubt)
        if self.output is not None:
            raise UnknownOutput
        return Status.ASSUMED

    def _simple(self, node: Simple) -> Status:
        words: list[Value] = []
        assigns: list[tuple[Assign, list[Value]]] = []
        for word in node.words:
            if isinstance(word, Assign):
                assigns.append((word, self._settings(word)))
            else:
                words.extend(self.expander.fields(word))
        self.captured = Status.YES
        if not node.words:
            for assign in node.assignments:
                set_variable(self, assign)
            if self.output is not None and node.redirects and not node.assignments:
                raise UnknownOutput  # `$(< file)`
            return self.captured
        before: dict[str, Value] = {}
        for assign in node.assignments:
            with self.setting(before):
                before[assign.name] = scalar(self, assign)
        stdin, output = self.stdin, self.output
        self.stdin = self._input(node.redirects) or stdin
        if self._elsewhere(node.redirects):
            self.output = None
        try:
            return dispatch(self, words, Context(before, assigns, node.line))
        finally:
            self.stdin, self.output = stdin, output

    def _settings(self, assign: Assign) -> list[Value]:
        """What ``export name=word`` sets, one after the other; several values where the word has braces."""
        if not isinstance(assign.value, Word) or assign.index:
            return []
        words = expand_braces(assign.value)
        if len(words) == 1:
            return [self.expander.joined(assign.value)]
        fields = [self.expander.fields(word) for word in words]  # bash: no assignments any more, so they are split
        return [values[0] if values else Value("") for values in fields]

    def _input(self, redirects: Iterable[Redirect]) -> Value | None:
        found = None
        for redirect in redirects:
            if redirect.operator in ("<<", "<<-", "<<<"):
                value = self.expander.joined(redirect.word)
                found = concatenated((value, Value("\n" if redirect.operator == "<<<" else "")))
            elif redirect.operator in ("<", "<&", "<>"):
                found = self.expander.unknown("", 0, "a file")
        return found

    def _elsewhere(self, redirects: Iterable[Redirect]) -> bool:
        """Whether the output goes into a file or to the errors."""
        return any(r.operator[0] in ">&" and r.descriptor in ("", "1") for r in redirects)

    def _group(self, node: Group) -> Status:
        output = self.output
        if self._elsewhere(node.redirects):
            self.output = None
        try:
            return self._apart(node.body) if node.subshell else self.run(node.body)
        finally:
            self.output = output

    def _apart(self, body: Sequence | Command) -> Status:
        """Follow commands in a subshell, whose changes stay there."""
        state, self.state = self.state, self.state.copy()
        self.inside += 1
        try:
            return self.run(body) if isinstance(body, Sequence) else self.command(body)
        except ExitScript as leave:
            return leave.status
        except (ReturnFrom, LeaveLoop):
            return Status.YES
        finally:
            self.inside -= 1
            self.state = state

    def _pipeline(self, node: Pipeline) -> Status:
        if len(node.commands) == 1:
            status = self.command(node.commands[0])
            turned = {Status.YES: Status.NO, Status.NO: Status.YES}
            return turned.get(status, Status.UNKNOWN)
        output, stdin, status = self.output, self.stdin, Status.ASSUMED
        try:
            for position, command in enumerate(node.commands):
                last = position == len(node.commands) - 1
                self.output = output if last or output is None else []
                status = self._apart(command)
                if not last and self.output is not None:
                    self.stdin = concatenated(self.output)
        finally:
            self.output, self.stdin = output, stdin
        return status

    @contextmanager
    def setting(self, environment: Mapping[str, Value]) -> Iterator[None]:
        """Variables that are set for one command."""
        before = {name: self.state.variables.get(name) for name in environment}
        for name, value in environment.items():
            self.state.assign(name, value, exported=True)
        try:
            yield
        finally:
            for name, variable in before.items():
                self.state.restore(name, variable)

    def capture(self, substitution: Substitution) -> Value:
        """The output of a command substitution, without the new lines at its end."""
        output, self.output = self.output, []
        self.reading.depth += 1
        try:
            if self.reading.depth > _DEEPEST:
                raise TooLongError(substitution.line)
            self.captured = self._apart(substitution.body)
            value = concatenated(self.output)
            return Value(value.text.rstrip("\n"), value.doubts)
        except UnknownOutput:
            self.captured = Status.ASSUMED
            text = f"`{short(substitution.source)}` is a command, which is not run"
            return self.expander.unknown(substitution.source, substitution.line, text)
        finally:
            self.reading.depth -= 1
            self.output = output

    def call(self, function: Function, arguments: list[Value], context: Context) -> Status:
        """Follow a function's body with arguments of its own."""
        outer, self.state.arguments = self.state.arguments, arguments
        self.reading.depth += 1
        self.scopes.append({})
        try:
            if self.reading.depth > _DEEPEST:
                raise TooLongError(function.line)
            with self.setting(context.environment):
                return self.command(function.body)
        except ReturnFrom as leave:
            return leave.status
        finally:
            for name, variable in self.scopes.pop().items():
                self.state.restore(name, variable)
            self.reading.depth -= 1
            self.state.arguments = outer
