"""Write what Relax knows of the options of Megatron-core and SGLang: ``relax_core/config/snapshots``.

    python docs/snapshots.py                   read both installed packages and write their snapshots
    python docs/snapshots.py sglang            one of them
    python docs/snapshots.py --check           write nothing; exit with 1 when a snapshot is not what is installed

Guarantee: the same packages give the same bytes. Each package is imported in a process of its own, where it may change
what it likes.
"""

import argparse
import importlib
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the project may not be installed

from relax_core.config.passthrough import SECTIONS, parse_snapshot, snapshot_path  # noqa: E402

INTROSPECTION = {
    "megatron": ("relax_core.training.introspect", "megatron_options"),
    "sglang": ("relax_core.engines.introspect", "sglang_options"),
}
"""Section -> the module and the function that read the installed package."""


def installed(section: str) -> str:
    """The snapshot of the installed package, as text."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_read, *INTROSPECTION[section]).result()


def _read(module: str, function: str) -> str:
    return getattr(importlib.import_module(module), function)().text()


def differences(section: str, shipped: str, found: str) -> list[str]:
    """What differs, a line each: the version, and options that came, went or changed."""
    if not shipped:
        return ["there is no snapshot"]
    old, new = parse_snapshot(section, shipped), parse_snapshot(section, found)
    lines = [f"{new.package} {old.version} -> {new.version}"] if old.version != new.version else []
    before, after = ({option.name: option for option in snapshot.options} for snapshot in (old, new))
    lines += [f"gone: {name}" for name in before if name not in after]
    lines += [f"new: {name}" for name in after if name not in before]
    lines += [f"changed: {name}" for name in after if name in before and before[name] != after[name]]
    return lines or ["the form of the file, or what is left out"]


def main() -> int:
    """Write or check the snapshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{' or '.join(SECTIONS)}; default: both")
    parser.add_argument("--check", action="store_true", help="only compare, and fail on a difference")
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    stale = False
    for section in arguments.sections or SECTIONS:
        path, found = snapshot_path(section), installed(section)
        shipped = path.read_text(encoding="utf-8") if path.exists() else ""
        if shipped == found:
            print(f"{section}: up to date")
            continue
        stale = True
        print(
            f"{section}: {'differs' if arguments.check else 'written'}",
            *differences(section, shipped, found),
            sep="\n  ",
        )
        if not arguments.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(found, encoding="utf-8")
    if stale and arguments.check:
        print("Run `python docs/snapshots.py`, and look at what came and went.")
    return int(stale and arguments.check)


if __name__ == "__main__":
    raise SystemExit(main())
