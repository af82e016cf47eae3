"""Printing where nobody reads any more."""

import os
import subprocess
import sys

PROGRAM = """
import os, sys
from rich.console import Console
from flows.deployed.output import unbroken_output
console = Console()
with unbroken_output():
    console.print("before")
    sys.stdin.readline()
    for _ in range(3):
        console.print("nobody reads this")
        print("nor this", file=sys.stderr, flush=True)
os.write(int(sys.argv[1]), b"done")
os._exit(0)
"""


def test_a_driver_outlives_whoever_reads_what_it_prints() -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-c", PROGRAM, str(writer)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, pass_fds=[writer], **pipes)  # type: ignore[call-overload]
    os.close(writer)
    assert child.stdout.readline() == b"before\n"
    child.stdout.close()
    child.stderr.close()
    child.stdin.write(b"\n")
    child.stdin.close()
    assert child.wait(30) == 0
    assert os.read(reader, 4) == b"done"
