"""What a value may be by itself, whatever its option is.

Guarantee: a value that passes can be written as JSON and as YAML and read back equal, fits into the 64 bits of the
libraries that get it, and stands in no file name that an operating system would refuse.
"""

import json
from typing import Any

from relax_core.config.yaml_text import MAX_DEPTH

LARGEST = 2**63 - 1


class NotPlainError(ValueError):
    """A value that is none; the text is a sentence that says why."""


def check_text(text: str) -> None:
    """Refuse what no file name, no command line and no table can hold.

    Raises:
        NotPlainError: the character NUL, or bytes that are no UTF-8 text.
    """
    if "\0" in text:
        raise NotPlainError("The character NUL may not be in it.")
    if not text.isascii() and not _is_utf8(text):
        raise NotPlainError("Its bytes are no UTF-8 text.")


def check_plain(value: Any, depth: int = 0) -> None:
    """Refuse what JSON cannot say, at any depth.

    Raises:
        NotPlainError: a key that is no text, a number that is not finite or too large, another type, or too deep.
    """
    if depth > MAX_DEPTH:
        raise NotPlainError(f"It is nested more than {MAX_DEPTH} deep.")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotPlainError(f"The key {json.dumps(key, default=str)} is no text. Quote it.")
            check_plain(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            check_plain(item, depth + 1)
    elif isinstance(value, str):
        if not _is_utf8(value):
            raise NotPlainError("Its bytes are no UTF-8 text.")
    elif isinstance(value, float):
        if value - value != 0:
            raise NotPlainError(f"{value} is no finite number.")
    elif isinstance(value, int):
        check_size(value)
    elif value is not None:
        raise NotPlainError(f"{type(value).__name__} is no type of JSON.")


def check_converted(before: Any, after: Any) -> None:
    """Refuse what a type made of a value where that is not what was meant, or is too large.

    Args:
        before: as it was given.
        after: what the type made of it.

    Raises:
        NotPlainError: true or false became a number, a number is not finite, or a whole number needs more than 64 bits.
    """
    if isinstance(before, bool) and not isinstance(after, bool):
        raise NotPlainError("true and false are no numbers.")
    if isinstance(before, dict) and isinstance(after, dict):
        for key, item in before.items():
            check_converted(item, after.get(key))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for one, other in zip(before, after, strict=False):
            check_converted(one, other)
    elif isinstance(after, float) and after - after != 0:
        raise NotPlainError(f"{after} is no finite number.")
    elif isinstance(after, int):
        check_size(after)


def check_size(number: int) -> None:
    """Refuse a whole number that needs more than 64 bits.

    Raises:
        NotPlainError: it does.
    """
    if abs(number) > LARGEST:
        raise NotPlainError("It needs more than 64 bits.")


def read_json(text: str) -> Any:
    """JSON text as plain values.

    Raises:
        NotPlainError: it is no JSON, gives a key twice, or is not plain.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        line = f" of line {error.lineno}" if "\n" in text.strip() else ""
        raise NotPlainError(f"{error.msg} at character {error.colno}{line}.") from None
    except RecursionError:
        raise NotPlainError(f"It is nested more than {MAX_DEPTH} deep.") from None
    except NotPlainError:
        raise
    except ValueError:  # Python refuses to read numbers of more than 4300 digits
        raise NotPlainError("A number in it has too many digits.") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for key, value in pairs:
        if key in read:
            raise NotPlainError(f"The key {json.dumps(key, ensure_ascii=False)} is given twice.")
        read[key] = value
    return read


def _refuse_constant(name: str) -> Any:
    raise NotPlainError(f"{name} is no finite number.")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
