"""Files under one fsspec URL (a folder, ``memory://``, ``s3://``, ...).

Guarantee: a file is either absent or whole. On a local disk it is written under a temporary name, flushed to the disk
and renamed; an object store makes an object visible when its upload is complete. What goes wrong with the storage
itself (missing, full, forbidden) is a ``UserError`` that names the file. ``append_jsonl`` has one writer at a time.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from data.errors import UserError
from data.jsontext import dumps

_TMP_MARK = ".tmp-"
RUN_AGAIN = "Start the run again: it makes anew what is missing."


class MissingFile(UserError):
    """A file that should be there is not."""


class FileStore:
    """Files below ``url``. Paths are relative to it, with ``/``; folders appear with their first file.

    Args:
        url: a folder or any fsspec URL.
        storage_options: passed to the file system, e.g. ``endpoint_url="http://..."`` for ``s3://``. What fsspec's
            configuration and the usual environment (``AWS_ENDPOINT_URL``, ...) say holds too.

    Raises:
        UserError: no file system for the URL.
    """

    def __init__(self, url: str | os.PathLike[str], **storage_options: Any) -> None:
        self.url = os.fspath(url)
        self.storage_options = storage_options
        try:
            self.fs, root = fsspec.url_to_fs(self.url, **storage_options)
        except ImportError as error:
            raise UserError(
                f"{self.url} needs a package that is missing: {error}.",
                "For s3:// install relax-rl[s3]; for others the package named.",
            ) from error
        except ValueError as error:
            raise UserError(f"{self.url} cannot be used: {error}.", "Give a folder or an fsspec URL.") from error
        self.is_local = isinstance(self.fs, LocalFileSystem)
        self.root = root.rstrip("/") or "/"

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (type(self), self.url, self.storage_options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def local_path(self, path: str = "") -> str | None:
        """The real path when the store is a local folder, else None."""
        return self._full(path) if self.is_local else None

    def uri(self, path: str = "") -> str:
        """What another program opens: a real path locally, else the URL."""
        return self._full(path) if self.is_local else self.fs.unstrip_protocol(self._full(path))

    def write_bytes(self, path: str, data: bytes | memoryview, private: bool = False) -> None:
        """Writes a file, visible only when whole; replaces one that is there.

        Args:
            private: on a local disk nobody else may read it; elsewhere who may is the store's to say.

        Raises:
            UserError: no space, no permission, no such bucket.
        """
        full = self._full(path)
        with self._explain("write", path):
            if self.is_local:
                _write_local(Path(full), data, 0o600 if private else 0o666)
            else:
                self.fs.pipe_file(full, bytes(data))

    def read_bytes(self, path: str) -> bytes:
        """The whole file.

        Raises:
            UserError: it is missing (``MissingFile``) or cannot be read.
        """
        with self._explain("read", path):
            if self.is_local:
                return Path(self._full(path)).read_bytes()
            return self.fs.cat_file(self._full(path))

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        with self._explain("look for", path):
            self._forget_listings()
            return bool(self.fs.exists(self._full(path)))

    def ls(self, path: str = "") -> list[str]:
        """Names in a folder, sorted; none when the folder does not exist. Unfinished files are not shown."""
        full = self._full(path)
        with self._explain("list", path):
            self._forget_listings()
            try:
                found = self.fs.ls(full, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        names = {posixpath.basename(name.rstrip("/")) for name in found if name.rstrip("/") != full}
        return sorted(name for name in names if name and _TMP_MARK not in name)

    def sizes(self, path: str = "") -> dict[str, int]:
        """Every file below a folder, by path relative to the store, with its size in bytes: one listing."""
        with self._explain("list", path):
            self._forget_listings()
            try:
                found = self.fs.find(self._full(path), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        skip = len(self.root.rstrip("/")) + 1
        return {name[skip:]: int(info["size"]) for name, info in found.items() if _TMP_MARK not in name}

    def delete(self, path: str) -> None:
        """Removes a file or folder; nothing happens when there is none."""
        with self._explain("delete", path):
            self._forget_listings()
            try:
                self.fs.rm(self._full(path), recursive=True)
            except FileNotFoundError:
                return

    def write_json(self, path: str, obj: Any) -> None:
        """Writes a JSON file, visible only when whole. NaN and infinity become null."""
        self.write_bytes(path, (dumps(obj, indent=2) + "\n").encode())

    def read_json(self, path: str) -> Any | None:
        """The object in a JSON file; None when the file is missing or is not whole JSON."""
        try:
            return json.loads(self.read_bytes(path))
        except (MissingFile, ValueError):  # ValueError: JSONDecodeError and UnicodeDecodeError
            return None

    def append_jsonl(self, path: str, obj: Any) -> None:
        """Adds one line. One writer at a time; an object store rewrites the file.

        A last line that a killed writer left unfinished is closed first, so that it spoils no other line.
        """
        line = (dumps(obj) + "\n").encode()
        full = self._full(path)
        with self._explain("write", path):
            if not self.is_local:
                old = self.fs.cat_file(full) if self.exists(path) else b""
                gap = b"" if not old or old.endswith(b"\n") else b"\n"
                self.fs.pipe_file(full, old + gap + line)
                return
            Path(full).parent.mkdir(parents=True, exist_ok=True)
            with open(full, "a+b") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    line = line if file.read(1) == b"\n" else b"\n" + line
                file.write(line)

    def read_jsonl(self, path: str) -> list[Any]:
        """The objects of a JSONL file in order; empty when missing. Lines that are not whole JSON are left out."""
        try:
            lines = self.read_bytes(path).split(b"\n")
        except MissingFile:
            return []
        objects = []
        for line in lines:
            try:
                objects.append(json.loads(line))
            except ValueError:
                continue
        return objects

    def check_writable(self, free_bytes: int = 0) -> None:
        """Writes, reads and deletes a small file; on a local disk also asks for ``free_bytes`` of space.

        Raises:
            UserError: which of these failed, and what to do.
        """
        probe = f".probe-{uuid.uuid4().hex}"
        self.write_bytes(probe, b"relax")
        if self.read_bytes(probe) != b"relax":
            raise UserError(f"{self.url} does not give back what was written to it.", "Give --run-dir another place.")
        self.delete(probe)
        if self.is_local:
            free = shutil.disk_usage(self.root).free
            if free < free_bytes:
                raise UserError(
                    f"The disk of the run directory {self.root} has {free / 2**30:.1f} GiB left and the run needs "
                    f"{free_bytes / 2**30:.1f} GiB.",
                    "Free some space, or give --run-dir another disk.",
                )

    def _full(self, path: str) -> str:
        path = path.strip("/")
        if ".." in path.split("/"):
            raise ValueError(f"{path!r} leaves the store")
        return posixpath.join(self.root, path) if path else self.root

    def _forget_listings(self) -> None:
        # Other processes write to the same place: what fsspec remembers of a listing may be old.
        if not self.is_local:
            self.fs.invalidate_cache()

    @contextmanager
    def _explain(self, verb: str, path: str) -> Iterator[None]:
        """Turns the storage's errors into a ``UserError`` with cause and fix."""
        try:
            yield
        except FileNotFoundError as error:
            if verb == "read":
                raise MissingFile(f"{self.uri(path)} is missing.", RUN_AGAIN) from error
            raise UserError(
                f"Cannot {verb} {self.uri(path)}: {_reason(error)}.",
                "Make sure that the folder or bucket of the run exists.",
            ) from error
        except Exception as error:
            # s3fs lets some of botocore's errors through, which are not OSErrors.
            if not isinstance(error, OSError) and not type(error).__module__.startswith(("botocore", "aiohttp")):
                raise
            raise UserError(f"Cannot {verb} {self.uri(path)}: {_reason(error)}.", _fix(error)) from error


def _make(cls: type[FileStore], url: str, storage_options: dict[str, Any]) -> FileStore:
    return cls(url, **storage_options)


def _reason(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (reason or type(error).__name__).rstrip(".")


def _fix(error: Exception) -> str:
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space, or give --run-dir another disk; the run goes on from its last finished stage."
    if isinstance(error, PermissionError) or code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Give yourself the right to write there, or give --run-dir another place."
    if code in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return "A file stands where a folder must be, or the reverse: give --run-dir another place."
    if not isinstance(error, OSError) or code is None:
        return "Check the address and the credentials of the storage (for s3://: AWS_* and AWS_ENDPOINT_URL)."
    return "Check the disk, or give --run-dir another place."


def _write_local(path: Path, data: bytes | memoryview, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".{path.name}{_TMP_MARK}{uuid.uuid4().hex[:12]}")
    try:
        with open(tmp, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(tmp, path)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
    # The new name is part of the folder: without this a power failure may bring back the old one.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
