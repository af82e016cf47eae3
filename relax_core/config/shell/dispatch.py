"""One command with its words: a function, something that bash does, another script, a training, or anything else.

Guarantee: no program is run. Files are read only where ``source`` or ``bash`` names them; the words of the first
training command are kept with the environment that it would have.
"""

import json
import os.path
import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from relax_core.config.shell.builtin import BUILTINS
from relax_core.config.shell.commands import CommandReader
from relax_core.config.shell.conditions import evaluate_test
from relax_core.config.shell.context import Context, Found
from relax_core.config.shell.effects import TRAINING
from relax_core.config.shell.leave import ExitScript, ReturnFrom, TooLongError
from relax_core.config.shell.syntax import ScriptError, Sequence
from relax_core.config.shell.texts import COMMANDS
from relax_core.config.shell.values import LIMIT, State, Status, Value, concatenated

if TYPE_CHECKING:
    from relax_core.config.shell.evaluate import Shell

WRAPPERS = ("exec", "command", "builtin", "nohup", "time", "setsid")
SHELLS = ("bash", "sh", "zsh", "dash")
_LAUNCHER = re.compile(
    r"(^|/)(python[\d.]*|pypy[\d.]*|torchrun|accelerate|deepspeed|uv|poetry|srun|mpirun|mpiexec|"
    r"sudo|timeout|nice|stdbuf|numactl|--)$"
)
_SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL | re.ASCII)
_DEEPEST = 40
_PARENTS = 4


def dispatch(shell: "Shell", words: list[Value], context: Context, functions: bool = True) -> Status:
    """Follow one command."""
    present = [word for word in words if word.present]
    if not present:
        return shell.captured
    gone = [word for word in words if not word.present]
    name = present[0].text
    if functions and name in shell.state.functions:
        return shell.call(shell.state.functions[name], present[1:] + gone, context)
    if name in BUILTINS:
        return BUILTINS[name](shell, present, context)
    if name in ("[", "test"):
        closed = name == "test" or present[-1].text == "]"
        return evaluate_test(present[1:] if name == "test" else present[1:-1], shell.expander) if closed else Status.NO
    if name in COMMANDS:
        shell.write(COMMANDS[name](present[1:], shell.stdin, shell.state.folder))
        return Status.YES
    if name in WRAPPERS and len(present) > 1 and not present[1].text.startswith("-"):
        status = dispatch(shell, present[1:] + gone, context, functions=name in ("time",))
        if name == "exec":
            raise ExitScript(status)
        return status
    if name in ("source", ".", "eval"):
        with shell.setting(context.environment):
            return (_eval if name == "eval" else _source)(shell, present, context)
    if os.path.basename(name) == "env":
        return _env(shell, words, context)
    return _program(shell, words, context)


def _program(shell: "Shell", words: list[Value], context: Context) -> Status:
    present = [word for word in words if word.present]
    texts = [word.text for word in present]
    if ("job", "submit") in pairwise(texts[:7]) and any("ray" in text for text in texts[:4]):
        rest = _job(shell, words, context)
        if rest:
            return dispatch(shell, rest, context, functions=False)
    start = training_at(words)
    if start is not None:
        _keep(shell, words[start:], context)
    elif os.path.basename(texts[0]) in SHELLS:
        return _script(shell, present, context)
    elif texts[0].startswith("--"):
        text = f"`{texts[0]}` stands at the start of a command: the command before has ended, perhaps at a comment"
        shell.remark(context.line, text)
    shell.write(None)
    return Status.ASSUMED


def training_at(words: list[Value]) -> int | None:
    """Where the arguments of a training begin; None where the command is none."""
    launched, before = False, ""
    for position, word in enumerate(words):
        text = word.text
        if not word.present:
            continue
        program = text.endswith(".py") and TRAINING.search(text) and (launched or position == 0)
        module = before == "-m" and TRAINING.search(text)
        relax = text == "train" and os.path.basename(before) == "relax" and (launched or position == 1)
        if program or module or relax:
            return position + 1
        launched |= word.blocks or _LAUNCHER.search(text) is not None
        before = text
    return None


def _keep(shell: "Shell", arguments: list[Value], context: Context) -> None:
    launches = shell.reading.launches
    if launches:
        again = launches[0].line == context.line and launches[0].file == shell.file
        text = "the training is started again with other values" if again else "another training is started"
        shell.remark(context.line, f"{text}; only the first one counts")
        return
    environment = {} if context.cleared else dict(shell.state.exports())
    environment.update(context.environment)
    launches.append(Found(arguments, environment, context.line, shell.file))


def _job(shell: "Shell", words: list[Value], context: Context) -> list[Value]:
    """Read the options of ``ray job submit``; the command after ``--``."""
    for position, word in enumerate(words):
        option, equals, _ = word.text.partition("=")
        if option == "--":
            return words[position + 1 :]
        value = replace(word, text=word.text[len(option) + 1 :])
        if not equals and option.startswith("--runtime"):
            value = words[position + 1] if position + 1 < len(words) else Value("")
        if option == "--runtime-env-json":
            _runtime_environment(shell, value, context)
        elif option == "--runtime-env":
            shell.remark(context.line, f"the runtime environment in `{value.text}` was left out")
    return []


