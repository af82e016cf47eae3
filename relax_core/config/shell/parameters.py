"""What ``$name`` and ``${name...}`` stand for.

Guarantee: a name that was never set stands for nothing and says so; an operator that needs what is not known leaves the
expression as it is written.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relax_core.config.shell.arithmetic import UncountableError
from relax_core.config.shell.syntax import Parameter, Text, Word
from relax_core.config.shell.values import Array, Doubt, Value, merged

if TYPE_CHECKING:
    from relax_core.config.shell.expand import Expander

OF_THE_MACHINE = ("HOME", "USER", "LOGNAME", "PATH", "PWD", "OLDPWD", "HOSTNAME", "SHELL", "UID", "EUID", "HOSTTYPE")
OF_THE_RUN = ("?", "$", "!", "-", "_", "RANDOM", "SECONDS", "EPOCHSECONDS", "BASHPID", "PPID", "PIPESTATUS", "LINENO")


@dataclass(frozen=True)
class Found:
    """What a parameter stands for: values, or a word that is expanded in its place.

    Args:
        several: whether each value is a word of its own (``[@]``).
    """

    values: list[Value]
    several: bool = False
    word: Word | None = None
    doubts: tuple[Doubt, ...] = ()


def expand_parameter(parameter: Parameter, expander: "Expander") -> Found:
    """The values of a parameter."""
    if parameter.prefix == "!":
        parameter = _indirect(parameter, expander)
        if parameter.prefix:
            return _keys(parameter, expander)
    values = _values(parameter, expander)
    several = bool(parameter.every)
    if parameter.prefix == "#":
        return _length(parameter, values, expander)
    operator = parameter.operator
    if operator in (":-", "-", ":=", "=", ":?", "?", ":+", "+"):
        present = [value for value in values or () if value.present]
        missing = not present if values is not None else True
        if operator.startswith(":") and not missing:
            missing = not any(value.text for value in present)
        return _default(parameter, operator[-1], missing, values or [], expander)
    if values is None:
        return Found([_unset(parameter, expander)], several)
    if not operator:
        return Found(values, several)
    if operator == ":":
        return _slice(parameter, values, expander)
    return Found([_changed(parameter, value, expander) if value.present else value for value in values], several)


def _values(parameter: Parameter, expander: "Expander") -> list[Value] | None:
    """The values behind a name, without operator; None where it is not set."""
    name, state = parameter.name, expander.host.state
    if name in ("@", "*"):
        if state.arguments is not None:
            return state.arguments
        text = f"`{parameter.source}` stands for the arguments of the script, and none are given"
        return [Value("", (expander.doubt(parameter.line, text),), present=False)]
    if name == "#":
        doubts = () if state.arguments is not None else (expander.doubt(parameter.line, "`$#` is taken to be 0"),)
        return [Value(str(sum(value.present for value in state.arguments or ())), doubts)]
    if name in ("0", "BASH_SOURCE"):
        return [expander.host.main if name == "0" else expander.host.script]
    if name.isdigit():
        present = [value for value in state.arguments or () if value.present]
        return present[int(name) - 1 : int(name)] or None
    variable = state.variables.get(name)
    if variable is None:
        if name in OF_THE_RUN or name in OF_THE_MACHINE:
            if name == "PWD" and state.folder is not None:
                return [Value(state.folder)]
            text = f"`{parameter.source}` is known only where the script runs"
            return [expander.unknown(f"${name}" if name in OF_THE_MACHINE else parameter.source, parameter.line, text)]
        return None
    value = variable.value
    if isinstance(value, Value):
        at_start = parameter.index is None or parameter.index.literal() in ("0", "-1")
        return [value] if at_start or parameter.every else None
    if parameter.every:
        return value.values()
    return _element(parameter, value, expander)


def _element(parameter: Parameter, array: Array, expander: "Expander") -> list[Value] | None:
    key: int | str = 0
    if parameter.index is not None and array.by_key:
        key = expander.joined(parameter.index).text
    elif parameter.index is not None:
        try:
            key = expander.number(parameter.index)
        except UncountableError:
            return [expander.unknown(parameter.source, parameter.line)]
        if key < 0:
            key += max((item for item in array.items if isinstance(item, int)), default=-1) + 1
    found = array.items.get(key)
    doubts = merged(*(gone.doubts for gone in array.gone))
    if found is None:
        return [Value("", doubts)] if doubts else None
    return [found.doubting(doubts)]


def _unset(parameter: Parameter, expander: "Expander") -> Value:
    state = expander.host.state
    if parameter.name.isdigit() and state.arguments is None:
        text = f"`{parameter.source}` is an argument of the script, and none are given"
        return expander.unknown(parameter.source, parameter.line, text)
    doubt = expander.doubt(parameter.line, f"`{parameter.name}` is not set and stands for nothing")
    return Value("", (doubt,), present=not parameter.every)


def _default(parameter: Parameter, operator: str, missing: bool, values: list[Value], expander: "Expander") -> Found:
    several, word = bool(parameter.every), parameter.argument
    doubts = merged(*(value.doubts for value in values))
    if parameter.name in ("@", "*") or not any(doubt.blocks for doubt in doubts):
        doubts = () if missing else doubts
    if operator == "+":
        return Found([], several, doubts=doubts) if missing else Found([], word=word, doubts=doubts)
    if not missing:
        return Found(values, several)
    if operator == "?":
        text = f"`{parameter.name}` must be set"
        return Found([expander.unknown(f"${{{parameter.name}}}", parameter.line, text)])
    if operator == "=" and word is not None:
        value = expander.joined(word)
        expander.host.state.assign(parameter.name, value)
        return Found([value], doubts=doubts)
    return Found([], word=word, doubts=doubts)


def _indirect(parameter: Parameter, expander: "Expander") -> Parameter:
    """The parameter that ``${!name}`` means; the same one for ``${!name[@]}``, which asks for keys."""
    if parameter.every:
        return parameter
    values = _values(replace(parameter, prefix="", operator=""), expander) or []
    name = values[0].text if values and not values[0].blocks else ""
    if not re.fullmatch(r"[A-Za-z_]\w*|\d+|[@*#]", name):
        return replace(parameter, every="@")
    return replace(parameter, prefix="", name=name, index=None)


def _keys(parameter: Parameter, expander: "Expander") -> Found:
    variable = expander.host.state.variables.get(parameter.name)
    if variable is None or not isinstance(variable.value, Array) or parameter.operator:
        return Found([expander.unknown(parameter.source, parameter.line)])
    keys = variable.value.items if variable.value.by_key else sorted(variable.value.items, key=str)
    ordered = keys if variable.value.by_key else sorted(key for key in keys if isinstance(key, int))
    return Found([Value(str(key)) for key in ordered] + list(variable.value.gone), several=True)


def _length(parameter: Parameter, values: list[Value] | None, expander: "Expander") -> Found:
    values = values or []
    doubts = merged(*(value.doubts for value in values))
    if any(doubt.blocks for doubt in doubts):
        return Found([expander.unknown(parameter.source, parameter.line).doubting(doubts)])
    length = sum(value.present for value in values) if parameter.every else len(values[0].text) if values else 0
    return Found([Value(str(length), doubts)])


def _slice(parameter: Parameter, values: list[Value], expander: "Expander") -> Found:
    doubts = merged(*(value.doubts for value in values))
    try:
        start = expander.number(parameter.argument) if parameter.argument else 0
        length = expander.number(parameter.second) if parameter.second else None
        if any(doubt.blocks for doubt in doubts):
            raise UncountableError
    except UncountableError:
        return Found([expander.unknown(parameter.source, parameter.line).doubting(doubts)])
    if parameter.every:
        chosen = [] if (length or 0) < 0 else _elements(parameter, values, start, expander)[:length]
        return Found(chosen + [value for value in values if not value.present], several=True)
    text = values[0].text
    return Found([Value(text[_bounds(start, length, len(text))], doubts)])


def _elements(parameter: Parameter, values: list[Value], start: int, expander: "Expander") -> list[Value]:
    """The elements from an index on; of arguments, ``$0`` is the first."""
    variable = expander.host.state.variables.get(parameter.name)
    present = [value for value in values if value.present]
    if variable is None or not isinstance(variable.value, Array) or variable.value.by_key:
        present = [expander.host.main, *present] if parameter.name in ("@", "*") else present
        return present[_bounds(start, None, len(present))]
    indices = sorted(key for key in variable.value.items if isinstance(key, int))
    first = start if start >= 0 else max(indices, default=-1) + 1 + start
    return [variable.value.items[index] for index in indices if index >= first >= 0]


def _bounds(start: int, length: int | None, size: int) -> slice:
    first = start if start >= 0 else size + start
    if first < 0:
        return slice(0, 0)
    last = size if length is None else first + length if length >= 0 else size + length
    return slice(first, max(first, last))


def _changed(parameter: Parameter, value: Value, expander: "Expander") -> Value:
    """One value with ``%``, ``#``, ``/``, ``^`` or ``,`` done to it."""
    argument = parameter.argument or Word((), parameter.line)
    text, names = value.hidden()
    if names and not _after_the_unknown(parameter, text, names):
        return expander.unknown(parameter.source, parameter.line).doubting(value.doubts)
    try:
        change, doubts = _change(parameter.operator, argument, parameter.second, expander)
    except re.error:
        return expander.unknown(parameter.source, parameter.line).doubting(value.doubts)
    if any(doubt.blocks for doubt in doubts):
        return expander.unknown(parameter.source, parameter.line).doubting(doubts)
    return value.shown(change(text), names).doubting(doubts)


