"""Runs of the chaos benchmark with the real engines: whatever belongs to them is killed.

Guarantee: only processes that were started with the benchmark's own RELAX_HOME are killed, by their id.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from chaos_checks import mistakes
from chaos_parts import (
    GROUPS,
    SAMPLES,
    STALENESS,
    UPDATES,
    Result,
    noting,
    options,
    prepare,
    processes,
    read_notes,
    seconds_to_work,
)

from data.store import RunStore
from relax_core.config import RelaxConfig, with_options

CHAOS = Path(__file__).with_name("chaos.py")

EVERYTHING = "everything"
"""A victim: all processes of the run and its standing services at once, as in a power cut."""

SILENT_SECONDS = 300.0
"""A driver that shows no useful work for so long hangs: that is a mistake of the run."""


def drive(settings: Path, notes: Path) -> None:
    """A driver, as ``relax train`` is one."""
    values = json.loads(settings.read_text())
    values["resource"] = {role: tuple(devices) for role, devices in values["resource"].items()}
    with noting(RunStore(values["run_dir"]), notes):
        from flows.train import train

        train(with_options(RelaxConfig(), values))


def _stacks(pid: int) -> str:
    """What a process does, where py-spy is installed."""
    with contextlib.suppress(OSError):
        return subprocess.run(["py-spy", "dump", "--pid", str(pid)], capture_output=True, text=True).stdout[-2000:]
    return ""


class Real:
    """Runs with real engines.

    Args:
        standing: under a Ray head and a Prefect server that outlive a driver.
        only: victims; empty: any but ``EVERYTHING``.
    """

    def __init__(
        self, folder: Path, seed: int, mode: str, standing: bool, steps: int, only: tuple[str, ...] = ()
    ) -> None:
        self.folder, self.mode, self.standing, self.steps, self.only = folder, mode, standing, steps, only
        self.dice, self.result = random.Random(seed), Result()
        self.home = folder / "home"
        os.environ |= {
            "RELAX_HOME": str(self.home),
            "PREFECT_HOME": str(folder / "prefect"),
            "CUDA_VISIBLE_DEVICES": "",
        }
        for path in (self.home, folder / "prefect"):
            path.mkdir(exist_ok=True)
        prepare(folder)

    def services(self) -> None:
        """Start what is not there."""
        if self.standing:
            from relax_core.cluster import services

            services.start_ray()
            os.environ["PREFECT_API_URL"] = services.start_prefect().address

    def start(self, run: str) -> subprocess.Popen[bytes]:
        settings = self.folder / f"{run}.json"
        settings.write_text(json.dumps(options(self.folder, run, self.steps, self.mode, fakes=False)))
        command = [sys.executable, "-P", str(CHAOS), "--drive", str(settings), str(self.folder / f"{run}.notes")]
        with (self.folder / f"{run}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def victims(self, driver: subprocess.Popen[bytes]) -> dict[str, list[psutil.Process]]:
        found = {kind: its for kind, its in processes(self.home).items() if kind != "driver"}
        found["driver"] = [psutil.Process(driver.pid)]
        if EVERYTHING in self.only:
            found[EVERYTHING] = [process for its in found.values() for process in its]
        return {kind: its for kind, its in found.items() if not self.only or kind in self.only}

    def go(self, kills: int, until: float) -> Result:
        """Rounds until there were so many kills, or the time is over."""
        self.services()
        alone = self.start("alone")
        if alone.wait(900) != 0:
            raise RuntimeError((self.folder / "alone.log").read_text()[-3000:])
        reference = RunStore(str(self.folder / "alone"))
        while len(self.result.kills) < kills and time.time() < until and len(self.result.mistakes) < 20:
            run = f"run-{self.result.runs}"
            ended = self.round(run, kills, until)
            store = RunStore(str(self.folder / run))
            found = [] if ended else ["it did not end"]
            if ended:
                staleness = STALENESS if self.mode == "async" else 0
                found = mistakes(store, self.steps, GROUPS * SAMPLES, UPDATES, reference, staleness)
                last = f"hf-{self.steps - 1}/model.safetensors"
                weights = [(self.folder / f"{name}-{last}").read_bytes() for name in ("alone", run)]
                if self.mode == "sync" and weights[0] != weights[1]:
                    found.append("its last weights differ from those of the undisturbed run")
            self.result.ended(run, store, self.folder / f"{run}.notes", found)
            print(f"{run}: {'ended' if ended else 'FAILED'}, {len(self.result.kills)} kills so far", flush=True)
        return self.result

    def round(self, run: str, kills: int, until: float) -> bool:
        """One run to its end; whether it came there."""
        driver, failures, next_kill = self.start(run), 0, 0.0
        last_kill = time.time()
        while True:
            time.sleep(0.1)
            code = driver.poll()
            if code == 0:
                return True
            if code is not None:
                if code != -signal.SIGKILL:
                    self.result.restarts += 1
                    failures += 1
                    if failures > 6:
                        tail = (self.folder / f"{run}.log").read_text()[-1500:]
                        self.result.mistakes.append(f"{run}: the driver fails again and again: {tail}")
                        return False
                self.services()
                driver = self.start(run)
                continue
            if not self.works(run, last_kill):
                if time.time() - last_kill > SILENT_SECONDS:
                    self.result.mistakes.append(f"{run}: nothing for {SILENT_SECONDS:g} s: {_stacks(driver.pid)}")
                    driver.kill()
                    driver.wait()
                    return False
                continue
            failures = 0
            if not next_kill:
                next_kill = time.time() + self.dice.uniform(0, 3)
            if time.time() < next_kill or len(self.result.kills) >= kills or time.time() > until:
                continue
            last_kill, next_kill = self.kill(run, driver), 0.0

    def works(self, run: str, since: float) -> bool:
        """Whether useful work has been done since."""
        store = RunStore(str(self.folder / run))
        return seconds_to_work(since, read_notes(self.folder / f"{run}.notes"), store) is not None

    def kill(self, run: str, driver: subprocess.Popen[bytes]) -> float:
        """SIGKILL for one of what is there; the time of it."""
        found = self.victims(driver)
        if not found:  # those that are wanted are not there at this moment
            return time.time()
        # a head takes a minute to come back from: it is not hit as often as its share
        victim = self.dice.choices(sorted(found), [1 if kind == "Ray head" else 4 for kind in sorted(found)])[0]
        doomed = found[victim] if victim in ("Ray head", EVERYTHING) else [self.dice.choice(found[victim])]
        at = time.time()
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if driver.pid in [process.pid for process in doomed]:
            driver.wait()
        self.result.kills.append({"victim": victim, "run": run, "at": at, "seconds": None})
        print(f"{run}: killed {victim}", flush=True)
        if victim in ("Prefect server", "Ray head") and self.standing:
            time.sleep(self.dice.uniform(0, 3))
            self.services()
        return at

    def close(self) -> None:
        """End the services, and what an interrupted run has left."""
        from relax_core.cluster import services

        services.stop()
        for process in [process for its in processes(self.home).values() for process in its]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid != os.getpid():
                    process.kill()
