"""The columns of a prompt file, looked at before anything starts.

Guarantee: only the first row that a run would read, or the schema of a Parquet file, is read, and only from this
machine; what cannot be read so is left to the stage that reads all of it. Nothing here raises.
"""

import bz2
import gzip
import json
import lzma
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from data.nearest import nearest
from relax_core.config.problems import Problem
from relax_core.config.sections import RelaxConfig

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PACKED = (".zst", ".zip", ".lz4", ".snappy", ".br")
_LONGEST_LINE = 2**26
_SLICE = re.compile(r"@\[(-?\d*):-?\d*\]$")


@dataclass(frozen=True)
class Columns:
    """Which columns a prompt file must have, each with the option that names it.

    Args:
        prompt: option and column of the prompt.
        label: of the label; None when there is none.
        metadata: of the metadata, which a file need not have.
        text_only: a prompt must be text, because no chat template makes one of messages.
    """

    prompt: tuple[str, str]
    label: tuple[str, str] | None
    metadata: tuple[str, str]
    text_only: bool

    @property
    def required(self) -> tuple[tuple[str, str], ...]:
        """Option and column of what every row has."""
        return (self.prompt,) if self.label is None else (self.prompt, self.label)


def check_columns(
    config: RelaxConfig, purpose: Literal["train", "evaluate"], local_path: Callable[[str], Path | None]
) -> list[Problem]:
    """What is wrong with the columns of the prompt files of a resolved configuration.

    Args:
        config: resolved, with its evaluation sets in full.
        purpose: in evaluation the training prompts are not read.
        local_path: the path of a source on this machine; None when it is elsewhere.
    """
    data, problems = config.data, []
    # what --custom-prompt-path makes of a column is not known here
    own = data.custom_prompt_path is not None
    rendered = data.apply_chat_template or own or config.algorithm.loss_type in ("sft", "sft_loss")
    if purpose == "train" and data.prompt_data and (path := local_path(data.prompt_data)):
        label = None if data.label_key is None else ("--label-key", data.label_key)
        columns = Columns(("--input-key", data.input_key), label, ("--metadata-key", data.metadata_key), not rendered)
        problems += column_problems("--prompt-data", data.prompt_data, path, columns, _first(data.prompt_data))
    for one in config.eval.eval_datasets or []:
        if (path := local_path(one.path)) is None:
            continue
        columns = Columns(
            ("--eval-input-key", one.input_key or data.input_key),
            ("--eval-label-key", one.label_key) if one.label_key else None,
            ("--metadata-key", one.metadata_key or data.metadata_key),
            not rendered,
        )
        problems += column_problems("--eval-prompt-data", one.path, path, columns, _first(one.path))
    return problems


def _first(source: str) -> int:
    """The row with which a source's slice begins."""
    found = _SLICE.search(source)
    return int(found[1]) if found and found[1] not in ("", "-") else 0


def column_problems(option: str, source: str, path: Path, columns: Columns, start: int = 0) -> list[Problem]:
    """What is wrong with the columns of a prompt file.

    Args:
        option: the option that names the file, for mistakes of the file itself.
        source: the file as the person gave it.
        path: where it is.
        columns: those that it must have.
        start: the first row that is used; below 0 it is counted from the end, and nothing is said of JSONL.
    """
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        if parquet:
            return _parquet(option, source, path, columns)
        if path.suffix in _PACKED or start < 0:
            return []
        return _jsonl(option, source, path, columns, start)
    except (OSError, EOFError, ValueError, lzma.LZMAError):
        return []  # the stage that reads all of it says why


def _parquet(option: str, source: str, path: Path, columns: Columns) -> list[Problem]:
    import pyarrow as pa  # here: it takes long to import, and most prompt files are JSONL
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except pa.ArrowException as error:
        return [Problem(option, source, f"is no valid Parquet file: {error}.")]
    problems = _missing(source, schema.names, columns)
    flag, name = columns.metadata
    if name in schema.names:
        kind = schema.field(name).type
        if isinstance(kind, pa.DictionaryType):
            kind = kind.value_type
        texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not (texts or pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_null(kind)):
            problems.append(_no_object(flag, name, source, str(kind)))
    return problems


def _jsonl(option: str, source: str, path: Path, columns: Columns, start: int) -> list[Problem]:
    line, number = _line(path, start)
    if not line:
        return []
    fix = "Each line must be one JSON object."
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return [Problem(option, source, f"is no JSONL: line {number}: {error}.", fix)]
    if not isinstance(row, dict):
        return [Problem(option, source, f"is no JSONL: line {number} holds {_kind(row)}.", fix)]
    return [*_missing(source, list(row), columns), *_values(source, row, columns)]


def _line(path: Path, start: int) -> tuple[bytes, int]:
    """The line of a row, which blank lines are not, and its number from 1; empty when there is none."""
    opener: Any = _OPENERS.get(path.suffix, open)
    with opener(path, "rb") as file:
        binary: BinaryIO = file
        row = number = 0
        while line := binary.readline(_LONGEST_LINE):
            if not line.endswith(b"\n") and len(line) == _LONGEST_LINE:
                return b"", 0  # so long a row is read by the stage alone
            number += 1
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not line.strip():
                continue
            if row == start:
                return line, number
            row += 1
    return b"", 0


def _missing(source: str, names: Sequence[str], columns: Columns) -> list[Problem]:
    problems = []
    for flag, name in columns.required:
        if name not in names:
            has = f"its columns are {', '.join(names)}" if names else "it has none"
            problems.append(Problem(flag, name, f"is no column of {source}: {has}.", nearest(name, names)))
    return problems


def _values(source: str, row: dict[str, Any], columns: Columns) -> list[Problem]:
    problems = []
    flag, name = columns.prompt
    if columns.text_only and name in row and not isinstance(row[name], str):
        reason = f"is no column of texts in {source}: its first row holds {_kind(row[name])}."
        problems.append(Problem(flag, name, reason, "Add --apply-chat-template for lists of messages."))
    flag, name = columns.metadata
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = row[name]
    if value is not None and not isinstance(value, dict):
        problems.append(_no_object(flag, name, source, _kind(value)))
    return problems


def _no_object(flag: str, name: str, source: str, kind: str) -> Problem:
    reason = f"is no column of objects in {source}: it holds {kind}."
    return Problem(flag, name, reason, "Name another column, or none that the file has.")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return {dict: "an object", list: "a list", str: "text", type(None): "null"}.get(type(value), "a number")
