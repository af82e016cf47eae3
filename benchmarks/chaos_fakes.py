"""Runs of the chaos benchmark whose engines and trainer are stand-ins in a process of their own.

Guarantee: a driver is a process that gets a real SIGKILL; what it has called goes on without it.
"""

import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from chaos_checks import mistakes
from chaos_parts import GROUPS, SAMPLES, STALENESS, Result, noting, options, prepare

from data.store import RunStore
from relax_core.config import RelaxConfig, with_options


class Standing:
    """A stand-in for engine and trainer in a process of their own; each call of the trainer is alone.

    Args:
        seconds: the longest that an update or a save takes.
        pace: seconds that the engine takes for each token; without any, nothing is there to be aborted.
    """

    def __init__(self, seconds: float, pace: float = 0.0) -> None:
        from fakes import FakeBackend

        self._backend = FakeBackend()
        if pace:
            self._backend.engine.pace, self._backend.engine.longest = pace, 20
        self._lock = threading.Lock()
        self._seconds = seconds

    def call(self, who: str, method: str, *args: Any) -> Any:
        """A method of the trainer; or ``label``, ``url``, ``abort_all`` of the engine."""
        if who == "engine":
            engine = self._backend.engine
            if method == "abort_all":
                return engine.abort_all()
            return {"label": engine.label, "url": engine.url}[method]
        with self._lock:
            if method in ("train", "save"):
                time.sleep(random.uniform(0, self._seconds))
            return getattr(self._backend.trainer, method)(*args)

    def lose_all(self) -> None:
        """A power cut."""
        with self._lock:
            self._backend.lose_all()

    def applied(self) -> list[tuple[int, str]]:
        """Updates of all trainers so far."""
        return list(self._backend.trainer.applied)

    def forget(self) -> None:
        """A new run begins."""
        with self._lock:
            self._backend.lose_all()
            self._backend.trainer.applied.clear()


class Servers(BaseManager):
    """Serves ``Standing``."""


Servers.register("Standing", Standing)


class Far:
    """The trainer, or the engines, of a ``Standing``."""

    def __init__(self, standing: Any) -> None:
        self._standing = standing

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args: self._standing.call("trainer", method, *args)


class FarEngines:
    def __init__(self, standing: Any) -> None:
        self._standing, self.urls = standing, [standing.call("engine", "url")]

    def stale(self, label: str) -> bool:
        return bool(self._standing.call("engine", "label") != label)

    def abort_all(self) -> None:
        self._standing.call("engine", "abort_all")

    def _nothing(self, *args: Any) -> None:
        pass

    check = release = resume = _nothing


class FarBackend:
    """The backend of a driver whose engines are another process's."""

    device = "cpu"

    def __init__(self, standing: Any) -> None:
        from relax_core.rewards.pool import RewardPool
        from relax_core.tracking.events import NO_EVENTS

        self._standing, self.timeline, self.reward_pool = standing, NO_EVENTS, RewardPool

    def ensure(self, critic: bool = False) -> Any:
        return Far(self._standing), FarEngines(self._standing)

    def release(self) -> None:
        pass

    connect = release_own = close = release


def drive_fakes(standing: Any, values: dict[str, Any], notes: Path, log: Path) -> None:
    """A driver: the body of a process that may die at any moment."""
    from loop import run_plain

    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    config = with_options(RelaxConfig(), values)
    with noting(RunStore(values["run_dir"]), notes):
        run_plain(config, FarBackend(standing))  # type: ignore[arg-type]


def with_fakes(folder: Path, kills: int, seed: int, mode: str = "sync", steps: int = 6) -> Result:
    """Kill drivers of runs on fakes, and in one of five cases all engines too."""
    prepare(folder)
    dice, result = random.Random(seed), Result()
    context = multiprocessing.get_context("forkserver")
    # what each driver imports is there when it begins: Python's fork server looks for it in this variable only
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:3], os.environ.get("PYTHONPATH", "")])
    context.set_forkserver_preload(["chaos_fakes", "loop", "flows.train", "transformers.models.auto.tokenization_auto"])
    with Servers(ctx=context) as server:
        standing = server.Standing(0.05, 0.01 if mode == "async" else 0.0)  # type: ignore[attr-defined]

        def driver(run: str) -> Any:
            values = options(folder, run, steps, mode, fakes=True)
            arguments = (standing, values, folder / f"{run}.notes", folder / f"{run}.log")
            process = context.Process(target=drive_fakes, args=arguments)
            process.start()
            return process

        driver("warm").join()
        standing.forget()
        began = time.time()
        (first := driver("alone")).join()
        if first.exitcode != 0:
            raise RuntimeError((folder / "alone.log").read_text()[-2000:])
        whole = time.time() - began  # later drivers find something done, and take less
        expected, reference = standing.applied(), RunStore(str(folder / "alone"))
        while len(result.kills) < kills and len(result.mistakes) < 20:
            run = f"run-{result.runs}"
            standing.forget()
            lost_trainer = False
            while True:
                process = driver(run)
                process.join(dice.uniform(0, whole) if len(result.kills) < kills else 60)
                if process.exitcode is None:
                    everything = dice.random() < 0.2
                    at = time.time()
                    process.kill()
                    process.join()
                    if everything:
                        standing.lose_all()
                        lost_trainer = True
                    victim = "driver and engines" if everything else "driver"
                    result.kills.append({"victim": victim, "run": run, "at": at, "seconds": None})
                elif process.exitcode == 0:
                    break
                else:
                    result.mistakes.append(f"{run}: {(folder / f'{run}.log').read_text()[-1500:]}")
                    break
            store = RunStore(str(folder / run))
            staleness = STALENESS if mode == "async" else 0
            found = mistakes(store, steps, GROUPS * SAMPLES, 1, reference, staleness)
            applied = standing.applied()
            if not lost_trainer and [version for version, _ in applied] != list(range(1, steps + 1)):
                found.append(f"updates {[version for version, _ in applied]}")
            if mode == "sync" and not set(applied) <= set(expected):
                found.append("an update had another result")
            result.ended(run, store, folder / f"{run}.notes", found)
    return result
