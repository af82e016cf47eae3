"""Lines of the actors' own logs that matter: warnings and errors of engines, trainers and judges.

Guarantee: a line is told once, at the end of a stage that its actor works in; at most ``MOST`` lines a stage, repeated
ones as one with their number, known noise not at all. Looking costs a ``stat`` a file, and reads at most ``TAIL`` bytes
of what is new. A log that cannot be read tells nothing.
"""

import contextlib
import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.files import FileStore
from relax_core.cluster import services

MOST = 12
"""Lines of a stage."""

TAIL = 256 * 1024
"""Bytes: of what a log has grown by, no more than its end is read."""

LONGEST = 400
"""Characters of a line."""

WORKS_IN: Mapping[str, Sequence[str]] = {
    "engine": ("ensure_engines", "generate", "evaluate", "evaluate_before", "weight_sync"),
    "genrm": ("ensure_engines", "reward", "evaluate", "evaluate_before"),
    "trainer": ("ensure_engines", "forward", "train", "weight_sync", "checkpoint"),
    "critic": ("ensure_engines", "forward", "train_critic", "checkpoint"),
}
"""Beginning of a log's name -> stages at whose end it is read. ``commit`` reads what is left of all."""

_MATTERS = re.compile(
    r"\b(warn(ing)?|error|exception|fatal|critical|fail(ed|ure)?|oom|out of memory|killed|abort(ed|ing)?|timed? ?out|"
    r"retract\w*|nan|inf|unhealthy|refused|cannot|could not)\b|\b\w*(Error|Exception|Warning)\b",
    re.IGNORECASE,
)

_NOISE = re.compile(
    "|".join(
        (
            r"UserWarning|DeprecationWarning|FutureWarning|ExperimentalWarning|is deprecated|warnings\.warn|^\s",
            r"Traceback \(most recent|exception was the direct cause|During handling of the above",
            r"^\S*python\S* -P -m |server_args=|RLIMIT_NOFILE|ignore_eos|max_total_num_tokens|freeze_gc|WeightChecker",
            r"abort_request|Abort request|\"(GET|POST|PUT) [^\"]*\" [23]\d\d|OpenAI Responses API|Ignore import error",
            r"Cannot detect CUDA|Transformer Engine and Apex|Falling back to|roll back to CPU|on current platform",
            r"\b(0|no) (errors?|warnings?)\b",
        )
    )
)
"""What the libraries say at each start, of which a person learns nothing; lines that go on from another one."""

_ERROR = re.compile(r"error|exception|fatal|critical|out of memory|\boom\b|killed", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CHANGING = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


@dataclass(frozen=True)
class Line:
    """What is told."""

    who: str
    text: str
    error: bool
    times: int = 1

    def __str__(self) -> str:
        return f"{self.who}: {self.text}" + (f"  ({self.times} times)" if self.times > 1 else "")


class ActorLogs:
    """Reads the logs of a run.

    Args:
        folder: where ``engine-0.log``, ``trainer-rank-0.log`` and the others are; what is in them by now is not told.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._read: dict[str, int] = {}
        for name, size in self._sizes():
            self._read[name] = size

    def after(self, stage: str) -> list[Line]:
        """What actors that work in this stage have said since somebody last looked, at most ``MOST`` lines."""
        with self._lock:
            found = [line for name, text in self._new(stage) for line in telling_lines(name, text)]
        if len(found) <= MOST:
            return found
        chosen = sorted(range(len(found)), key=lambda at: (not found[at].error, at))[: MOST - 1]
        left = f"{len(found) - len(chosen)} further kinds of lines; all are in {self._folder}"
        return [*(found[at] for at in sorted(chosen)), Line("logs", left, False)]

    def _new(self, stage: str) -> list[tuple[str, str]]:
        found = []
        for name, size in self._sizes():
            stages = next((stages for begin, stages in WORKS_IN.items() if name.startswith(begin)), None)
            before = self._read.get(name, 0)
            if size == before or not (stage == "commit" or (stages is not None and stage in stages)):
                continue
            begin = max(before if size > before else 0, size - TAIL)
            try:
                with open(self._folder / name, "rb") as log:
                    log.seek(begin)
                    content = log.read(size - begin)
            except OSError:
                continue
            whole = content[: content.rfind(b"\n") + 1]  # the rest is still being written
            self._read[name] = begin + len(whole)
            found.append((name.removesuffix(".log"), whole.decode(errors="replace")))
        return found

    def _sizes(self) -> list[tuple[str, int]]:
        try:
            with os.scandir(self._folder) as entries:
                return sorted((entry.name, entry.stat().st_size) for entry in entries if entry.name.endswith(".log"))
        except OSError:
            return []


def keep_log(run_dir: str | None, name: str) -> None:
    """From now on warnings and errors that this process logs are in ``<run>/logs/<name>.log`` too, if the run is in a
    folder of this machine; where they went before they still go."""
    folder = FileStore(run_dir).local_path("logs") if run_dir else None
    if folder is None:
        return
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        handler = logging.FileHandler(f"{folder}/{name}.log", delay=True)
        handler.setLevel(logging.WARNING)
        shape = "[%(asctime)s] %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(shape, "%Y-%m-%d %H:%M:%S"))
        logging.getLogger().addHandler(handler)


def log_folder(run_dir: str, run_id: str) -> Path:
    """Where the logs of a run's actors are, as far as they run on this machine: in the run directory where that is a
    local folder, as ``RayBackend.log_dir`` says."""
    local = FileStore(run_dir).local_path("logs")
    return Path(local) if local else services.home() / "logs" / run_id


def telling_lines(who: str, text: str) -> list[Line]:
    """The lines of a piece of a log that matter, in order; those that differ in numbers only as one."""
    found: dict[str, Line] = {}
    for line in text.splitlines():
        line = _COLOUR.sub("", line).rstrip()
        if not _MATTERS.search(line) or _NOISE.search(line):
            continue
        kind = _CHANGING.sub("#", line)
        known = found.get(kind)
        shown = line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
        found[kind] = Line(who, shown, bool(_ERROR.search(line)), 1 if known is None else known.times + 1)
    return list(found.values())
