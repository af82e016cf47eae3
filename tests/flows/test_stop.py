"""Ctrl-C and SIGTERM of real commands: a terminal sends them to the whole group, servers and workers included."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from terminal import FAKES, REAL, Terminal

from data.store import RunStore
from relax_core.run.lock import DriverLock

GOES_ON = "the same command goes on from the last finished task."
HANGING = """
import pathlib, time
def reward(sample):
    if pathlib.Path(__file__).with_name("run").joinpath("steps/000000/manifest.json").exists():
        print("hanging", flush=True)
        pathlib.Path(__file__).with_name("hangs").touch()
        time.sleep(1000)
    return 1.0
"""


def hanging_run(folder: Path, program: str, model: Path, prompts: Path, **options: str) -> Terminal:
    """`relax train` in its second step, whose reward hangs in its own process."""
    (folder / "hanging.py").write_text(HANGING)
    words = f"train --run-dir {folder}/run --hf-checkpoint {model} --prompt-data {prompts} --label-key label"
    words += f" --custom-rm-path {folder}/hanging.py:reward --num-rollout 3 --rollout-batch-size 2"
    words += " --n-samples-per-prompt 2 --rollout-max-response-len 8 --rollout-max-context-len 64"
    words += " --debug-rollout-only --reward-num-workers 2"
    home = folder / "home"
    (home / "prefect").mkdir(parents=True)
    without = {"PREFECT_API_URL": ""}  # a temporary server
    environment = {"RELAX_HOME": str(home), "PREFECT_HOME": str(home / "prefect"), **without}
    run = Terminal([program, *words.split()], **environment)
    recorded = folder / "run/steps/000001/stages/generate.json"  # rewards begin, and hang, while others are generated
    wait_until(lambda: (folder / "hangs").exists() and recorded.exists(), run)
    return run


def wait_until(true: Callable[[], object], run: Terminal) -> None:
    deadline = time.monotonic() + 300
    try:
        while not true():
            assert run.process.poll() is None, run.read() and run.output
            assert time.monotonic() < deadline
            time.sleep(0.05)
    except BaseException:
        run.process.kill()
        raise


def left_of(folder: Path) -> list[list[str]]:
    """Command lines of living processes whose environment names the folder; they may take some seconds to go."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = []
        for process in psutil.process_iter():
            try:
                if f"{folder}/home" == process.environ().get("RELAX_HOME"):
                    left.append(process.cmdline()[:6])
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        if not left:
            break
        time.sleep(0.2)
    return left


def goes_on(folder: Path) -> None:
    """The first step is finished, the samples of the second are there, and the next driver is let in."""
    store = RunStore(str(folder / "run"))
    assert store.exists("steps/000000/manifest.json")
    assert store.exists("steps/000001/rollout.parquet")
    assert not store.exists("steps/000001/reward.parquet")
    DriverLock(store).release()


@pytest.mark.e2e
@pytest.mark.ray
@pytest.mark.sglang
def test_ctrl_c_ends_a_run_and_all_that_it_started(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    run = hanging_run(tmp_path, REAL, tiny_model, sums)
    run.press_ctrl_c()
    assert run.end() == 130, run.output
    assert f"stopped; {GOES_ON}" in run.output
    assert "Traceback" not in run.output
    assert "Error" not in run.output
    assert left_of(tmp_path) == []
    goes_on(tmp_path)


@pytest.mark.e2e
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_that_ends_the_temporary_server_too_ends_the_run_in_order(
    sign: signal.Signals, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    run = hanging_run(tmp_path, FAKES, tiny_model, sums)
    run.send(sign)
    if sign == signal.SIGINT:  # the server is deaf to it, so that it has to be ended for what is tested here
        for process in psutil.Process(run.process.pid).children():
            if "uvicorn" in process.cmdline():
                process.kill()
    assert run.end() == 128 + sign, run.output
    assert run.output.count(GOES_ON) == 1
    assert "Traceback" not in run.output
    assert "Error" not in run.output
    assert left_of(tmp_path) == []
    goes_on(tmp_path)


STUCK = """
import os, signal, sys, time
from flows.cli import stop
for sign in (signal.SIGINT, signal.SIGTERM):
    signal.signal(sign, lambda number, frame: os.write(1, b"is deaf\\n"))
stop._ECHO_S = float(sys.argv[2])
stop.end_in_time(float(sys.argv[1]))
print("works", flush=True)
while True:
    time.sleep(1000)
"""


@pytest.mark.parametrize(("sign", "text"), [(signal.SIGINT, "stopped"), (signal.SIGTERM, "ended by SIGTERM")])
def test_what_does_not_end_in_order_ends_at_the_limit(sign: signal.Signals, text: str) -> None:
    run = Terminal([STUCK, "3", "0"])  # time enough for a busy machine to say that it is deaf
    run.wait_for("works")
    run.send(sign)
    assert run.end() == 128 + sign
    assert "is deaf" in run.output
    assert f"{text}; {GOES_ON}" in run.output
    assert "\x1b[?25h" in run.output  # the cursor is back


def test_a_second_ctrl_c_ends_at_once() -> None:
    run = Terminal([STUCK, "1000", "0"])
    run.wait_for("works")
    run.press_ctrl_c()
    run.wait_for("is deaf")
    run.press_ctrl_c()
    assert run.end() == 130
    assert run.output.count(GOES_ON) == 1


def test_a_ctrl_c_that_a_launcher_passes_on_is_no_second_one() -> None:
    run = Terminal([STUCK, "1000", "1000"])
    run.wait_for("works")
    for count in (1, 2, 3):
        run.press_ctrl_c()
        while run.output.count("is deaf") < count:
            assert run.read()
    run.send(signal.SIGKILL)
    assert run.end() == -signal.SIGKILL
    assert GOES_ON not in run.output


FORKS = """
import os, signal, sys, time
from flows.cli import stop
stop.end_in_time(0.0)
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(3))
ready, tell = os.pipe()
child = os.fork()
if not child:
    os.write(tell, b"1")
    time.sleep(1000)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
time.sleep(0.2)  # for the watch, if it were told
print("the child ended with", os.waitstatus_to_exitcode(status), flush=True)
"""


def test_a_signal_to_a_forked_child_is_none_to_the_command() -> None:
    run = Terminal([FORKS])
    assert run.end() == 0
    assert "the child ended with 3" in run.output
