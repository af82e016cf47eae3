"""A watch over what must not outlive this process.

Guarantee: when this process ends, however it ends (SIGKILL included), Prefect's temporary server ends within two
seconds. Prefect itself ends it on an orderly exit only. The watch is a small process of its own; it ends with what it
watches.
"""

import os
import subprocess
import sys

import psutil

_WATCH = """
import os, signal, sys, time
parent, children = int(sys.argv[1]), [int(pid) for pid in sys.argv[2:]]
def started(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
known = {pid: started(pid) for pid in [parent, *children]}
lives = lambda pid: known[pid] is not None and started(pid) == known[pid]
while lives(parent) and any(map(lives, children)):
    time.sleep(1)
for sign in (signal.SIGTERM, signal.SIGKILL):
    for pid in filter(lives, children):
        os.kill(pid, sign)
    time.sleep(5 if any(map(lives, children)) else 0)
"""


def guard_temporary_server() -> int | None:
    """Watch over the Prefect server that this process has started, if it has.

    Returns:
        Process id of the watch; None when there is nothing to watch over.
    """
    servers = [child.pid for child in psutil.Process().children() if "prefect.server" in " ".join(_command(child))]
    if not servers:
        return None
    arguments = [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), *map(str, servers)]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(arguments, start_new_session=True, **quiet).pid  # type: ignore[call-overload,no-any-return]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
