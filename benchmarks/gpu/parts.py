"""Run the programs of this folder one after another, each with a time limit, and print one table of what they saw.

    bash benchmarks/gpu/all.sh [--out FOLDER] [--only NAME,...] [--again] [--limit SECONDS] [--list] [--rehearse]

Guarantee: a part that fails or hangs is ended with everything that it started, and the others are run all the same. A
part that is finished has ``FOLDER/<part>.json`` and is skipped in the next call; ``FOLDER/<part>.failed`` says why
another is not. Logs are in ``FOLDER/logs``, and what a program keeps besides in ``FOLDER/<part>``.

Exit code 1: a part failed. Needs Python's standard library alone; the programs need the project.
"""

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GRACE = 30.0
"""Seconds that a part may take to end itself when its time is up."""


@dataclass(frozen=True)
class Part:
    """One call of a program, which writes ``<program>.json`` into the folder of ``--out``.

    Attributes:
        words: its arguments, not in a rehearsal; ``{out}`` is the part's folder and ``{limit}`` its seconds, less some.
        seconds: after which it is ended.
        gpus: that it needs.
        always: arguments also in a rehearsal.
    """

    name: str
    program: str
    words: tuple[str, ...] = ()
    seconds: float = 580
    gpus: int = 1
    always: tuple[str, ...] = ()

    def arguments(self, rehearse: bool, out: str = "OUT", limit: float | None = None) -> list[str]:
        """What stands behind the program's name."""
        limit = max(30, (limit or self.seconds) - 40)
        given = [*self.always, *(["--rehearse"] if rehearse else self.words)]
        return [word.format(out=out, limit=f"{limit:.0f}") for word in given]


