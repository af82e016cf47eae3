"""What the turns of a run on shared devices cost: each turn, each call in it, and the memory of the GPU meanwhile.

Guarantee: nothing is asked within a turn that the run would not ask: memory is looked at by a thread beside the run,
and trainers tell of their copies behind a turn.
"""

import contextlib
import functools
import itertools
import math
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

TURNS = ("generate", "generated", "score", "train", "hand_over", "save")
SWITCH = ("generated", "score", "train", "hand_over", "save", "generate")
"""The turns of a step, from the end of its generation to the next one."""


class Memory:
    """Used memory of the first GPU, as nvidia-smi tells, which sees all processes; looked at three times a second."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        if shutil.which("nvidia-smi") is not None:
            self._thread.start()

    def _look(self) -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
        while not self._ended.wait(0.3):
            with contextlib.suppress(subprocess.SubprocessError, ValueError, IndexError):
                found = subprocess.run(command, capture_output=True, text=True, timeout=10)
                self.samples.append((time.perf_counter(), int(found.stdout.split()[0])))

    def close(self) -> None:
        self._ended.set()

    def between(self, start: float, end: float) -> list[int]:
        """MiB, of the looks between two times."""
        return [size for when, size in self.samples if start <= when <= end]


class Watch:
    """Measures the turns of the runs of this process, from when it is made.

    Attributes:
        turns: a row for each turn: ``turn``, ``start`` and ``end``, ``seconds``, ``calls``, and ``moved``, what the
            trainer told of its copies.
        beside: calls to engines that were made beside the run, by another thread.
        pushes: what each push of weights told.
        trained: the arguments of the last update.
    """

    def __init__(self) -> None:
        from relax_core.cluster.handles import RayEngines, RayTrainer
        from relax_core.run import turns
        from relax_core.run.trainer_calls import TrainerCalls

        self.turns: list[dict[str, Any]] = []
        self.beside: list[dict[str, Any]] = []
        self.pushes: list[dict[str, Any]] = []
        self.trained: tuple[Any, ...] = ()
        self.memory = Memory()
        self._open: dict[str, Any] | None = None
        self._owner = threading.get_ident()
        for name in TURNS:
            setattr(turns, name, self._turn(name, getattr(turns, name)))
        for kind, method in ((RayEngines, "_each"), (RayTrainer, "_call")):
            setattr(kind, method, self._call(kind.__name__.removeprefix("Ray").lower(), getattr(kind, method)))
        train, push = TrainerCalls.train, TrainerCalls.push_weights

        def trains(trainer: Any, *arguments: Any) -> Any:
            self.trained = arguments
            return train(trainer, *arguments)

        def pushes(trainer: Any, *arguments: Any) -> Any:
            done = push(trainer, *arguments)
            self.pushes.append(dict(done))
            return done

        for method, call in (("train", trains), ("push_weights", pushes)):
            setattr(TrainerCalls, method, call)

    def _turn(self, name: str, turn: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(turn)
        def measured(run: Any, *arguments: Any) -> None:
            self._owner = threading.get_ident()
            row: dict[str, Any] = {"turn": name, "start": time.perf_counter(), "calls": []}
            self._open = row
            try:
                turn(run, *arguments)
            finally:
                self._open = None
            row["end"] = time.perf_counter()
            row["seconds"] = round(row["end"] - row["start"], 4)
            moves = any(call["what"] in ("offload", "onload") for call in row["calls"])
            if moves and (trainer := run.known_trainers.get("actor")) is not None:
                row["moved"] = {key: round(value, 4) for key, value in trainer.status().get("moved", {}).items()}
            self.turns.append(row)
            inside = "  ".join(f"{call['who']} {call['what']} {call['ms']:.0f}" for call in row["calls"])
            print(f"  turn {name:10} {1e3 * row['seconds']:7.0f} ms   {inside}", flush=True)

        return measured

    def _call(self, who: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def measured(port: Any, method: str, *arguments: Any, **more: Any) -> Any:
            start = time.perf_counter()
            answer = call(port, method, *arguments, **more)
            parts = " ".join(arguments[0]) if who == "engines" and arguments else ""
            row = {"who": who, "what": f"{method} {parts}".strip(), "ms": round(1e3 * (time.perf_counter() - start), 1)}
            if who == "engines" and isinstance(answer, list):
                inside = [one for one in answer if isinstance(one, dict)]
                row["inside"] = [{name: round(1e3 * seconds, 1) for name, seconds in one.items()} for one in inside]
            if self._open is not None and threading.get_ident() == self._owner:
                self._open["calls"].append(row)
            elif who == "engines" and method in ("release", "resume"):
                self.beside.append(row)
            return answer

        return measured

    def cycles(self) -> Iterator[list[dict[str, Any]]]:
        """The turns from the end of a step's generation until the next step generates; whole ones only."""
        ends = [number for number, row in enumerate(self.turns) if row["turn"] == "generated"]
        for start, end in itertools.pairwise(ends):
            yield [row for row in self.turns[start:end] if row["turn"] in SWITCH]


