"""A driver that dies is started again: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from terminal import FAKES, Terminal

from data.errors import Lost, NotStarted, UserError
from data.store import RunStore
from flows import restarts as restarting
from flows.restarts import Restarts, RestartsUsedUp, in_process
from relax_core import signs
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.tracking.events import read_events

CHILD = """
import json, os, pathlib, signal, sys, time
from relax_core import signs
assert signs.adopt() and signs.watched()
folder = pathlib.Path(sys.argv[1])
lives = folder / "lives"
lives.write_text(str(int(lives.read_text()) + 1 if lives.exists() else 1))
life = int(lives.read_text())
assert signs.attempt() == life - 1
print(f"life {life}", flush=True)
"""
PARENT = """
import sys
import time
from data.errors import UserError
from flows import supervise
from flows.cli.stop import end_in_time
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
supervise.HANG_SECONDS = 1.0
folder, limit, program = sys.argv[1], int(sys.argv[2]), sys.argv[3]
config = with_options(RelaxConfig(), {"run_dir": folder, "max_global_restart": limit})
end_in_time()
try:
    sys.exit(supervise.supervise([sys.executable, "-P", "-c", program, folder], config))
except UserError as error:
    print(f"relax: {error}", flush=True)
    sys.exit(error.exit_code)
"""


def watched(folder: Path, program: str, limit: int = 3) -> Terminal:
    return Terminal([PARENT, str(folder), str(limit), CHILD + program])


def lives(folder: Path) -> int:
    return int((folder / "lives").read_text())


def restarts(folder: Path) -> list[tuple[int, int, str]]:
    events = read_events(RunStore(str(folder)), kind="driver_restarted")
    return [(event["attempt"], event["of"], event["cause"]) for event in events]


def test_a_driver_that_was_killed_is_started_again(tmp_path: Path) -> None:
    run = watched(tmp_path, "if life == 1: os.kill(os.getpid(), signal.SIGKILL)")
    assert run.end() == 0, run.output
    assert lives(tmp_path) == 2
    assert "starting it again in 1 s (1 of 3)" in run.output
    assert restarts(tmp_path) == [(1, 3, "it was ended by SIGKILL (out of memory?)")]


def test_at_the_limit_the_run_ends_with_all_reasons(tmp_path: Path) -> None:
    program = "signs.failed(f'reason {life}', True); sys.exit(75)"
    run = watched(tmp_path, program, limit=1)
    assert run.end() == 1, run.output
    assert lives(tmp_path) == 2  # the first, and one restart
    assert "1. reason 1" in run.output
    assert "2. reason 2" in run.output
    (last,) = read_events(RunStore(str(tmp_path)), kind="driver_ended")
    assert "--max-global-restart 1 is used up" in last["cause"]


@pytest.mark.parametrize("program", ["sys.exit(0)", "sys.exit(2)", "signs.failed('a mistake', False); sys.exit(1)"])
def test_an_end_and_a_mistake_are_final(program: str, tmp_path: Path) -> None:
    run = watched(tmp_path, program)
    assert run.end() == int(program.split("(")[-1][0]), run.output
    assert lives(tmp_path) == 1


def test_a_driver_without_a_sign_of_life_is_ended_and_started_again(tmp_path: Path) -> None:
    # The first one stands still, as in a lock that nobody opens; the second one gives signs for longer than the limit.
    run = watched(
        tmp_path,
        "signs.alive()\nif life == 1: time.sleep(1000)\n"
        "signs.EVERY_SECONDS = 0.0\nfor _ in range(20):\n    time.sleep(0.1); signs.alive()",
    )
    assert run.end() == 0, run.output
    assert lives(tmp_path) == 2
    assert "no sign of life" in restarts(tmp_path)[0][2]
    assert "most recent call first" in run.output  # where it stood


def test_a_driver_that_computes_does_not_hang(tmp_path: Path) -> None:
    run = watched(tmp_path, "signs.alive()\nuntil = time.monotonic() + 3\nwhile time.monotonic() < until: pass")
    assert run.end() == 0, run.output
    assert lives(tmp_path) == 1


def test_a_pause_of_all_is_no_hang(tmp_path: Path) -> None:
    """As by Ctrl-Z, or in a container that is frozen: driver and watcher stand still for longer than the limit."""
    program = "signs.EVERY_SECONDS = 0.0\nfor turn in range(60):\n    time.sleep(0.1); signs.alive()\n"
    run = watched(tmp_path, program + "    if turn == 9: print(os.getpid(), 'is ready', flush=True)")
    run.wait_for("is ready")
    driver = int(run.output.split("is ready")[0].split()[-1])
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(run.process.pid, number)
        os.kill(driver, number)
        if number == signal.SIGSTOP:
            time.sleep(2.5)
    assert run.end() == 0, run.output
    assert lives(tmp_path) == 1


WAITS = """
seen = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: (seen.append(number), print("got", number, flush=True)))
signs.alive()
print("ready", flush=True)
while not seen: time.sleep(0.05); signs.alive()
time.sleep(0.5)
print("signals:", len(seen), flush=True)
sys.exit(128 + seen[0])
"""


@pytest.mark.parametrize("how", ["terminal", "group", "one"])
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_driver_once_and_ends_the_run(how: str, sign: signal.Signals, tmp_path: Path) -> None:
    run = watched(tmp_path, WAITS)
    run.wait_for("ready")
    if how == "terminal":
        run.press_ctrl_c()
        sign = signal.SIGINT
    elif how == "group":
        run.send(sign)
    else:
        run.process.send_signal(sign)
    assert run.end() == 128 + sign, run.output
    assert "signals: 1" in run.output
    assert lives(tmp_path) == 1


def test_whoever_ends_the_driver_itself_wants_an_end(tmp_path: Path) -> None:
    run = watched(tmp_path, "os.kill(os.getpid(), signal.SIGTERM)")
    assert run.end() == 143, run.output
    assert lives(tmp_path) == 1


def test_the_driver_ends_with_whoever_watches_it(tmp_path: Path) -> None:
    run = watched(
        tmp_path, "print('pid', os.getpid(), 'ready', flush=True)\nwhile True: time.sleep(0.05); signs.alive()"
    )
    run.wait_for("ready")
    run.process.kill()
    assert run.end() == -signal.SIGKILL  # end() reads until nobody has the terminal open: the driver is gone too


# In one process


def config(folder: Path, **options: object) -> RelaxConfig:
    return with_options(RelaxConfig(), {"run_dir": str(folder), "use_health_check": True, **options})


def test_from_python_what_is_lost_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarting.time, "sleep", lambda seconds: None)
    errors = [EngineUnavailable("gone"), Lost("gone too")]

    def work() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert in_process(config(tmp_path), work) == "done"
    assert [cause for _, _, cause in restarts(tmp_path)] == ["gone too", "gone"]


@pytest.mark.parametrize("error", [UserError("a mistake"), EngineRefused("no"), NotStarted("no memory"), ValueError()])
def test_from_python_a_mistake_is_final(error: Exception, tmp_path: Path) -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        in_process(config(tmp_path), work)
    assert len(calls) == 1


def test_what_came_up_once_was_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarting.time, "sleep", lambda seconds: None)
    errors = [Lost("died"), NotStarted("the device is not free yet")]

    def work() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert in_process(config(tmp_path), work) == "done"


def test_from_python_the_limit_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarting.time, "sleep", lambda seconds: None)

    def work() -> None:
        raise Lost("gone")

    with pytest.raises(RestartsUsedUp, match="failed 3 times, and --max-global-restart is 2"):
        in_process(config(tmp_path, max_global_restart=2), work)


def test_without_the_option_nothing_is_tried_again(tmp_path: Path) -> None:
    def work() -> None:
        raise Lost("gone")

    with pytest.raises(Lost):
        in_process(config(tmp_path, use_health_check=False), work)


def test_pauses_grow_to_half_a_minute_and_begin_anew_after_a_step(tmp_path: Path) -> None:
    counted = Restarts(config(tmp_path, max_global_restart=10))
    assert [counted.next("gone") for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    counted.went_on()
    assert counted.next("gone") == 1


# The command


FAILING = f"""
import os, pathlib, signal, sys
from relax_core.tracking.progress import Progress
folder = pathlib.Path({{folder!r}})
real = Progress.stage
def stage(self, step, name):
    mark = folder / "killed"
    if (step, name) == (1, "reward") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, step, name)
