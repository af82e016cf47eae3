"""The folder that a conversion makes.

Guarantee: it appears whole, with what it was made from in it (``RECORD``); the same conversion again finds it, and a
folder with anything else in it is left alone.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.errors import UserError

RECORD = "relax_conversion.json"
"""File in a converted folder that says what it was made from."""


@dataclass(frozen=True)
class Converted:
    """A converted checkpoint.

    Attributes:
        out: the Hugging Face folder.
        checkpoint: where the weights come from.
        step: the rollout step that made them.
        version: how many steps they have learned from.
        weights_id: the run's name for them; None where it gave none.
        model: the folder whose config.json and tokenizer were taken over.
        dtype: of the weights.
        bytes: of the folder's files.
        seconds: that this took.
        made: False: it was there already.
    """

    out: str
    checkpoint: str
    step: int
    version: int
    weights_id: str | None
    model: str
    dtype: str
    bytes: int
    seconds: float
    made: bool = True

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def converted(out: Path, record: dict[str, Any], seconds: float, made: bool) -> Converted:
    """What a folder's record says of it."""
    names = ("checkpoint", "step", "version", "weights_id", "model", "dtype")
    size = sum(record["files"].values())
    return Converted(out=str(out), bytes=size, seconds=round(seconds, 3), made=made, **{n: record[n] for n in names})


def check_out(out: str | Path) -> Path:
    """Where a conversion goes, as a path.

    Raises:
        UserError: a URL, a file, or a folder with something in it that is no conversion.
    """
    if "://" in str(out):
        raise UserError(f"--out {out} is a URL.", "Give a local folder, and copy it from there.")
    path = Path(out).absolute()
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {out} is a file.", "Name a new folder.")
    if path.is_dir() and any(path.iterdir()) and _record(path) is None:
        raise UserError(f"--out {out} is not empty and holds no conversion.", "Name a new folder.")
    return path


def _record(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("files"), dict) else None


def known(out: Path, origin: dict[str, Any]) -> Converted | None:
    """The same conversion, if it is there; None where nothing is.

    Raises:
        UserError: another one is.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return None
    record = _record(out) or {}
    sizes = {path.name: path.stat().st_size for path in out.iterdir() if path.is_file()}
    whole = record.get("files", {}).items() <= sizes.items()
    if whole and origin.items() <= record.items():
        return converted(out, record, 0.0, made=False)
    what = f"the conversion of step {record.get('step')} of {record.get('checkpoint')}" if record else "something else"
    raise UserError(
        f"--out {out} holds {what}{'' if whole else ', which is not whole any more'}; asked for is step"
        f" {origin['step']} of {origin['checkpoint']}.",
        "Name a new folder, or remove that one.",
    )


@contextlib.contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder to fill, which appears as ``out`` at the end; what a killed process left there before is taken away.

    Raises:
        UserError: another process is filling it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.converting")
    partial.mkdir(exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.fstat(descriptor).st_ino == partial.stat().st_ino
        except (BlockingIOError, FileNotFoundError):  # the other one has just finished
            mine = False
        if not mine:
            raise UserError(
                f"Another process is converting a checkpoint to {out}.", "Wait for it, or name another folder."
            )
        _empty(partial)
        try:
            yield partial
            if out.exists():
                out.rmdir()  # it was empty; where it is not any more, it is kept and this is an error
            os.rename(partial, out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
