"""What the chaos benchmark is made of: the driver that notes what engines are asked for, the processes of a run by
what they are, the options, and the result.

Guarantee: a note is on the disk before its request leaves.
"""

import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pyarrow as pa
from chaos_checks import repeated, wasted

from data.errors import UserError
from data.store import RunStore
from relax_core.run.records import StageRecords
from relax_core.tracking.events import read_events

FINISHED = {"completed", "truncated"}
WORK = ("stage_started", "stage_finished", "retrained", "rewind")
"""Events of work that is useful: of a stage that was not finished, or of an update that is made again."""


# the driver


def finished_seeds(store: RunStore) -> set[int]:
    """Sampling seeds, one a sample, of the finished samples that the run directory has: in the tables of recorded
    generations, and in the parts that are kept of the others."""
    records, found = StageRecords(store), set[int]()
    for name in filter(str.isdigit, store.ls("steps")):
        step = int(name)
        if (record := records.last(step, "generate")) is not None:
            for reference in record.tables.values():
                found |= _finished(store.read_table(reference))
        for path in store.sizes(store.step_path(step, "generate.parts")):
            with contextlib.suppress(UserError):  # a part that a kill has cut is no part
                found |= _finished(store.read_table(path))
    return found


def _finished(rows: pa.Table) -> set[int]:
    return {
        seed
        for seed, status in zip(rows["seed"].to_pylist(), rows["status"].to_pylist(), strict=True)
        if status in FINISHED
    }