Progress.stage = stage
{FAKES}
"""


@pytest.mark.e2e
def test_a_run_whose_driver_is_killed_goes_on_by_itself(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    words = f"train --use-health-check --hf-checkpoint {tiny_model} --prompt-data {sums} --label-key label"
    words += " --rm-type random --num-rollout 3 --rollout-batch-size 2 --n-samples-per-prompt 2"
    words += " --rollout-max-response-len 8 --rollout-max-context-len 64"
    home = tmp_path / "home"
    (home / "prefect").mkdir(parents=True)
    environment = {"RELAX_HOME": str(home), "PREFECT_HOME": str(home / "prefect"), "PREFECT_API_URL": ""}
    program = FAILING.replace("{folder!r}", repr(str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *words.split()],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()  # derived once, and kept
    store = RunStore(str(run_dir))
    assert store.last_complete_step() == 2
    assert restarts(run_dir) == [(1, 3, "it was ended by SIGKILL (out of memory?)")]
    # generated once, though the driver died behind it
    generated = [event for event in read_events(store, 1, "stage_started") if event["who"] == "generate"]
    assert len(generated) == 1
    assert "(1 of 3)" in done.stderr
    assert json.loads((run_dir / "driver.json").read_text())["epoch"] == 2


def test_mistakes_in_the_options_are_told_before_a_driver_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flows.cli.main", "train", "--use-health-check", "--lr", "-1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "starting it again" not in done.stderr
    assert done.stderr.count("--lr") == 1


def test_nothing_is_sent_where_nobody_watches() -> None:
    signs.alive()
    signs.failed("nobody hears it", True)
    assert not signs.watched()
