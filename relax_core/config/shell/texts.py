"""Commands whose output follows from their words alone: ``echo``, ``printf``, ``seq``, ``dirname``, ``tr`` and others.

Guarantee: no command is run and no file is looked at; an output that would need either is None.
"""

import os.path
import re
from collections.abc import Callable, Sequence

from relax_core.config.shell.arithmetic import UncountableError, number_of
from relax_core.config.shell.escapes import unescape
from relax_core.config.shell.values import LIMIT, Value, concatenated, merged

_FORMAT = re.compile(r"%([-+ 0#]*)(\d*)(?:\.(\d+))?([sdiuxXofeEgGcbq%])|%(.?)", re.DOTALL)
_MOST = 10_000
_WIDEST = 1_000


def formatted(template: Value, arguments: Sequence[Value]) -> Value | None:
    """What ``printf`` writes; the template is used again until the arguments are gone."""
    text, rest, found = unescape(template.text, quotes=True), list(arguments), list[str]()
    doubts = merged(template.doubts, *(argument.doubts for argument in arguments))
    if template.blocks:
        return None
    while True:
        before = len(rest)
        try:
            found.append(_FORMAT.sub(lambda match: _conversion(match, rest), text))
        except (ValueError, UncountableError):
            return None
        if not rest or len(rest) == before:
            written = "".join(found)
            return Value(written, doubts) if len(written) <= LIMIT else None


def _conversion(match: re.Match[str], rest: list[Value]) -> str:
    flags, width, precision, kind, other = match.groups()
    if other is not None or len(width or "") > 3 or len(precision or "") > 3:
        raise ValueError("no such format")
    if kind == "%":
        return "%"
    value = rest.pop(0) if rest else Value("")
    form = f"%{flags}{width}" + (f".{precision}" if precision else "")
    if kind in "sbc":
        text = unescape(value.text) if kind == "b" else value.text[:1] if kind == "c" else value.text
        if value.blocks and (kind == "c" or precision):
            raise ValueError("part of a text that is not known")
        return (form + "s") % text
    if value.blocks or kind == "q":
        raise ValueError("a number that is not known")
    if kind in "feEgG":
        return (form + kind) % float(value.text or 0)
    sign = -1 if value.text.startswith("-") else 1
    number = sign * number_of(value.text.lstrip("+-") or "0")
    if number < 0 and kind not in "di":
        number += 2**64
    return (form + {"i": "d", "u": "d"}.get(kind, kind)) % number


def _echo(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    escapes = newline = False
    while words and (match := re.fullmatch(r"-([neE]+)", words[0].text)):
        newline |= "n" in match.group(1)
        escapes |= "e" in match.group(1)
        words = words[1:]
    value = concatenated(words, " ")
    text = unescape(value.text, quotes=False) if escapes else value.text
    return Value(text + ("" if newline else "\n"), value.doubts)


def _cat(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    return stdin if all(word.text == "-" for word in words) else None


def _seq(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    separator = "\n"
    if len(words) > 2 and words[0].text == "-s":
        separator, words = words[1].text, words[2:]
    try:
        numbers = [int(word.text) for word in words]
    except ValueError:
        return None
    if not 1 <= len(numbers) <= 3 or any(word.blocks for word in words):
        return None
    first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1])}.get(len(numbers), numbers)
    if step == 0 or abs(last - first) // abs(step) > _MOST:
        return None
    values = range(first, last + (1 if step > 0 else -1), step)
    return Value("".join(f"{value}{separator}" for value in values)[: -len(separator) or None] + "\n" * bool(values))


def _basename(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    words = [word for word in words if word.text != "--"]
    if not 1 <= len(words) <= 2:
        return None
    text, names = words[0].hidden()
    text = text.rstrip("/") or text[:1]
    if any(text.rfind(name) >= text.rfind("/") for name in names) and list(names.values()) != ["$0"]:
        return None
    name = text.rsplit("/", 1)[-1] or "/" * bool(text)
    ending = words[1].text if len(words) == 2 else ""
    if ending and name != ending and name.endswith(ending):
        name = name[: -len(ending)]
    return words[0].shown(name + "\n", names)


def _dirname(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    found = [_parent(word) for word in words if word.text != "--"]
    known = [value for value in found if value is not None]
    return concatenated(known) if known and len(known) == len(found) else None


def _parent(word: Value) -> Value | None:
    text, names = word.hidden()
    text = text.rstrip("/") or text[:1]
    if any(text.rfind(name) >= text.rfind("/") for name in names) and list(names.values()) != ["$0"]:
        return None
    parent = text.rsplit("/", 1)[0].rstrip("/") or "/" if "/" in text else "."
    return word.shown(parent + "\n", names)


def _realpath(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    words = [word for word in words if not word.text.startswith("-")]
    if len(words) != 1 or not words[0].text:
        return None
    text, names = words[0].hidden()
    if not text.startswith("/") and (folder is None or text[0] in names):
        return None
    return words[0].shown(os.path.normpath(os.path.join(folder or "/", text)) + "\n", names)


def _readlink(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    return _realpath(words, stdin, folder) if any("f" in w.text or "e" in w.text for w in words[:-1]) else None


def _pwd(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    return None if folder is None else Value(folder + "\n")


def _tr(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    delete = bool(words) and words[0].text == "-d"
    words = words[1:] if delete else words
    if stdin is None or stdin.blocks or len(words) != (1 if delete else 2) or words[0].text.startswith("-"):
        return None
    sets = [_characters(word.text) for word in words]
    if delete:
        return Value(stdin.text.translate(dict.fromkeys(map(ord, sets[0]))), stdin.doubts)
    old, new = sets
    if not new:
        return None
    new += new[-1] * (len(old) - len(new))
    return Value(stdin.text.translate(str.maketrans(old, new[: len(old)])), stdin.doubts)


def _characters(text: str) -> str:
    text = unescape(text.replace("[:upper:]", "A-Z").replace("[:lower:]", "a-z").replace("[:digit:]", "0-9"))
    text = text.replace("[:space:]", " \t\n\r\f\v")

    def spread(match: re.Match[str]) -> str:
        return "".join(map(chr, range(ord(match.group(1)), ord(match.group(2)) + 1)))

    return re.sub(r"(.)-(.)", spread, text, flags=re.DOTALL)


def _wc(words: list[Value], stdin: Value | None, folder: str | None) -> Value | None:
    if stdin is None or stdin.blocks or [word.text for word in words] not in (["-l"], ["-w"], ["-c"]):
        return None
    counts = {"-l": stdin.text.count("\n"), "-w": len(stdin.text.split()), "-c": len(stdin.text.encode())}
    return Value(f"{counts[words[0].text]}\n", stdin.doubts)


COMMANDS: dict[str, Callable[[list[Value], Value | None, str | None], Value | None]] = {
    "echo": _echo,
    "cat": _cat,
    "seq": _seq,
    "basename": _basename,
    "dirname": _dirname,
    "realpath": _realpath,
    "readlink": _readlink,
    "pwd": _pwd,
    "tr": _tr,
    "wc": _wc,
}
"""Name -> its output of its arguments, its input and the working folder."""
