"""Processes that are halted before they are ended, and children that nobody has buried."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from relax_core.cluster.processes import alive, end, halted, terminate

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid, flush=True)
time.sleep(100)
"""


@pytest.fixture
def parent() -> Iterator["subprocess.Popen[str]"]:
    """A process that has one child, whose number it prints, and does not wait for it."""
    started = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    yield started
    started.kill()
    started.wait()
    assert started.stdout is not None
    started.stdout.close()


def child_of(parent: "subprocess.Popen[str]") -> psutil.Process:
    assert parent.stdout is not None
    return psutil.Process(int(parent.stdout.readline()))


def test_the_children_of_a_halted_process_end_before_it(parent: "subprocess.Popen[str]") -> None:
    child, started = child_of(parent), psutil.Process(parent.pid).create_time()
    with halted(parent.pid):
        terminate([child.pid], seconds=60)  # it is a zombie then: nobody has waited for it
        assert child.status() == psutil.STATUS_ZOMBIE
        assert psutil.Process(parent.pid).status() == psutil.STATUS_STOPPED
    end(parent.pid)  # SIGTERM would not reach it
    parent.wait(10)  # its exit code has who waited first
    assert not alive(parent.pid, started)


def test_a_halted_process_goes_on_when_what_it_was_halted_for_fails(parent: "subprocess.Popen[str]") -> None:
    child_of(parent)
    with pytest.raises(KeyboardInterrupt), halted(parent.pid):
        raise KeyboardInterrupt
    assert psutil.Process(parent.pid).status() != psutil.STATUS_STOPPED


def test_a_process_that_is_gone_is_neither_halted_nor_ended(parent: "subprocess.Popen[str]") -> None:
    child = child_of(parent)
    parent.kill()
    parent.wait()
    child.kill()
    with halted(parent.pid):
        terminate([parent.pid])
    end(parent.pid)
