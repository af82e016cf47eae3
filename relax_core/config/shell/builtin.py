"""What bash does itself: ``read``, ``set``, ``shift``, ``cd``, ``printf``, ``exit`` and others.

Guarantee: variables end up as bash would leave them, or in doubt.
"""

import os.path
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from relax_core.config.shell.assign import NAME, declare
from relax_core.config.shell.context import Context
from relax_core.config.shell.fields import Fields
from relax_core.config.shell.flow import follow_calculation
from relax_core.config.shell.leave import ExitScript, LeaveLoop, ReturnFrom
from relax_core.config.shell.syntax import Text, Word
from relax_core.config.shell.texts import formatted
from relax_core.config.shell.values import Array, Status, Value, concatenated

if TYPE_CHECKING:
    from relax_core.config.shell.evaluate import Shell


def _unset(shell: "Shell", words: list[Value], context: Context) -> Status:
    functions = any(word.text == "-f" for word in words[1:])
    for word in words[1:]:
        if functions or shell.state.variables.pop(word.text, None) is None:
            shell.state.functions.pop(word.text, None)
    return Status.YES


def _set(shell: "Shell", words: list[Value], context: Context) -> Status:
    texts = [word.text for word in words[1:]]
    for position, text in enumerate(texts):
        if text == "--":
            shell.state.arguments = words[position + 2 :]
            break
        if re.fullmatch(r"[-+]\w*a\w*", text):
            shell.state.exports_all = text[0] == "-"
        if text == "allexport" and position:
            shell.state.exports_all = texts[position - 1].startswith("-")
    return Status.YES


def _shift(shell: "Shell", words: list[Value], context: Context) -> Status:
    count = int(words[1].text) if len(words) > 1 and words[1].text.isdigit() else 1
    if shell.state.arguments is None:
        return Status.ASSUMED
    if count > len(shell.state.arguments):
        return Status.NO
    shell.state.arguments = shell.state.arguments[count:]
    return Status.YES


def _cd(shell: "Shell", words: list[Value], context: Context) -> Status:
    targets = [word for word in words[1:] if not word.text.startswith("-")]
    if not targets:
        shell.state.folder = None
        return Status.ASSUMED
    text, names = targets[0].hidden()
    if any(name in text for name in names) or targets[0].blocks:
        shell.state.folder = None
    elif text.startswith("/") or shell.state.folder is not None:
        shell.state.folder = os.path.normpath(os.path.join(shell.state.folder or "/", text))
    return Status.ASSUMED


def _read(shell: "Shell", words: list[Value], context: Context) -> Status:
    options = [word.text for word in words[1:] if word.text.startswith("-")]
    names = [word.text for word in words[1:] if NAME.fullmatch(word.text)]
    known = shell.stdin is not None and not shell.stdin.blocks
    whole = words[0].text != "read"
    if not known or shell.stdin is None or any(option[1:].strip("rats") for option in options):
        doubt = shell.expander.doubt(context.line, "`read` takes its value from elsewhere, so {outcome}", True)
        shell.state.doubt(names, doubt)
        return Status.UNKNOWN
    if whole:
        lines = [Value(line, shell.stdin.doubts) for line in shell.stdin.text.splitlines()]
        shell.state.assign(names[0] if names else "MAPFILE", Array().extended(lines))
        return Status.YES
    ifs = context.environment.get("IFS")
    fields = Fields(ifs.text if ifs else " \t\n")
    fields.split(Value(shell.stdin.text.split("\n", 1)[0], shell.stdin.doubts))
    values = fields.values()
    if any("a" in option for option in options):
        shell.state.assign(names[0] if names else "REPLY", Array().extended(values))
        return Status.YES
    present = [value for value in values if value.present]
    for position, name in enumerate(names):
        rest = present[position:] if position == len(names) - 1 else present[position : position + 1]
        shell.state.assign(name, concatenated(rest, (ifs.text if ifs else " ")[:1]))
    return Status.YES


def _printf(shell: "Shell", words: list[Value], context: Context) -> Status:
    name, rest = "", words[1:]
    if len(rest) > 2 and rest[0].text == "-v":
        name, rest = rest[1].text, rest[2:]
    rest = rest[1:] if rest and rest[0].text == "--" else rest
    value = formatted(rest[0], rest[1:]) if rest else Value("")
    if name and value is None:
        shell.state.doubt(
            (name,), shell.expander.doubt(context.line, "what `printf` writes is not known, so {outcome}", True)
        )
    elif name and value:
        shell.state.assign(name, value)
    else:
        shell.write(value)
    return Status.YES


def _let(shell: "Shell", words: list[Value], context: Context) -> Status:
    status = Status.YES
    for word in words[1:]:
        status = follow_calculation(shell, Word((Text(word.text, quoted=True),), context.line))
    return status


def _status(words: list[Value]) -> Status:
    return Status.ASSUMED if len(words) < 2 or words[1].blocks else Status.of(words[1].text.strip() == "0")


def _exit(shell: "Shell", words: list[Value], context: Context) -> Status:
    status = _status(words)
    if status is Status.NO and not shell.inside and not shell.reading.launches:
        shell.remark(context.line, f"the script ends here with `exit {words[1].text}`; it was read on")
        return status
    raise ExitScript(status)


def _return(shell: "Shell", words: list[Value], context: Context) -> Status:
    raise ReturnFrom(Status.YES if len(words) < 2 else _status(words))


def _leave_loop(shell: "Shell", words: list[Value], context: Context) -> Status:
    levels = int(words[1].text) if len(words) > 1 and words[1].text.isdigit() else 1
    raise LeaveLoop(max(levels, 1), words[0].text == "continue")


BUILTINS: dict[str, Callable[["Shell", list[Value], Context], Status]] = {
    **dict.fromkeys(("export", "declare", "typeset", "local", "readonly"), declare),
    **dict.fromkeys((":", "true"), lambda *_: Status.YES),
    **dict.fromkeys(("false", "getopts"), lambda *_: Status.NO),
    **dict.fromkeys(("read", "mapfile", "readarray"), _read),
    **dict.fromkeys(("break", "continue"), _leave_loop),
    **dict.fromkeys(("cd", "pushd"), _cd),
    "unset": _unset,
    "set": _set,
    "shift": _shift,
    "printf": _printf,
    "let": _let,
    "exit": _exit,
    "return": _return,
}
"""Name -> what it does with its words, the name itself among them."""