PARTS = (
    Part("trainer_speed", "trainer_speed.py", seconds=400),
    Part("numerics", "numerics.py", seconds=400),
    Part("generation", "generation.py"),
    Part("weight_sync", "weight_sync.py", ("--size", "0.6b"), seconds=400),
    Part("colocate", "colocate.py", ("--size", "0.6b", "--check")),
    Part("learning", "learning.py", seconds=1500, always=("--work", "{out}/runs", "--limit", "{limit}")),
    Part("tensor_parallel", "tensor_parallel.py", gpus=2),
    Part("weight_sync_two", "weight_sync.py", ("--size", "0.6b"), seconds=400, gpus=2, always=("--two",)),
    Part("overlap", "overlap.py", gpus=2),
    Part("through_prefect", "through_prefect.py", gpus=2),
)
"""In the order in which they are run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="of the results; default runs/gpu, in a rehearsal runs/gpu-rehearsal")
    parser.add_argument("--only", help="names of parts, separated by commas; --list shows them")
    parser.add_argument("--again", action="store_true", help="also what is finished")
    parser.add_argument("--limit", type=float, help="seconds that a part may take at most, below its own limit")
    parser.add_argument("--list", action="store_true", help="print the parts and do nothing")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: all parts with tiny models")
    chosen = parser.parse_args()
    if chosen.list:
        for part in PARTS:
            command = " ".join([part.program, *part.arguments(False)])
            print(f"{part.name:16} {part.gpus} GPU{'s' * (part.gpus > 1)}  at most {part.seconds:4.0f} s  {command}")
        return 0
    try:
        parts = selected(chosen.only)
    except ValueError as error:
        parser.error(str(error))
    gpus = 2 if chosen.rehearse else gpu_count()
    if not gpus:
        print("No GPU here (nvidia-smi finds none): --rehearse tries everything on a CPU.")
        return 2
    out = (chosen.out or ROOT / "runs" / ("gpu-rehearsal" if chosen.rehearse else "gpu")).resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
        table.record(out, chosen.rehearse)
    except OSError as error:
        parser.error(f"--out {out} cannot be written: {error.strerror}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the blocks that end a part
    failed = run(parts, out, gpus, chosen.rehearse, chosen.again, chosen.limit)
    print(f"\n{table.write(out, PARTS)}")
    return int(failed)


def selected(names: str | None) -> list[Part]:
    """Parts by name, in their order.

    Raises:
        ValueError: there is no such part, or none is named.
    """
    wanted = None if names is None else {name.strip().removesuffix(".py") for name in names.split(",") if name.strip()}
    if wanted is not None and not wanted:
        raise ValueError("--only names no part")
    if unknown := sorted((wanted or set()) - {part.name for part in PARTS}):
        raise ValueError(f"no part {', '.join(unknown)}; there are {', '.join(part.name for part in PARTS)}")
    return [part for part in PARTS if wanted is None or part.name in wanted]


def gpu_count() -> int:
    """GPUs that programs may use."""
    if shutil.which("nvidia-smi") is None:
        return 0
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    there = sum(line.startswith("GPU ") for line in found.stdout.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, len([name for name in visible.split(",") if name]))


def run(
    parts: Sequence[Part],
    out: Path,
    gpus: int,
    rehearse: bool = False,
    again: bool = False,
    limit: float | None = None,
    programs: Path = HERE,
) -> bool:
    """Run what is not finished; whether a part failed."""
    adopt_orphans()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    failed = False
    for part in parts:
        result, reason = out / f"{part.name}.json", out / f"{part.name}.failed"
        if result.exists() and not again:
            print(f"{part.name}: finished before", flush=True)
            continue
        if part.gpus > gpus:
            print(f"{part.name}: needs {part.gpus} GPUs, there is one", flush=True)
            continue
        result.unlink(missing_ok=True)
        if not (programs / part.program).exists():
            why, seconds = f"there is no {part.program}", 0.0
        else:
            why, seconds = ended(part, out, rehearse, limit, programs)
        reason.unlink(missing_ok=True)
        if why:
            reason.write_text(f"{why}\n")
            failed = True
        print(f"{part.name}: {f'FAILED, {why}' if why else 'well'} ({seconds:.0f} s)", flush=True)
    return failed


def ended(part: Part, out: Path, rehearse: bool, limit: float | None, programs: Path) -> tuple[str, float]:
    """Run a part to its end: why it failed, or nothing, and its seconds."""
    folder, log = out / part.name, out / "logs" / f"{part.name}.log"
    folder.mkdir(exist_ok=True)
    found = folder / part.program.replace(".py", ".json")
    found.unlink(missing_ok=True)
    seconds = part.seconds if limit is None else min(part.seconds, limit)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="relax-part-", ignore_cleanup_errors=True) as scratch,
        log.open("wb") as text,
    ):
        Path(scratch, "prefect").mkdir()
        homes = {"RELAX_HOME": f"{scratch}/relax", "PREFECT_HOME": f"{scratch}/prefect", "PYTHONUNBUFFERED": "1"}
        words = part.arguments(rehearse, str(folder), seconds)
        command = [sys.executable, str(programs / part.program), "--out", str(folder), *words]
        print(f"{part.name}: {' '.join([part.program, *words])}, at most {seconds:.0f} s; {log}", flush=True)
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | homes, stdout=text, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            left = stop(process)
    if code is None:
        return f"not ready after {seconds:.0f} s", time.monotonic() - began
    if left:
        print(f"{part.name}: left over and ended: {', '.join(sorted(left))}", flush=True)
    if code:
        return f"ended with {code}", time.monotonic() - began
    if not found.exists():
        return f"no {found.name} came out", time.monotonic() - began
    shutil.copy(found, out / f"{part.name}.json")
    return "", time.monotonic() - began


def stop(process: "subprocess.Popen[bytes]") -> list[str]:
    """End a part, first politely, and everything that it left behind; what those are called."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    left: dict[int, str] = {}
    limit = time.monotonic() + min(GRACE, 3)  # some end by themselves a moment later, and tidy up
    while time.monotonic() < limit and any(alive(pid) for pid in descendants(os.getpid())):
        time.sleep(0.1)
    for _ in range(50):
        now = {pid for pid in descendants(os.getpid()) if alive(pid)}
        if not now:
            break
        left |= {pid: name(pid) for pid in now - {process.pid, *left}}
        for pid in now:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        process.poll()
    while True:  # those that were adopted
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    return list(left.values())


def adopt_orphans() -> None:
    """Become the parent of what a part leaves behind, so that it can be found. Linux alone can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def descendants(root: int) -> Iterator[int]:
    """Processes below a process, the lowest last."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(entry.read_text().rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    waiting = list(children.get(root, []))
    for pid in waiting:
        yield pid
        waiting += children.get(pid, [])


def name(pid: int) -> str:
    """What a process calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()[-60:] or f"process {pid}"
    except OSError:
        return f"process {pid}"


def alive(pid: int) -> bool:
    """Whether it still runs, and is no entry that waits for being read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


if __name__ == "__main__":
    raise SystemExit(main())
