"""The run directory: tables and manifests under one fsspec URL.

Guarantee: the same rows give the same bytes, so a table's SHA-256 is the identity of its content; a table that is read
through its reference is the table that was written, or a ``UserError`` says what happened to it. Files appear whole or
not at all (see ``data.files``).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data import manifest
from data.errors import UserError
from data.files import RUN_AGAIN, FileStore, MissingFile
from data.schema import SCHEMA_KEY, check_version, schema_id

# A local file changed this recently may change again without a new time stamp: its verdict is not remembered.
_CLOCK_TICK_S = 0.1


@dataclass(frozen=True)
class TableRef:
    """What stages pass on instead of rows.

    Args:
        path: relative to the run directory, with ``/``.
        rows: number of rows.
        bytes: size of the file.
        sha256: of the file's bytes, hexadecimal.
        schema: name and version, e.g. ``rollout/1``; empty for a table without one.
    """

    path: str
    rows: int
    bytes: int
    sha256: str
    schema: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> TableRef:
        """From ``to_json()``'s object, whatever the order of its keys; keys of newer versions are ignored.

        Raises:
            UserError: a key is missing.
        """
        missing = [name for name in cls.__dataclass_fields__ if name not in obj]
        if missing:
            raise UserError(f"The table reference {dict(obj)} lacks '{missing[0]}'.", RUN_AGAIN)
        return cls(str(obj["path"]), int(obj["rows"]), int(obj["bytes"]), str(obj["sha256"]), str(obj["schema"]))


class RunStore(FileStore):
    """The files of a run. Paths are relative to the run directory.

    Args:
        url: a folder or any fsspec URL.
        storage_options: passed to the file system.

    Raises:
        UserError: no file system for the URL.
    """

    def __init__(self, url: str | os.PathLike[str], **storage_options: Any) -> None:
        super().__init__(url, **storage_options)
        self._verdicts: dict[tuple[str, str, str], bool] = {}

    def step_path(self, step: int, name: str) -> str:
        """``steps/000012/<name>``."""
        return f"steps/{step:06d}/{name}"

    def write_table(self, path: str, table: pa.Table) -> TableRef:
        """Writes a Parquet file (zstd level 1, no dictionary, no statistics; numbers of lists split into streams of
        bytes, which are smaller and read faster) and returns its reference.

        The same rows give the same bytes, however the table is chunked: the file holds no time and no writer's state.
        (A new version of pyarrow may write other bytes for the same rows.)

        Raises:
            UserError: as ``write_bytes``.
        """
        if any(column.num_chunks > 1 for column in table.columns):
            table = table.combine_chunks()
        kind = schema_id(table.schema)
        table = table.replace_schema_metadata({SCHEMA_KEY: kind.encode()} if kind else None)
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,
            use_byte_stream_split=_split_columns(table.schema),
        )
        buffer = memoryview(sink.getvalue())
        self.write_bytes(path, buffer)
        return TableRef(path.strip("/"), table.num_rows, len(buffer), hashlib.sha256(buffer).hexdigest(), kind)

    def read_table(self, ref: TableRef | str, columns: Sequence[str] | None = None) -> pa.Table:
        """A stored table, or some of its columns.

        Args:
            ref: a reference, whose content is then verified, or a path.
            columns: names; None for all.

        Raises:
            UserError: missing, damaged, not what the reference says, of a newer schema, or without such a column.
        """
        path, data = (ref.path, None) if isinstance(ref, TableRef) else (ref, None)
        if isinstance(ref, TableRef):
            intact, data = self._verify(ref)
            if not intact:
                state = "is not the file that the run's records name" if self.exists(path) else "is missing"
                raise UserError(f"{self.uri(path)} {state} ({ref.rows} rows, {ref.bytes} bytes).", RUN_AGAIN)
        with self._open(path, data) as source:
            try:
                file = pq.ParquetFile(source)
                schema = file.schema_arrow
                check_version(schema, self.uri(path))
                for name in columns or ():
                    if name not in schema.names:
                        raise UserError(
                            f"{self.uri(path)} has no column '{name}'.", f"Its columns: {', '.join(schema.names)}."
                        )
                return file.read(columns=None if columns is None else list(columns))
            except (pa.ArrowException, OSError) as error:
                raise UserError(f"{self.uri(path)} is not a whole Parquet file: {error}.", RUN_AGAIN) from error

    def _open(self, path: str, data: bytes | None) -> pa.NativeFile:
        """The file for reading: from ``data`` when its bytes are at hand, else from the storage."""
        if data is None and self.is_local:
            with self._explain("read", path):
                return pa.OSFile(self._full(path))
        return pa.BufferReader(self.read_bytes(path) if data is None else data)

    def valid(self, ref: TableRef) -> bool:
        """Whether the file is there with the reference's size and hash.

        The verdict is remembered in this process for as long as the file is not touched.
        """
        return self._verify(ref)[0]

    def _verify(self, ref: TableRef) -> tuple[bool, bytes | None]:
        """The verdict, and the file's bytes when they had to be read for it."""
        version = self._version(ref.path, ref.bytes)
        if version is None:
            return False, None
        key = (ref.path, version, ref.sha256)
        if version and key in self._verdicts:
            return self._verdicts[key], None
        try:
            data = self.read_bytes(ref.path)
        except MissingFile:
            return False, None
        verdict = hashlib.sha256(data).hexdigest() == ref.sha256
        if version:
            self._verdicts[key] = verdict
        return verdict, data

    def _version(self, path: str, size: int) -> str | None:
        """A text that changes with the file; "" when there is none to trust; None without a file of this size."""
        full = self._full(path)
        with self._explain("look for", path):
            try:
                if self.is_local:
                    stat = os.stat(full)
                    settled = time.time() - stat.st_mtime > _CLOCK_TICK_S
                    info = {"type": "file" if os.path.isfile(full) else "directory", "size": stat.st_size}
                    version = f"{stat.st_ino}-{stat.st_mtime_ns}-{size}" if settled else ""
                else:
                    self._forget_listings()
                    info = self.fs.info(full)
                    marks = [info.get(key) for key in ("ETag", "etag", "mtime", "LastModified", "created")]
                    version = "-".join(str(mark) for mark in marks if mark)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return version if info["type"] == "file" and info["size"] == size else None

    def write_manifest(self, step: int, content: Mapping[str, Any]) -> None:
        """Writes ``steps/<step>/manifest.json``: the step is complete. Call it after everything that it names."""
        manifest.write(self, step, content)

    def read_manifest(self, step: int) -> dict[str, Any] | None:
        """A step's manifest, or None when there is none or it is not whole."""
        return manifest.read(self, step)

    def last_complete_step(
        self, first: int = 0, say: Callable[[int, str], None] = manifest.say_incomplete
    ) -> int | None:
        """The largest i such that all of ``first`` ... i are complete; None when ``first`` is not.

        See ``manifest.last_complete_step``.
        """
        return manifest.last_complete_step(self, first, say)


def _split_columns(schema: pa.Schema) -> list[str]:
    """Parquet's names of the columns of token ids and of numbers a token."""
    lists = (field for field in schema if pa.types.is_list(field.type))
    kinds = (pa.float32(), pa.int32())
    return [f"{field.name}.list.element" for field in lists if field.type.value_type in kinds]
