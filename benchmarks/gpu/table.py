"""One table of what the programs of this folder saw.

    python benchmarks/gpu/table.py FOLDER      # prints it and writes FOLDER/table.md

Guarantee: a row for each row of each part's JSON, as the program wrote it; a part that failed, or was not run, has a
row that says so. The machine above it is the one on which the parts were run (``machine.json``), if that is recorded.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parts import Part

PACKAGES = ("torch", "sglang", "megatron-core", "ray", "prefect", "transformers")
OTHERS = ("machine",)
"""Names of JSON files that are no results."""


def main() -> int:
    from parts import PARTS

    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("Give the folder of the results.", file=sys.stderr)
        return 2
    print(write(Path(sys.argv[1]), PARTS))
    return 0


def write(out: Path, parts: Sequence["Part"]) -> str:
    """The whole text, which is ``table.md`` too."""
    recorded = out / "machine.json"
    try:
        machine = json.loads(recorded.read_text()) if recorded.exists() else measured(False)
        lines = [f"{name}: {value}" for name, value in machine.items()]
    except (OSError, ValueError, AttributeError):
        lines = ["the machine is not known: machine.json cannot be read"]
    lines = ["; ".join(lines) + ".", "", "| What | Seen | Goal | Command |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows(out, parts)]
    whole = "\n".join(lines)
    (out / "table.md").write_text(whole + "\n")
    return whole


def rows(out: Path, parts: Sequence["Part"]) -> list[list[str]]:
    """Of all parts in their order, then of what else has rows in the folder."""
    found = []
    for part in parts:
        command = " ".join([part.program, *part.arguments(False)])
        seen = rows_of(out / f"{part.name}.json")
        failed = read(out / f"{part.name}.failed").strip()
        if not seen and failed:
            seen = rows_of(out / part.name / part.program.replace(".py", ".json"))  # what it came to
        if failed:
            seen = [*seen, [part.name, f"failed: {failed}; see logs/{part.name}.log", "-"]]
        found += [[*row, command] for row in seen or [[part.name, "not run", "-"]]]
    known = {*OTHERS, *(part.name for part in parts)}
    for path in sorted(out.glob("*.json")):
        if path.stem not in known:
            found += [[*row, f"{path.stem}.py"] for row in rows_of(path)]
    return found


def rows_of(path: Path) -> list[list[str]]:
    """``rows`` of a program's JSON, each of three texts; one that says so where there are none in it."""
    try:
        if not (text := read(path)):
            return []
        given = json.loads(text)["rows"]
        if not all(isinstance(row, list) for row in given):
            raise TypeError("rows are lists")
        return [[str(value) for value in (*row, "-", "-", "-")[:3]] for row in given]
    except (OSError, ValueError, KeyError, TypeError):
        return [[path.stem, f"no rows in {path.name}", "-"]]


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def cell(value: str) -> str:
    """Text that cannot break a table."""
    return " ".join(value.split()).replace("|", "\\|") or "-"


def record(out: Path, rehearsed: bool) -> None:
    """Note down the machine, where the parts run."""
    (out / "machine.json").write_text(json.dumps(measured(rehearsed), indent=1))


def measured(rehearsed: bool) -> dict[str, Any]:
    """What this machine is: GPUs with their driver, processors, memory, and versions."""
    found: dict[str, Any] = {"GPUs": "none: a rehearsal with tiny models" if rehearsed else gpus()}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found["processors"] = f"{len(os.sched_getaffinity(0))}, {memory:.0f} GiB of memory"
    found["Python"] = sys.version.split()[0]
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "unknown"
    root = Path(__file__).resolve().parents[2]
    if commit := output(["git", "-C", str(root), "rev-parse", "--short", "HEAD"]):
        found["commit"] = commit
    return found


def gpus() -> str:
    """Name, memory and driver of the GPUs."""
    text = output(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    lines = text.splitlines()
    alike = sorted(set(lines))
    return (
        ", ".join(f"{lines.count(line)} x {line.replace(', ', ' ', 1).replace(', ', ', driver ')}" for line in alike)
        or "none"
    )


def output(command: list[str]) -> str:
    """What a command prints; nothing where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else ""


if __name__ == "__main__":
    raise SystemExit(main())