def again(trainer: Any, arguments: Sequence[Any], times: int) -> list[dict[str, Any]]:
    """Train on the batch of the last update again, once in place and once behind a way out and back, several times.

    Args:
        trainer: at the version that ``arguments`` made.
        arguments: of ``TrainerPort.train``: base, target, batch, store, label.

    Returns:
        For each: ``moved``, whether it had been away, and seconds of the ways and of the training.
    """
    _, version, batch, url, label = arguments
    rows = []
    for number in range(2 * times + 1):
        moves = number > 0 and number % 2 == 0  # the very first one makes ready
        start = time.perf_counter()
        out = trainer.offload() if moves else 0
        left = time.perf_counter()
        trainer.onload()
        back = time.perf_counter()
        done = trainer.train(version + number, version + number + 1, batch, url, f"{label}-again{number}")
        end = time.perf_counter()
        row = {"moved": moves, "bytes": out, "leave": left - start, "come_back": back - left, "train": end - back}
        phases = {name: round(seconds, 4) for name, seconds in dict(done.get("seconds", {})).items()}
        rows.append({**{key: round(value, 4) for key, value in row.items()}, "phases": phases})
        print(f"  again {'behind a way out and back' if moves else 'in place':25} {rows[-1]}", flush=True)
        rows[-1]["told"] = dict(trainer.status().get("moved", {}))
    return rows[1:]


def table(watch: Watch, repeated: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]) -> list[list[str]]:
    """What was seen: rows of what, value and goal."""
    cycles = list(watch.cycles())
    steady = cycles[1:] if len(cycles) > 2 else cycles  # in the first one the optimiser's state is made
    rows = [["whole turns of a step", f"{len(cycles)}, of which {len(steady)} count", ""]]
    for name in SWITCH:
        spent = [sum(row["seconds"] for row in cycle if row["turn"] == name) for cycle in steady]
        if spent and max(spent) > 0.0005:
            rows.append([f"turn {name}, s a step (median; largest)", _middle(spent), ""])
    sums = [sum(row["seconds"] for row in cycle) for cycle in steady]
    in_place = [row["train"] for row in repeated if not row["moved"]]
    moved = [row["train"] for row in repeated if row["moved"]]
    longer = statistics.median(moved) - statistics.median(in_place) if moved and in_place else 0.0
    if in_place and moved:
        rows.append(["training on one batch in place; behind a way out and back, s", _pair(in_place, moved), ""])
    if sums:
        rows.append(["the turns of a step together, s (median; largest)", _middle(sums), ""])
        whole = statistics.median(sums) + max(longer, 0.0)
        rows.append(["switch beyond training: turns and what training takes longer, s", f"{whole:.3f}", "< 0.5"])
    if cycles:
        rows.append(["the turns of the first step, s", f"{sum(row['seconds'] for row in cycles[0]):.3f}", ""])
    rows += _engines(watch) + _copies(watch, repeated) + _memory(watch)
    syncs = [float(one["seconds"]) for one in watch.pushes if one.get("buckets")]
    if syncs:
        size = max(one["bytes"] for one in watch.pushes)
        rows.append(["push of weights, s (median; largest)", f"{_middle(syncs)}, {size / 1e9:.2f} GB", ""])
    rows.append(["difference of log-probs, engine and trainer (largest mean)", f"{worst_difference(steps):.4f}", ""])
    return rows