def _runtime_environment(shell: "Shell", value: Value, context: Context) -> None:
    text, names = value.hidden()
    try:
        content = json.loads(text, strict=False)
        variables = content.get("env_vars", {}).items()
    except (ValueError, AttributeError, RecursionError):
        reason = next((f": {doubt.text}" for doubt in value.doubts if doubt.blocks), ", since it is no JSON object")
        shell.remark(context.line, f"the runtime environment of `ray job submit` was left out{reason}")
        return
    for name, setting in variables:
        written = setting if isinstance(setting, str) else json.dumps(setting)
        context.environment[str(name)] = value.shown(written, names)


def _env(shell: "Shell", words: list[Value], context: Context) -> Status:
    rest = words[1:]
    while rest:
        text = rest[0].text
        match = _SETTING.match(text)
        if match:
            context.environment[match.group(1)] = replace(rest[0], text=match.group(2))
        elif text in ("-u", "--unset") and len(rest) > 1:
            rest = rest[1:]
        elif text in ("-i", "-", "--ignore-environment"):
            context.cleared = True
        elif rest[0].present and not text.startswith("-"):
            return dispatch(shell, rest, context, functions=False)
        rest = rest[1:]
    shell.write(None)
    return Status.ASSUMED


def read_commands(shell: "Shell", text: str, name: str, line: int, first_line: int = 1) -> Sequence | None:
    """The commands of another text; None, and a remark, where it is no script."""
    try:
        return CommandReader(text, first_line).script()
    except ScriptError as error:
        shell.remark(line, f"{name} was left out, because it is no script: {error.problem} (line {error.line})")
    except RecursionError:
        shell.remark(line, f"{name} was left out, because it is nested too deeply")
    return None


def find_file(shell: "Shell", path: str) -> str | None:
    """The file that ``source`` means: from the working folder, else from the script's folder or one above it."""
    folders = [shell.state.folder, shell.folder]
    for _ in range(_PARENTS):
        folders.append(os.path.dirname(folders[-1]) if folders[-1] else None)
    for folder in dict.fromkeys(folder for folder in folders if folder):
        candidate = os.path.normpath(os.path.join(folder, path))
        if os.path.isfile(candidate):
            return candidate
    return path if os.path.isabs(path) and os.path.isfile(path) else None


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LIMIT + 1)
    except (OSError, UnicodeDecodeError):
        return None
    return text.replace("\r\n", "\n").removeprefix("\ufeff") if len(text) <= LIMIT else None


def _source(shell: "Shell", words: list[Value], context: Context) -> Status:
    target = words[1] if len(words) > 1 else Value("")
    path = None if target.blocks else find_file(shell, target.text)
    text = _content(path) if path else None
    commands = None
    if path and text is not None:
        commands = read_commands(shell, text, f"`{target.text}`", context.line)
    else:
        reason = "its place is not known" if target.blocks else "it was not found" if path is None else "is no text"
        shell.remark(context.line, f"`source {target.text}` was left out: {reason}")
    if path is None or commands is None:
        return Status.ASSUMED
    before = shell.file, shell.script, shell.state.arguments
    shell.file = os.path.relpath(path, shell.folder) if shell.folder else path
    shell.script = Value(path)
    if len(words) > 2:
        shell.state.arguments = words[2:]
    shell.reading.depth += 1
    try:
        if shell.reading.depth > _DEEPEST:
            raise TooLongError(context.line)
        return shell.run(commands)
    except ReturnFrom as leave:
        return leave.status
    finally:
        shell.reading.depth -= 1
        shell.file, shell.script, arguments = before
        if len(words) > 2:
            shell.state.arguments = arguments


def _eval(shell: "Shell", words: list[Value], context: Context) -> Status:
    text = concatenated(words[1:], " ")
    commands = None if text.blocks else read_commands(shell, text.text, "`eval`", context.line, context.line)
    if commands is None:
        shell.write(None)
        return Status.ASSUMED
    shell.reading.depth += 1
    try:
        if shell.reading.depth > _DEEPEST:
            raise TooLongError(context.line)
        return shell.run(commands)
    finally:
        shell.reading.depth -= 1


def _script(shell: "Shell", words: list[Value], context: Context) -> Status:
    """``bash file arguments`` or ``bash -c text name arguments``."""
    rest, inline = words[1:], False
    while rest and re.match(r"[-+]\w|--\w", rest[0].text):
        inline |= re.match(r"-\w*c", rest[0].text) is not None
        takes = rest[0].text in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file")
        rest = rest[2:] if takes else rest[1:]
    if not rest or rest[0].blocks:
        shell.write(None)
        return Status.ASSUMED
    target, folder, file, script = rest[0], shell.folder, shell.file, shell.script
    path = None if inline else find_file(shell, target.text)
    text = target.text if inline else _content(path) if path else None
    if text is None:
        shell.reading.hidden.append(f"Line {context.line} starts `{target.text}`, which was not found.")
        shell.write(None)
        return Status.ASSUMED
    if inline:
        script = rest[1] if len(rest) > 1 else Value(words[0].text)
    if path:
        file = os.path.relpath(path, folder) if folder else path
        folder, script = os.path.dirname(path), Value(path)
    commands = read_commands(shell, text, f"`{words[0].text}`", context.line, context.line if inline else 1)
    variables = {} if context.cleared else {n: v for n, v in shell.state.variables.items() if v.exported}
    state = State(variables, arguments=rest[2 if inline else 1 :], folder=shell.state.folder)
    for name, value in context.environment.items():
        state.assign(name, value, exported=True)
    return shell.child(state, folder, script, file).whole(commands) if commands else Status.ASSUMED
