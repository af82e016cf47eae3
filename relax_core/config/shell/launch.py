"""A launch script as what it starts: the arguments and the environment of the training.

Guarantee: nothing is run, and no environment but the given one is looked at. What could not be worked out stays in the
arguments as it is written, and a note says where; an environment variable of which that is true is left out.
"""

import os.path
from collections.abc import Mapping
from dataclasses import dataclass

from data.errors import UserError
from relax_core.config.shell.commands import CommandReader
from relax_core.config.shell.context import Found, Reading
from relax_core.config.shell.effects import trains
from relax_core.config.shell.evaluate import Shell
from relax_core.config.shell.leave import TooLongError
from relax_core.config.shell.syntax import ScriptError, Sequence
from relax_core.config.shell.values import Doubt, State, Value, Variable

SOUGHT = "`train.py` or `train_async.py` that python starts, `python -m ....train`, `relax train`"


@dataclass(frozen=True)
class Note:
    """Something that was not understood or was left out, in one sentence; the text names the file if it is another."""

    line: int
    text: str


@dataclass(frozen=True)
class Launch:
    """What a script starts.

    Args:
        arguments: the words after the training program, expanded.
        environment: the variables that the script sets for it, where their values are known.
        notes: what a person must look at.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    notes: tuple[Note, ...]


def read_launch(text: str, *, folder: str | None = None, variables: Mapping[str, str] = {}) -> Launch:
    """What the first training command of a bash script is given, without running anything.

    The script is read as if it were started without arguments and with ``variables`` as its whole environment.

    Args:
        folder: where the script lies; files that it sources are looked for from there.

    Raises:
        UserError: the text is no script, or holds no training command that is reached.
    """
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    commands = _commands(text)
    folder = os.path.abspath(folder) if folder else None
    doubt = Doubt(1, "`$0`, the name of the script, is not known", True, "$0")
    script = Value(f"{folder}/$0" if folder else "$0", (doubt,))
    state = State({name: Variable(Value(value), True, True) for name, value in variables.items()})
    shell = Shell(Reading(), state, folder, script)
    try:
        shell.whole(commands)
    except TooLongError as error:
        shell.remark(error.line, "the script goes on for too long here and was left")
    except RecursionError as error:
        raise UserError("The script is nested too deeply.", "Give the training command by itself.") from error
    if not shell.reading.launches:
        raise _nothing_found(shell, commands)
    return _launch(shell.reading.launches[0], shell.reading.remarks)


def _commands(text: str) -> Sequence:
    try:
        return CommandReader(text).script()
    except ScriptError as error:
        fix = "Does `bash -n` accept the script?"
        raise UserError(f"The script cannot be read: line {error.line}: {error.problem}.", fix) from error
    except RecursionError as error:
        raise UserError("The script is nested too deeply.", "Give the training command by itself.") from error


def _nothing_found(shell: Shell, commands: Sequence) -> UserError:
    details = list(shell.reading.hidden)
    for name, function in shell.state.functions.items():
        if trains((function.body,), shell.state.functions):
            details.append(f"The function `{name}` in line {function.line} holds one, and its call was not reached.")
    if not details:
        details = [f"Line {remark.line}: {remark.text}." for remark in shell.reading.remarks]
    return UserError(
        f"The script starts no training: it was searched for {SOUGHT}.",
        "Give the script that starts the training, and the variables that it asks for.",
        "\n".join(dict.fromkeys(details)),
    )


def _launch(found: Found, remarks: list[Doubt]) -> Launch:
    doubts = [*remarks, *(doubt for argument in found.arguments for doubt in argument.doubts)]
    words = [argument for argument in found.arguments if argument.present]
    for word in words:
        if word.text and not word.text.strip():
            text = "one argument is a blank: does a backslash stand before a blank at the end of a line?"
            doubts.append(Doubt(found.line, text, file=found.file))
    environment: dict[str, str] = {}
    for name, value in found.environment.items():
        unknown = [doubt for doubt in value.doubts if doubt.blocks and doubt.mark and doubt.mark in value.text]
        if unknown:
            first = unknown[0]
            text = f"`{name}` was left out of the environment: {first.text}"
            doubts.append(Doubt(first.line, text, file=first.file))
        else:
            environment[name] = value.text
            doubts.extend(value.doubts)
    return Launch(tuple(word.text for word in words), environment, _notes(doubts))


def _notes(doubts: list[Doubt]) -> tuple[Note, ...]:
    notes: dict[str, Note] = {}
    for doubt in sorted(doubts, key=lambda doubt: (doubt.file, doubt.line)):
        text = f"{doubt.file}: {doubt.text}" if doubt.file else doubt.text[:1].upper() + doubt.text[1:]
        text = text if text.endswith((".", "?")) else f"{text}."
        notes.setdefault(text, Note(doubt.line, text))
    return tuple(notes.values())