def worst_difference(steps: Sequence[dict[str, Any]]) -> float:
    """Largest mean difference of log-probabilities between engine and trainer; no number where one is none."""
    found = [step["metrics"].get("train_rollout_logprob_abs_diff") for step in steps]
    return max(map(float, found)) if all(isinstance(one, float) for one in found) else math.nan


def _engines(watch: Watch) -> list[list[str]]:
    """Milliseconds of each call to an engine's server, by what was wanted of it."""
    calls = [(call, "") for row in watch.turns for call in row["calls"] if call["who"] == "engines"]
    calls += [(call, ", beside the scoring") for call in watch.beside]
    spent: dict[str, dict[str, list[float]]] = {}
    for call, where in calls:
        for engine in call.get("inside", ()):
            for name, milliseconds in engine.items():
                spent.setdefault(f"{call['what']}{where}", {}).setdefault(name, []).append(milliseconds)
    rows = []
    for what, inner in sorted(spent.items()):
        shown = ", ".join(f"{name} {statistics.median(of):.0f}" for name, of in inner.items())
        rows.append([f"engine: {what}, ms (median)", shown, ""])
    return rows


def _copies(watch: Watch, repeated: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    told = [row["moved"] for row in watch.turns if row.get("moved")] + [row["told"] for row in repeated if row["moved"]]
    for way, text in (("out", "to the host"), ("back", "to the device, the optimiser's state")):
        rates = [one[f"{way}_bytes"] / one[way] / 1e9 for one in told if one.get(way)]
        if rates:
            size = max(one[f"{way}_bytes"] for one in told) / 1e9
            rows.append([f"trainer {text}, GB/s beside other work (median)", f"{statistics.median(rates):.1f}", ""])
            rows.append([f"trainer {text}, GB", f"{size:.2f}", ""])
    for key, text in (("wait", "waits for its copies"), ("free", "frees"), ("take", "takes")):
        if spent := [one[key] for one in told if key in one]:
            rows.append([f"trainer {text}, s (median; largest)", _middle(spent), ""])
    return rows


def _memory(watch: Watch) -> list[list[str]]:
    """Of the device in use, by the turn behind which it was looked at."""
    rows = []
    ends = [*(row["start"] for row in watch.turns[1:]), float("inf")]
    for name, text in (("generate", "while it generates"), ("train", "while it trains"), ("hand_over", "at the push")):
        seen: list[int] = []
        for row, end in zip(watch.turns, ends, strict=True):
            if row["turn"] == name:
                seen += watch.memory.between(row["end"], end)
        if seen:
            rows.append([f"memory in use {text}, GB (least; most)", f"{_gb(min(seen))}; {_gb(max(seen))}", ""])
    lowest = [low for row in watch.turns if row["turn"] == "train" and (low := _lowest(watch, row)) is not None]
    if lowest:
        text = "memory in use when engines have released and the trainer is there, GB"
        rows.append([text, _gb(min(lowest)), ""])
    return rows


def _lowest(watch: Watch, row: dict[str, Any]) -> int | None:
    return min(watch.memory.between(row["start"], row["end"] + 1.0), default=None)


def _gb(mib: int) -> str:
    return f"{mib * 2**20 / 1e9:.1f}"


def _middle(spent: Sequence[float]) -> str:
    return f"{statistics.median(spent):.3f}; {max(spent):.3f}"


def _pair(first: Sequence[float], second: Sequence[float]) -> str:
    return f"{statistics.median(first):.3f}; {statistics.median(second):.3f}"
