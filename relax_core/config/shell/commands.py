"""From words to commands: lists, pipelines, ``if``, ``for``, ``while``, ``case``, functions.

Guarantee: every command of the script is found with its lines, or a ``ScriptError`` says in which line what is open or
out of place; nothing is evaluated.
"""

import re
from collections.abc import Callable, Collection

from relax_core.config.shell.conditions import read_condition
from relax_core.config.shell.simple import SimpleReader
from relax_core.config.shell.syntax import (
    AndOr,
    Branch,
    Calculation,
    Case,
    Command,
    CountingFor,
    For,
    Function,
    Group,
    If,
    Opaque,
    Pipeline,
    ScriptError,
    Sequence,
    Test,
    While,
    Word,
)

_FUNCTION = re.compile(r"([\w.:+@-]+)[ \t]*\([ \t]*\)", re.ASCII)
_CLOSING = ("then", "elif", "else", "fi", "do", "done", "esac", "}")


class CommandReader(SimpleReader):
    """A place in a text, and how to read the commands from there."""

    def script(self) -> Sequence:
        """All commands of the text."""
        commands = self._commands(())
        if self.pos < len(self.text):
            raise ScriptError(self.line(), f"`{self.shown()}` closes nothing here")
        self.here_documents()
        return commands

    def commands_until(self, end: str, line: int, opened: str) -> Sequence:
        commands = self._commands(())
        if not self.at(end):
            where = f"`{self.shown()}` stands in line {self.line()}" if self.char() else "the script ends"
            raise ScriptError(line, f"{opened}, which opens here, is never closed: {where}")
        self.pos += len(end)
        return commands

    def _keyword(self, name: str, line: int, opened: str) -> None:
        self.space(newlines=True)
        if self.bare() != name:
            where = f"`{self.shown()}` stands in line {self.line()}" if self.char() else "the script ends"
            raise ScriptError(line, f"`{opened}` has no `{name}`: {where}")
        self.pos += len(name)

    def _commands(self, stops: Collection[str]) -> Sequence:
        commands: list[Command] = []
        while True:
            self.space(newlines=True)
            if not self.char() or self.char() == ")" or self.at(";;") or self.at(";&") or self.bare() in stops:
                return Sequence(tuple(commands))
            commands.append(self._and_or())
            self.space()
            if self.char() in (";", "&") and not self.at(";;") and not self.at(";&"):
                self.pos += 1
            elif self.char() and self.char() not in "\n)" and not self.at(";;") and not self.at(";&"):
                raise ScriptError(self.line(), f"`{self.shown()}` cannot stand here")

    def _and_or(self) -> Command:
        line, first, rest = self.line(), self._pipeline(), list[tuple[str, Command]]()
        while True:
            self.space()
            operator = next((o for o in ("&&", "||") if self.at(o)), None)
            if operator is None:
                return AndOr(first, tuple(rest), line, self.line()) if rest else first
            self.pos += 2
            self.space(newlines=True)
            rest.append((operator, self._pipeline()))

    def _pipeline(self) -> Command:
        line, negated, commands = self.line(), False, list[Command]()
        while self.bare() in ("!", "time"):
            negated ^= self.char() == "!"
            self.pos += len(self.bare())
            self.space()
        while True:
            commands.append(self._command())
            self.space()
            if not self.at("|") or self.at("||"):
                break
            self.pos += 2 if self.at("|&") else 1
            self.space(newlines=True)
        return Pipeline(tuple(commands), negated, line) if negated or len(commands) > 1 else commands[0]

    def _command(self) -> Command:
        bare, line = self.bare(), self.line()
        compound: dict[str, Callable[[], Command]] = {
            "if": self._if,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "case": self._case,
            "{": self._group,
            "[[": self._test,
        }
        function = _FUNCTION.match(self.text, self.pos)
        if self.at("(("):
            start = self.pos
            self.pos += 2
            expression = self.expression()
            if expression is not None:
                self.redirects()
                return Calculation(expression, line)
            self.pos = start
        if self.char() == "(":
            self.pos += 1
            body = self.commands_until(")", line, "`(`")
            return Group(body, True, self.redirects(), line, self.line())
        if bare == "function":
            self.pos += len(bare)
            self.space()
            name = self.bare()
            self.pos += len(name)
            match = re.compile(r"[ \t]*\([ \t]*\)").match(self.text, self.pos)
            return self._function(name, match.end() if match else self.pos, line)
        if function and function.group(1) not in compound:
            return self._function(function.group(1), function.end(), line)
        if bare in compound:
            command = compound[bare]()
            if not isinstance(command, Group):
                self.redirects()
            return command
        if bare in _CLOSING:
            raise ScriptError(line, f"`{bare}` closes nothing here")
        return self.simple()

    def _function(self, name: str, end: int, line: int) -> Command:
        self.pos = end
        self.space(newlines=True)
        return Function(name, self._command(), line, self.line())

    def _group(self) -> Command:
        line = self.line()
        self.pos += 1
        body = self._commands(("}",))
        self._keyword("}", line, "{")
        return Group(body, False, self.redirects(), line, self.line())

    def _if(self) -> Command:
        line, branches, otherwise, opened = self.line(), list[tuple[Sequence, Sequence]](), Sequence(), "if"
        while opened in ("if", "elif"):
            self.pos += len(opened)
            condition = self._commands(("then",))
            self._keyword("then", line, "if")
            branches.append((condition, self._commands(("elif", "else", "fi"))))
            opened = self.bare()
        if opened == "else":
            self.pos += len("else")
            otherwise = self._commands(("fi",))
        self._keyword("fi", line, "if")
        return If(tuple(branches), otherwise, line, self.line())

    def _body(self, line: int, opened: str) -> Sequence:
        self._keyword("do", line, opened)
        body = self._commands(("done",))
        self._keyword("done", line, opened)
        return body

    def _while(self) -> Command:
        line, opened = self.line(), self.bare()
        self.pos += len(opened)
        condition = self._commands(("do",))
        body = self._body(line, opened)
        return While(condition, body, opened == "until", line, self.line())

    def _for(self) -> Command:
        line, opened = self.line(), self.bare()
        self.pos += len(opened)
        self.space()
        if self.at("(("):
            self.pos += 2
            parts = [self.expression(";"), self.expression(";"), self.expression()]
            self.space()
            self.pos += self.char() == ";"
            body = self._body(line, opened)
            if None in parts:
                raise ScriptError(line, "`for ((` needs three expressions and `))`")
            start, condition, step = (part for part in parts if part is not None)
            return CountingFor(start, condition, step, body, line, self.line())
        name = self.bare()
        self.pos += len(name)
        self.space(newlines=True)
        words: list[Word] | None = None
        if self.bare() == "in":
            self.pos += len("in")
            words = []
            self.space()
            while self.char() and self.char() not in ";\n":
                words.append(self.plain_word())
                self.space()
        self.pos += self.char() == ";"
        body = self._body(line, opened)
        if opened == "select":  # what a person would choose is not known
            words = [Word((Opaque("select", line),), line)]
        return For(name, None if words is None else tuple(words), body, line, self.line())

    def _case(self) -> Command:
        line, branches = self.line(), list[Branch]()
        self.pos += len("case")
        self.space()
        subject = self.plain_word()
        self._keyword("in", line, "case")
        while True:
            self.space(newlines=True)
            if self.bare() == "esac" or not self.char():
                break
            self.pos += self.char() == "("
            patterns = list[Word]()
            while not patterns or self.char() == "|":
                self.pos += bool(patterns)
                self.space()
                patterns.append(self.plain_word())
                self.space()
            if self.char() != ")":
                raise ScriptError(self.line(), f"the pattern of `case` needs a `)`, not `{self.shown()}`")
            self.pos += 1
            body = self._commands(("esac",))
            ending = next((e for e in (";;&", ";;", ";&") if self.at(e)), "")
            self.pos += len(ending)
            branches.append(Branch(tuple(patterns), body, ending))
        self._keyword("esac", line, "case")
        return Case(subject, tuple(branches), line, self.line())

    def _test(self) -> Command:
        line = self.line()
        self.pos += 2
        return Test(read_condition(self, line), line)
