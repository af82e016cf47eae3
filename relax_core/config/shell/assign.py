"""Assignments, alone and among the words of ``export``, ``declare``, ``local`` and their like.

Guarantee: variables end up as bash would leave them, or in doubt.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from relax_core.config.shell.arithmetic import UncountableError
from relax_core.config.shell.context import Context
from relax_core.config.shell.leave import TooLongError
from relax_core.config.shell.syntax import Assign, Text, Word
from relax_core.config.shell.values import Array, Doubt, Status, Value, concatenated

if TYPE_CHECKING:
    from relax_core.config.shell.evaluate import Shell

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MOST = 20_000


def scalar(shell: "Shell", assign: Assign) -> Value:
    """The value of an assignment that is not of an array; after ``+=``, with what was there."""
    value = shell.expander.joined(assign.value) if isinstance(assign.value, Word) else Value("")
    old = shell.state.variables.get(assign.name)
    if assign.append and old and isinstance(old.value, Value):
        return concatenated((old.value, value))
    return value


def assign(shell: "Shell", assign: Assign, exported: bool | None = None, by_key: bool = False) -> None:
    """Set a variable, an element or an array."""
    variable = shell.state.variables.get(assign.name)
    old = variable.value if variable else None
    if isinstance(assign.value, tuple):
        start = Array(by_key=by_key or (isinstance(old, Array) and old.by_key))
        if assign.append and old is not None:
            start = old if isinstance(old, Array) else Array({0: old})
        shell.state.assign(assign.name, _filled(shell, start, assign), exported)
    elif assign.index is not None or isinstance(old, Array):
        array = old if isinstance(old, Array) else Array({} if old is None else {0: old}, by_key=by_key)
        index = assign.index or Word((Text("0"),), assign.line)
        key = _key(shell, array, index)
        if key is None:
            shell.state.doubt((assign.name,), _unknown_index(shell, assign))
            return
        value = shell.expander.joined(assign.value)
        if assign.append and key in array.items:
            value = concatenated((array.items[key], value))
        shell.state.assign(assign.name, replace(array, items={**array.items, key: value}), exported)
    else:
        shell.state.assign(assign.name, scalar(shell, assign), exported)


def _unknown_index(shell: "Shell", assign: Assign) -> Doubt:
    return shell.expander.doubt(assign.line, "an index is not known, so {outcome}", True)


def _key(shell: "Shell", array: Array, index: Word) -> int | str | None:
    if array.by_key:
        key = shell.expander.joined(index)
        return None if key.blocks else key.text
    try:
        return shell.expander.number(index)
    except UncountableError:
        return None


def _filled(shell: "Shell", array: Array, assign: Assign) -> Array:
    elements = assign.value if isinstance(assign.value, tuple) else ()
    for element in elements:
        if element.key is None:
            array = array.extended(shell.expander.fields(element.value))
        else:
            key = _key(shell, array, element.key)
            value = shell.expander.joined(element.value)
            if key is None:
                value = value.doubting((_unknown_index(shell, assign),))
                array = replace(array, gone=(*array.gone, replace(value, present=False)))
            else:
                array = replace(array, items={**array.items, key: value})
        if len(array.items) > _MOST:
            raise TooLongError(assign.line)
    return array


def localise(shell: "Shell", name: str) -> None:
    """Keep a variable's value for the end of the function."""
    if shell.scopes:
        shell.scopes[-1].setdefault(name, shell.state.variables.get(name))


def declare(shell: "Shell", words: list[Value], context: Context) -> Status:
    """``export``, ``declare``, ``local``, ``readonly``, ``typeset``."""
    name, options = words[0].text, "".join(word.text[1:] for word in words[1:] if word.text.startswith("-"))
    removes = any(word.text.startswith("+x") for word in words[1:]) or (name == "export" and "n" in options)
    exported = False if removes else True if name == "export" or "x" in options else None
    local = name == "local" or (name in ("declare", "typeset") and "g" not in options)
    if "f" in options or "p" in options:
        return Status.YES
    for word in words[1:]:
        text = word.text
        if text.startswith(("-", "+")) or not (match := NAME.match(text)):
            continue
        if text[match.end() : match.end() + 1] == "=":
            if local:
                localise(shell, match.group())
            shell.state.assign(match.group(), replace(word, text=text[match.end() + 1 :]), exported)
            continue
        variable = shell.state.variables.get(text)
        if local and shell.scopes and text not in shell.scopes[-1]:
            localise(shell, text)
            shell.state.variables.pop(text, None)
            variable = None
        if variable and exported is not None:
            shell.state.variables[text] = replace(variable, exported=exported, given=False)
        elif exported:
            shell.state.to_export.add(text)
        if variable is None and ("A" in options or "a" in options):
            shell.state.assign(text, Array(by_key="A" in options), exported)
    for one, values in context.assigns:
        if local:
            localise(shell, one.name)
        if not values:
            assign(shell, one, exported, by_key="A" in options)
        for value in values:
            _declared(shell, one, value, exported, "i" in options)
    return shell.captured


def _declared(shell: "Shell", one: Assign, value: Value, exported: bool | None, integer: bool) -> None:
    """One assignment among the arguments of ``export`` and its like, which were all expanded before."""
    old = shell.state.variables.get(one.name)
    if one.append and old and isinstance(old.value, Value):
        value = concatenated((old.value, value))
    if integer and isinstance(one.value, Word):
        try:
            value = shell.expander.calculated(one.value)
        except UncountableError:
            value = shell.expander.unknown(f"${{{one.name}}}", one.line)
    if old and isinstance(old.value, Array):
        shell.state.assign(one.name, replace(old.value, items={**old.value.items, 0: value}), exported)
    else:
        shell.state.assign(one.name, value, exported)