@contextlib.contextmanager
def noting(store: RunStore, path: Path) -> Iterator[None]:
    """Note what the run has, and then each request to an engine and its answer, as lines of JSON."""
    from relax_core.engines.client import EngineClient

    real = EngineClient.generate
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(**what: Any) -> None:
        os.write(file, (json.dumps({"time": time.time(), "pid": os.getpid(), **what}) + "\n").encode())

    async def generate(client: Any, input_ids: Any, params: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        seed = params.get("sampling_seed")
        note(ask=seed)
        answer = await real(client, input_ids, params, *args, **kwargs)
        note(got=seed, whole=answer.finish_reason.get("type") != "abort")  # what was aborted goes on later
        return answer

    note(has=sorted(finished_seeds(store)))
    with mock.patch.object(EngineClient, "generate", generate):
        yield
    os.close(file)


def read_notes(path: Path) -> list[dict[str, Any]]:
    """All whole lines."""
    notes = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            notes.append(json.loads(line))
    return notes


# what a kill cost


def seconds_to_work(kill: float, notes: Iterable[dict[str, Any]], store: RunStore) -> float | None:
    """From a kill to the first request or useful event after it; None: there was nothing left to do."""
    times = [note["time"] for note in notes if "ask" in note and note["time"] > kill]
    times += [event["time"] for event in read_events(store) if event["kind"] in WORK and event["time"] > kill]
    return min(times) - kill if times else None


# the processes


def processes(home: Path) -> dict[str, list[psutil.Process]]:
    """The living processes that were started with this RELAX_HOME, by what they are."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("RELAX_HOME") != str(home) or process.status() == psutil.STATUS_ZOMBIE:
                continue
            kind = _kind(" ".join(process.cmdline()))
            if kind:
                found.setdefault(kind, []).append(process)
    return found


_KINDS = (
    ("chaos.py --drive", "driver"),
    ("ray::RankActor", "trainer rank"),
    ("ray::TrainerRank", "trainer rank"),
    ("ray::Trainer", "trainer rank"),
    ("ray::SGLangEngine", "engine actor"),
    ("sglang::", "engine server"),
    ("relax_core.engines.serve", "engine server"),
    ("relax_core/engines/serve", "engine server"),
    ("ray::Reward", "reward host"),
    ("relax_core.rewards", "reward worker"),
    ("relax_core/rewards", "reward worker"),
    ("prefect server start", "Prefect server"),
    ("prefect.server", "Prefect server"),
    ("ray::IDLE", "Ray worker"),
    ("raylet/raylet", "Ray head"),
    ("gcs_server", "Ray head"),
)


def _kind(command: str) -> str:
    return next((kind for mark, kind in _KINDS if mark in command), "")


# the table


def table(kills: list[dict[str, Any]]) -> str:
    """One line a victim: kills, and seconds to useful work."""
    lines = [f"{'victim':18} {'kills':>6} {'median s':>9} {'max s':>7}"]
    for victim in sorted({kill["victim"] for kill in kills}):
        times = [kill["seconds"] for kill in kills if kill["victim"] == victim and kill["seconds"] is not None]
        count = sum(kill["victim"] == victim for kill in kills)
        shown = f"{statistics.median(times):9.2f} {max(times):7.2f}" if times else f"{'-':>9} {'-':>7}"
        lines.append(f"{victim:18} {count:6} {shown}")
    return "\n".join(lines)


# the runs

GROUPS, SAMPLES, UPDATES = 4, 4, 2
"""Of a rollout step: prompts, samples a prompt, optimiser steps."""

STALENESS = 1
"""Where steps overlap: by how many versions a token's weights may be behind."""

REWARD = '''
"""A reward of a worker process: the same for the same answer."""
import hashlib, time


def reward(args, sample, **kwargs):
    time.sleep(0.02)
    return int(hashlib.sha256(sample.response.encode()).hexdigest()[:4], 16) % 7 / 7
'''


def options(folder: Path, run: str, steps: int, mode: str, fakes: bool) -> dict[str, Any]:
    """Of the run in ``<folder>/<run>``."""
    values = {
        "run_dir": str(folder / run),
        "hf_checkpoint": str(folder / "model"),
        "save_interval": 3,
        "prompt_data": str(folder / "sums.jsonl"),
        "label_key": "label",
        "rollout_shuffle": True,
        "num_rollout": steps,
        "rollout_batch_size": GROUPS,
        "n_samples_per_prompt": SAMPLES,
        "rollout_max_response_len": 24,
        "rollout_max_context_len": 64,
        "num_steps_per_rollout": UPDATES,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 256,
        "lr": 1e-3,
        "sglang_enable_deterministic_inference": True,
    }
    if fakes:
        values |= {"rm_type": "random"}
    else:
        values |= {
            "custom_rm_path": f"{folder / 'rewards.py'}:reward",
            "resource": {"actor": (1, 1), "rollout": (1, 2)},
            "save_hf": str(folder / f"{run}-hf-{{rollout_id}}"),
        }
    if mode == "async":
        values |= {
            "fully_async": True,
            "max_staleness": STALENESS,
            "num_iters_per_train_update": 2,
            "use_rollout_logprobs": True,
            "resource": {"actor": (1, 1), "rollout": (1, 2), "actor_fwd": (1, 1)},
        }
    return values


def prepare(folder: Path) -> None:
    """Model, prompts and reward."""
    from tiny import make_tiny

    make_tiny(folder / "model")
    rows = [{"input": f"{a} + {b} =", "label": str(a + b)} for a in range(4) for b in range(5)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARD)


class Result:
    """What was seen."""

    def __init__(self) -> None:
        self.kills: list[dict[str, Any]] = []
        self.mistakes: list[str] = []
        self.runs = self.repeated = self.wasted = self.restarts = 0

    def ended(self, name: str, store: RunStore, notes: Path, found: list[str]) -> None:
        """A run has ended: its figures are counted."""
        lines = read_notes(notes)
        again = repeated(lines)
        self.runs, self.repeated, self.wasted = self.runs + 1, self.repeated + len(again), self.wasted + wasted(lines)
        self.mistakes += [f"{name}: {text}" for text in found]
        mine = [kill for kill in self.kills if kill["run"] == name]
        for kill, later in zip(mine, [*(one["at"] for one in mine), float("inf")][1:], strict=True):
            seconds = seconds_to_work(kill["at"], lines, store)
            if seconds is not None and kill["at"] + seconds < later:  # else that one is to blame
                kill["seconds"] = seconds

    @property
    def right(self) -> bool:
        return not self.mistakes and not self.repeated

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def text(self) -> str:
        ended = f"{len(self.kills)} kills, {self.runs} runs ended, {self.restarts} drivers ended with an error"
        again = f"finished samples generated again: {self.repeated}; answers lost with a driver: {self.wasted}"
        return "\n".join([table(self.kills), ended, again, *(self.mistakes or ["no mistakes"])])
