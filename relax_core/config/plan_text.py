"""The plan of a run as lines of text.

Guarantee: every number is the plan's; what is not known is said, not left out. Reads nothing but the plan.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relax_core.config.plan import BatchPlan, ChangePlan, Occasions, Plan
    from relax_core.config.plan_memory import MemoryPlan

_NAMED = 3
"""Options that a line names before it counts the others."""


def plan_lines(plan: Plan) -> list[str]:
    """The text, of at most 120 characters a line: devices, batch, run, tasks, memory and changes, a heading each."""
    tasks = ", ".join(f"{name} ({when})" if when else name for name, when in plan.tasks)
    free = "" if plan.device is None else f"; the fullest GPU of this machine has {plan.device.free:.1f} GiB free"
    sections = {
        f"Devices, {plan.devices} in all": [
            f"{one.role:9} {_count(one.devices, 'device')}: {one.form}" for one in plan.roles
        ],
        "Batch": _batch(plan.batch),
        "Run, steps counted from 0": _run(plan),
        "Tasks of a step": [tasks],
        f"Memory of a device, estimated{free}": [line for memory in plan.memory for line in _memory(memory)]
        or ["not known: it needs the model's config.json and a bound of the samples' length"],
        "What another value does to a run that has begun": [line for one in plan.changes for line in _changes(one)],
    }
    return [
        line for title, texts in sections.items() for line in [title, *(part for text in texts for part in _wrap(text))]
    ]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, 98, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )


def _batch(batch: BatchPlan) -> Iterator[str]:
    samples = _count(batch.samples_per_prompt, "sample")
    yield f"{_count(batch.prompts, 'prompt')} x {samples} = {_count(batch.rows, 'sample')} a rollout step"
    updates, rows = _count(batch.updates, "optimiser step"), _count(batch.update_rows, "sample")
    yield f"{updates} of {rows}, {batch.rank_rows} of them on a data-parallel rank"
    fewest, most = batch.micro_batches
    if batch.micro_tokens is None:
        size, count = _count(batch.micro_rows or 1, "sample"), _count(most, "micro-batch")
        yield f"{count} of {size} on a rank in an optimiser step"
    else:
        count = f"{fewest} to {most}" if fewest < most else f"{most}"
        yield f"{count} micro-batches of at most {batch.micro_tokens:,} tokens on a rank in an optimiser step"
    if batch.longest is None:
        yield "a prompt and its response are not bounded by the options"
    else:
        yield f"a prompt and its response have at most {batch.longest:,} tokens"


def _run(plan: Plan) -> Iterator[str]:
    if plan.steps is None:
        yield "number of steps: known when the prompts are read (--num-epoch)"
    else:
        steps, updates = _count(plan.steps, "rollout step"), _count(plan.optimizer_steps or 0, "optimiser step")
        yield f"{steps}, {updates}{' (fewer if prompts are too long)' if plan.at_most else ''}"
    yield f"evaluation {_occasions(plan.evaluations)}"
    yield f"checkpoint {_occasions(plan.checkpoints)}"


def _occasions(occasions: Occasions) -> str:
    if occasions.count == 0:
        return "never"
    times = ["before training"] if occasions.before else []
    if occasions.count is None:
        times.append(f"after every {_count(occasions.every, 'step')}" if occasions.every else "after the last step")
        return " and ".join(times)
    steps = [str(step) for step in occasions.steps]
    if occasions.last is not None and occasions.last not in occasions.steps:
        steps = [*steps[:2], "...", str(occasions.last)]
    if steps:
        times.append(f"after step{'s' * (len(steps) > 1)} {', '.join(steps)}")
    return f"{' and '.join(times)}: {occasions.count} in all"


def _memory(memory: MemoryPlan) -> Iterator[str]:
    yield f"{memory.role}: {'; '.join(memory.notes)}"
    for name, size in memory.parts.items():
        if size:
            yield f"  {name:22} {_size(size):>10}"
    fits = {None: "", True: ": fits", False: ": does not fit"}[memory.fits]
    yield f"  {'at the peak':22} {_size(memory.peak):>10}{fits}"


def _changes(change: ChangePlan) -> Iterator[str]:
    if change.options:
        runs = " and ".join([change.again[0], "what follows"] if len(change.again) > 1 else change.again)
        runs += " run again" if len(change.again) > 1 else " runs again"
        kept = f"; {', '.join(change.kept)} {'are' if len(change.kept) > 1 else 'is'} kept" if change.kept else ""
        yield f"change {_flags(change.options)}: {runs}{kept}"
    if change.fixed:
        yield f"change {_flags(change.fixed)}: refused, since {change.stage} was made with it; take another --run-dir"


def _flags(flags: Sequence[str]) -> str:
    if len(flags) > _NAMED + 1:
        flags = [*flags[:_NAMED], f"{len(flags) - _NAMED} others"]
    return " or ".join([", ".join(flags[:-1]), flags[-1]]) if len(flags) > 1 else flags[0]


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def _count(count: int, what: str) -> str:
    plural = what if count == 1 else f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count:,} {plural}"
