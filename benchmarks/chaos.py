# ruff: noqa: E402  (paths and threads are set before the imports)
"""Kills at random moments: whatever dies, the run ends, and as if nothing had died.

    python benchmarks/chaos.py --kills 200 [--mode sync|async] [--seed 0] [--no-standing] [--out FILE.json]
    python benchmarks/chaos.py --victims driver --kills 3      # what one kind of kill costs; or: --victims everything
    python benchmarks/chaos.py --fakes --kills 2000

Rounds of a run of the tiny model with the real SGLang, Megatron-core, Ray and Prefect: a victim (the driver, a rank of
the trainer, an engine's server or actor, a reward host or its worker, an idle Ray worker, the Prefect server, the Ray
head) gets SIGKILL; when useful work goes on, the next one dies a moment later. A driver that is dead is started again.
With ``--fakes`` engines and trainer are stand-ins in a process of their own, flows are plain functions, and the driver,
or everything at once, is killed. When a run has ended it is checked: no finished sample was generated again, no update
applied twice, no row lost or doubled; in the synchronous mode (float32, a reproducible engine) all tables and the last
weights equal those of a run that was left alone, bit by bit. Prints a table by victim, and fails on any mistake.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from chaos_fakes import with_fakes
from chaos_real import Real, drive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--steps", type=int, default=8, help="of each run")
    parser.add_argument(
        "--minutes", type=float, default=600, help="no kill after so many; the run that is under way ends"
    )
    parser.add_argument("--fakes", action="store_true", help="stand-ins for engines; only drivers are killed")
    parser.add_argument("--no-standing", action="store_true", help="no `relax up`: all ends with its driver")
    parser.add_argument("--victims", default="", help="only these, by commas, such as `driver` or `everything`")
    parser.add_argument("--keep", type=Path, help="folder for the runs; by default a temporary one")
    parser.add_argument("--out", type=Path, help="write what was seen as JSON")
    parser.add_argument("--drive", nargs=2, type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.drive:
        drive(*chosen.drive)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.fakes:
            result = with_fakes(folder, chosen.kills, chosen.seed, chosen.mode, chosen.steps)
        else:
            only = tuple(filter(None, chosen.victims.split(",")))
            real = Real(folder, chosen.seed, chosen.mode, not chosen.no_standing, chosen.steps, only)
            try:
                result = real.go(chosen.kills, time.time() + 60 * chosen.minutes)
            finally:
                real.close()
    print(result.text())
    if chosen.out:
        chosen.out.write_text(json.dumps(result.to_json(), indent=2) + "\n")
    return 0 if result.right else 1


if __name__ == "__main__":
    sys.exit(main())
