"""Progress of a run on the terminal.

Guarantee: on a terminal one line moves and finished things stay above it; elsewhere (a file, CI) each event is one
plain line. Nothing here decides anything, and any thread may call it.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text

from relax_core import signs
from relax_core.tracking.report import is_score
from relax_core.tracking.summary import closing_summary
from relax_core.waiting import Wait, told

PLAIN_INTERVAL_S = 10.0
"""Seconds between two lines about one unfinished stage where there is no terminal."""

SHORT_STAGE_S = 1.0
"""A stage without counts that is over sooner gets no line of its own; the step's line has its seconds."""


REWARD = "reward/mean"


@dataclass
class _Stage:
    step: int
    name: str
    wait: Wait
    started: float = field(default_factory=time.monotonic)
    counts: tuple[int, int, int] | None = None  # finished, all, tokens
    thread: int = field(default_factory=threading.get_ident)
    told: float = field(default_factory=time.monotonic)


class Progress:
    """Shows stages, steps and notes.

    Args:
        console: where to; standard output by default.

    Attributes:
        listener: is told each note, reused stage and finished step too; by the thread that it came from.
    """

    listener: Callable[[str], None] | None = None

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        self._stages: list[_Stage] = []
        self._lock = threading.RLock()
        self._run, self._total = "", 0
        self._seen: dict[str, list[tuple[int, float]]] = {}  # of the reward and of each score: first and newest
        self._last_step: int | None = None
        self._steps_done = 0
        self._rates: dict[int, str] = {}

    def begin(
        self, run: str, total_steps: int, first_step: int = 0, earlier: Iterable[Mapping[str, float]] = ()
    ) -> None:
        """Say which run this is, how many steps it has and where it starts.

        Args:
            run: the run's folder or URL.
            total_steps: steps of the whole run.
            first_step: first step that is not finished.
            earlier: lines of ``metrics.jsonl``, of the steps before.
        """
        self._run, self._total = run, total_steps
        for line in earlier:
            self._remember(int(line["step"]), line)
        self._last_step = first_step - 1 if first_step else None
        if first_step >= total_steps:
            self.note(f"run {run} is complete: {total_steps} steps")
        elif first_step:
            self.note(f"run {run} goes on with step {first_step + 1} of {total_steps}")
        else:
            self.note(f"run {run}: {total_steps} steps")

    @contextmanager
    def stage(self, step: int, name: str) -> Iterator[None]:
        """Show a stage while the body runs."""
        # Not a wait that is allowed by itself: what a stage waits for tells so.
        with told(f"the end of {name}", self._step_text(step), allowed=False) as wait:
            yield from self._stage(_Stage(step, name, wait))

    def _stage(self, stage: _Stage) -> Iterator[None]:
        with self._lock:
            self._stages.append(stage)
            self._show()
        try:
            yield
        except asyncio.CancelledError:  # another step has failed, or somebody has stopped the run
            self._end(stage, "stopped")
            raise
        except BaseException as error:
            self._end(stage, f"ended by {type(error).__name__}")
            raise
        self._end(stage, "")

    def update(self, done: int, total: int, tokens: int) -> None:
        """Counts of the stage of this thread, or the one that started last: finished and all requests, response tokens
        so far."""
        signs.alive()
        with self._lock:
            if not self._stages:
                return
            own = [stage for stage in self._stages if stage.thread == threading.get_ident()]
            stage = (own or self._stages)[-1]
            stage.counts = (done, total, tokens)
            stage.wait.went_on()
            if self._console.is_terminal:
                self._show()
            elif time.monotonic() - stage.told >= PLAIN_INTERVAL_S:
                stage.told = time.monotonic()
                self._print(self._stage_text(stage))

    def reused(self, step: int, name: str) -> None:
        """Say that a stage was finished before."""
        self._tell(f"{self._step_text(step)}  {name}: finished before, reused")

    def note(self, text: str) -> None:
        """One line for the person watching."""
        self._tell(text)

    def step_done(
        self,
        step: int,
        metrics: Mapping[str, float],
        seconds_by_stage: Mapping[str, float],
        wall_seconds: float | None = None,
    ) -> None:
        """The line of a finished step: reward, response length, loss, distance to a teacher, what a critic says,
        tokens/s, seconds of each stage.

        Args:
            step: 0-based.
            metrics: ``reward/mean``, ``response_len/mean``, ``loss``, ``opd_reverse_kl``, ``critic/value_loss``,
                ``critic/explained_variance``, ``tokens/response``; what is missing is left out.
            seconds_by_stage: seconds of each stage, in order; what took less than 0.05 s is not shown.
            wall_seconds: of the whole step; by default the sum of the stages.
        """
        with self._lock:
            self._remember(step, metrics)
            self._last_step = step
            self._steps_done += 1
        parts = [self._step_text(step)]
        shown = (
            ("reward", "reward/mean", ".3f"),
            ("length", "response_len/mean", ".1f"),
            ("loss", "loss", ".4g"),
            ("KL to the teacher", "opd_reverse_kl", ".4g"),
            ("value loss", "critic/value_loss", ".4g"),
            ("explained variance", "critic/explained_variance", ".2f"),
        )
        parts += [f"{label} {metrics[key]:{form}}" for label, key, form in shown if key in metrics]
        if metrics.get("samples/scored") == 0:
            parts.append("no sample has a score")
        # of this process: what was finished before was not generated in these seconds
        known = self._rates.pop(step, "")
        if tokens := known or _rate(metrics.get("tokens/response", 0), seconds_by_stage.get("generate", 0.0)):
            parts.append(tokens)
        stages = ", ".join(f"{name} {s:.1f} s" for name, s in seconds_by_stage.items() if s >= 0.05)
        whole = sum(seconds_by_stage.values()) if wall_seconds is None else wall_seconds
        parts.append(f"{whole:.1f} s" + (f" ({stages})" if stages else ""))
        self._tell("  ".join(parts))

    def outcome(self) -> str:
        """Steps and reward so far, in a line."""
        parts = [] if self._last_step is None else [f"{self._last_step + 1} of {self._total} steps"]
        return ", ".join([*parts, *self._reward()])

    def _remember(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if (name == REWARD or is_score(name)) and isinstance(value, int | float) and math.isfinite(value):
                self._seen.setdefault(name, [])[1:] = [(step, value)]

    def _reward(self) -> list[str]:
        return [f"mean reward {_change(self._seen[REWARD])}"] if REWARD in self._seen else []

    def closing_text(self, board: str | None = None) -> str:
        """Summary of the run: where it is, how to look at it, how to go on. Printed too.

        Args:
            board: the folder of TensorBoard's events, if there is one.
        """
        done = f"{self._steps_done} step{'' if self._steps_done == 1 else 's'} done now"
        lines = [done + (f", {self._total} in all" if self._total else "")]
        lines += self._reward()
        lines += [f"{name} {_change(seen)}" for name, seen in sorted(self._seen.items()) if name != REWARD]
        text = closing_summary(self._run, steps=lines, last_step=self._last_step, board=board)
        self._print(text)
        return text

    def _end(self, stage: _Stage, failure: str) -> None:
        with self._lock:
            self._stages.remove(stage)
            self._show()
            if stage.name == "generate" and stage.counts is not None:
                self._rates[stage.step] = _rate(stage.counts[2], time.monotonic() - stage.started)
            quick = stage.counts is None and time.monotonic() - stage.started < SHORT_STAGE_S
            if failure or not quick:
                self._print("  ".join(filter(None, (self._stage_text(stage), failure))))

    def _show(self) -> None:
        """Draw the moving line, or take it away when no stage runs."""
        if not self._console.is_terminal:
            return
        if not self._stages:
            live, self._live = self._live, None
            if live is not None:
                live.stop()
            return
        if self._live is None:
            self._live = Live(console=self._console, transient=True, refresh_per_second=4, get_renderable=self._line)
            self._live.start()

    def _line(self) -> Text:
        # Called by rich's thread, which holds rich's lock: taking ours here could deadlock.
        text = "  |  ".join(map(self._stage_text, list(self._stages)))
        return Text(text, no_wrap=True, overflow="ellipsis")

    def _tell(self, text: str) -> None:
        self._print(text)
        if self.listener is not None:
            self.listener(text)

    def _print(self, text: str) -> None:
        # No wrapping where lines are read by programs; no markup anywhere, texts may hold brackets.
        self._console.print(text, markup=False, soft_wrap=True)

    def _step_text(self, step: int) -> str:
        if step < 0:
            return "before training"
        return f"step {step + 1}/{self._total}" if self._total else f"step {step + 1}"

    def _stage_text(self, stage: _Stage) -> str:
        seconds = time.monotonic() - stage.started
        parts = [self._step_text(stage.step), stage.name]
        if stage.counts is not None:
            done, total, tokens = stage.counts
            parts += [f"{done}/{total}", f"{tokens} tokens", _rate(tokens, seconds)]
        return "  ".join(filter(None, [*parts, f"{seconds:.1f} s"]))


def _change(seen: list[tuple[int, float]]) -> str:
    """From the first value to the newest, with their steps."""
    return " -> ".join(f"{value:.3f} (step {step + 1})" for step, value in seen)


def _rate(tokens: float, seconds: float) -> str:
    return f"{tokens / seconds:.0f} tokens/s" if tokens and seconds > 0 else ""