def _after_the_unknown(parameter: Parameter, text: str, names: dict[str, str]) -> bool:
    """Whether ``%/*`` or ``##*/`` cuts at a slash that follows all that is not known."""
    known = parameter.argument is not None and (parameter.operator, parameter.argument.literal()) in (
        ("%", "/*"),
        ("##", "*/"),
    )
    return (known and text.rfind("/") > max(text.rfind(name) for name in names)) or _names_the_script(text, names)


def _names_the_script(text: str, names: dict[str, str]) -> bool:
    """Whether the only thing unknown is the script's own name, which holds no slash."""
    return list(names.values()) == ["$0"] and "/" in text


def _change(
    operator: str, argument: Word, second: Word | None, expander: "Expander"
) -> tuple[Callable[[str], str], tuple[Doubt, ...]]:
    if operator in ("/", "//"):
        mark = argument.parts[0].text if isinstance(argument.parts[0], Text) else ""
        expression, doubts = expander.regex(Word(argument.parts[1:], argument.line))
        new = expander.replacement(second) if second else Value("")
        anchored = {"#": f"^(?:{expression})", "%": f"(?:{expression})$"}.get(mark, expression)
        pattern = re.compile(anchored.replace("$", r"\Z") if mark == "%" else anchored, re.DOTALL)
        count = 0 if operator == "//" else 1
        if not expression and not mark:
            return lambda text: text, doubts

        def replaced(text: str) -> str:
            return pattern.sub(lambda match: new.text if match.group() or mark or not text else "", text, count=count)

        return replaced, merged(doubts, new.doubts)
    expression, doubts = expander.regex(argument)
    compiled = re.compile(expression, re.DOTALL)
    if operator[0] in "%#":
        return lambda text: _without(text, compiled, operator), doubts
    case = str.upper if operator[0] == "^" else str.lower
    some = not argument.parts

    def changed(text: str) -> str:
        end = len(text) if len(operator) == 2 else 1
        return "".join(case(char) if some or compiled.fullmatch(char) else char for char in text[:end]) + text[end:]

    return changed, doubts


def _without(text: str, pattern: re.Pattern[str], operator: str) -> str:
    """The text without what matches at its end (``%``) or its start (``#``); doubled, the longest match."""
    cuts = range(len(text) + 1)
    if operator in ("%", "##"):
        cuts = cuts[::-1]
    for cut in cuts:
        if operator[0] == "%" and pattern.fullmatch(text, cut):
            return text[:cut]
        if operator[0] == "#" and pattern.fullmatch(text, 0, cut):
            return text[cut:]
    return text
