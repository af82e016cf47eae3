"""Sizes in bytes.

Guarantee: `512MB`, `512 MiB` and `536870912` are the same size: units are powers of 1024, whatever their spelling.
"""

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B)?\s*", re.IGNORECASE)


def parse_bytes(value: Any) -> Any:
    """A text such as `512MB` as its number of bytes; everything else unchanged.

    Raises:
        ValueError: the text is no size, or no whole number of bytes.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError("not a size")
    if len(match[1]) > 30:
        raise ValueError("no size has so many digits")
    size = Fraction(match[1]) * UNITS[match[2].upper()]
    if size.denominator != 1:
        raise ValueError("not a whole number of bytes")
    return int(size)


def show_bytes(size: int) -> str:
    """The shortest spelling of a size that loses nothing: 536870912 -> `512MB`."""
    for unit in ("T", "G", "M", "K"):
        if size and size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}B"
    return str(size)


ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
"""The type of an option that counts bytes."""


def is_byte_size(field: FieldInfo) -> bool:
    """Whether a field is declared as ``ByteSize``."""
    return any(getattr(item, "func", None) is parse_bytes for item in field.metadata)
