"""Rows of a prompt file, each with its number and its place in the file.

Guarantee: every row that is returned is a JSON-like object (dict, list, str, number, bool, None) whatever the format; a
row's number counts the rows of the whole file from 0, so a slice does not change it; whatever cannot be read is a
``UserError`` that names the file and the line (JSONL, from 1) or the row (Parquet, from 0).
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import UserError

logger = logging.getLogger(__name__)

_SLICE = re.compile(r"@\[(-?\d*):(-?\d*)\]$")
_SHOWN = 5  # bad lines that an error lists


@dataclass(frozen=True)
class Row:
    """One row of a prompt file.

    Args:
        number: from 0, over the whole file; blank lines of JSONL do not count.
        place: for messages: ``line 12`` (JSONL, from 1) or ``row 11`` (Parquet, from 0).
        data: the row's columns.
    """

    number: int
    place: str
    data: dict[str, Any]


def split_source(source: str) -> tuple[str, slice]:
    """``path@[a:b]`` as path and slice; either bound may be absent or negative, as in Python.

    Raises:
        UserError: a suffix that looks like a slice and is none.
    """
    match = _SLICE.search(source)
    if match:
        start, stop = (int(bound) if bound not in ("", "-") else None for bound in match.groups())
        if "-" not in match.groups():
            return source[: match.start()], slice(start, stop)
    if "@[" in source and source.endswith("]"):
        suffix = source[source.rindex("@[") :]
        raise UserError(
            f"'{suffix}' of {source} is not a row slice.", "Write @[a:b] with whole numbers, e.g. @[0:100]."
        )
    return source, slice(None)


def read_rows(
    source: str,
    *,
    columns: Sequence[str],
    required: Sequence[str] = (),
    skip_bad_lines: bool = False,
    further: bool = False,
) -> list[Row]:
    """The rows of a JSONL or Parquet file.

    Parquet is known by its first bytes; anything else is JSONL, which may be compressed (``.gz``, ``.zst``, ...).

    Args:
        source: path or fsspec URL with an optional ``@[a:b]``.
        columns: those to read; further columns are left out where the format allows it.
        required: those that must exist. In JSONL that is a matter of each row, and is left to the caller.
        skip_bad_lines: leave out lines that are not JSON objects, with a warning that counts them, instead of failing.
        further: read all other columns too; those of Parquet as Arrow gives them, bytes as bytes.

    Raises:
        UserError: missing or unreadable file, bad lines, missing columns, no rows.
    """
    path, rows = split_source(source)
    content = _read(path)
    if content[:4] == b"PAR1":
        found, total = _read_parquet(path, content, rows, columns, required, further)
    else:
        found, total = _read_jsonl(path, content, rows, skip_bad_lines)
    if not found:
        if total:
            raise UserError(f"{source} selects none of the {total} rows of its file.", "Change the slice.")
        raise UserError(f"{path} has no rows.", "Give a file with at least one prompt.")
    return found


def _read(path: str) -> bytes:
    try:
        with fsspec.open(path, "rb", compression="infer") as file:
            return file.read()
    except FileNotFoundError as error:
        raise UserError(f"The prompt file {path} does not exist.", "Check the path.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder.", "Give one JSONL or Parquet file.") from error
    except (OSError, ImportError, ValueError, EOFError) as error:
        raise UserError(
            f"The prompt file {path} cannot be read: {error}.", "Check the path and your access."
        ) from error


def _read_jsonl(path: str, content: bytes, rows: slice, skip_bad_lines: bool) -> tuple[list[Row], int]:
    # Only "\n" ends a line: str.splitlines would also cut at U+2028 and the like, which JSON strings may contain.
    lines = [(number, line) for number, line in enumerate(io.BytesIO(content.removeprefix(b"\xef\xbb\xbf")), 1)]
    lines = [(number, line) for number, line in lines if line.strip()]
    found: list[Row] = []
    bad: list[str] = []
    first = rows.indices(len(lines))[0]
    for index, (number, line) in enumerate(lines[rows], first):
        try:
            data = json.loads(line)
            problem = "" if isinstance(data, dict) else f"holds {type(data).__name__}, not an object"
            if b"\\ud" in line.lower():  # half a surrogate pair is legal JSON, but no tokenizer or file takes it
                json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            problem = "has half of a surrogate pair in a string"
        except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
            problem = f"is not JSON: {error}"
        except RecursionError:
            problem = "is nested too deeply"
        if problem:
            bad.append(f"line {number} {problem}")
        else:
            found.append(Row(index, f"line {number}", data))
    if bad:
        listing = "; ".join(bad[:_SHOWN]) + (f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")
        if not skip_bad_lines or not found:
            raise UserError(
                f"{path} has {len(bad)} bad line{'s' if len(bad) > 1 else ''}: {listing}.",
                "Each line must be one JSON object.",
            )
        logger.warning("%s: %d bad lines are left out: %s.", path, len(bad), listing)
    return found, len(lines)


def _read_parquet(
    path: str, content: bytes, rows: slice, columns: Sequence[str], required: Sequence[str], further: bool
) -> tuple[list[Row], int]:
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            names = file.schema_arrow.names
            missing = [name for name in required if name not in names]
            if missing:
                raise UserError(f"{path} has no column '{missing[0]}'.", f"Its columns: {', '.join(names)}.")
            table = file.read(columns=None if further else [name for name in dict.fromkeys(columns) if name in names])
            total = file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a whole Parquet file: {error}.", "Make or fetch it again.") from error
    first, stop, _ = rows.indices(total)
    part = table.slice(first, max(0, stop - first))
    found = []
    for number, data in enumerate(part.to_pylist(maps_as_pydicts="lossy"), first):
        place = f"row {number}"
        converted = {
            name: _as_json(value, f"{path}, {place}, '{name}'") if name in columns else value
            for name, value in data.items()
        }
        found.append(Row(number, place, converted))
    return found, total


def _as_json(value: Any, where: str) -> Any:
    """A Parquet value as JSON would hold it.

    Object keys whose value is null are left out: all objects of a Parquet column share one set of keys, and a key that
    a row lacks comes back as null. Decimals become numbers, dates their text, bytes the UTF-8 text that they hold.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {key: _as_json(item, where) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_as_json(item, where) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{where} holds bytes that are not UTF-8 text.", "Store text as strings.") from error
    return str(value)
