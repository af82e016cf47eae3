"""What a run will do, before it does anything: devices, batches, steps, tasks, memory, and what a change runs again.

Guarantee: arithmetic over a configuration that ``examine`` accepts; what decides a size, a stage's identity or whether
an option may change is asked where the run itself asks it, and what only the prompts can tell is None. Files are read
by ``count_rows`` alone.
"""

import math
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from relax_core.config import derived
from relax_core.config.devices import devices_in_all
from relax_core.config.files import local_path
from relax_core.config.options import OPTIONS, find_option
from relax_core.config.plan_memory import Device, MemoryPlan, engine_plan, hand_over_plan, judge_plan, trainer_plan
from relax_core.config.plan_roles import RolePlan, judges, roles
from relax_core.config.plan_text import plan_lines
from relax_core.config.run_file import may_change
from relax_core.config.sections import RelaxConfig
from relax_core.config.stages import STAGES, has_stage, stage_options
from relax_core.training.shape import ModelShape

TASKS = ("ensure_engines", "evaluate_before", "generate", "reward", "forward", "advantage", "train_critic", "train",
         "weight_sync", "checkpoint", "evaluate", "commit")  # fmt: skip
"""Tasks of a rollout step, in the order in which the flow has them."""
SHOWN = 4
"""Steps of an ``Occasions`` that are listed."""
_SLICE = re.compile(r"@\[(-?\d+)?:(-?\d+)?\]$")


@dataclass(frozen=True)
class BatchPlan:
    """From prompts to micro-batches.

    Attributes:
        rows: samples of a rollout step.
        updates: optimiser steps of a rollout step; ``update_rows`` samples each, ``rank_rows`` of them on a
            data-parallel rank.
        micro_rows, micro_tokens: what bounds a micro-batch: samples, or tokens (the other one is None).
        micro_batches: fewest and most of a rank in an optimiser step.
        longest: tokens that a sample can have; None where the options do not say.
    """

    prompts: int
    samples_per_prompt: int
    rows: int
    updates: int
    update_rows: int
    rank_rows: int
    micro_rows: int | None
    micro_tokens: int | None
    micro_batches: tuple[int, int]
    longest: int | None


@dataclass(frozen=True)
class Occasions:
    """After which rollout steps, counted from 0, something happens.

    Attributes:
        before: also before the first step.
        every: steps between two times; None: not regularly.
        steps: the first of them, all if there are at most ``SHOWN``.
        last: the last one; None when there is none or the length of the run is not known.
        count: of all times, that before the first step included; None when the length of the run is not known.
    """

    before: bool
    every: int | None
    steps: tuple[int, ...]
    last: int | None
    count: int | None


@dataclass(frozen=True)
class ChangePlan:
    """What runs again, in a step that is not finished, when an option changes.

    Attributes:
        stage: the first stage whose output the options change.
        options: flags that may change; ``fixed``: those that a run directory with steps refuses to change.
        again, kept: stages that run again, and those whose output is found again.
    """

    stage: str
    options: tuple[str, ...]
    fixed: tuple[str, ...]
    again: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes:
        devices: of all roles together; those that roles share count once.
        steps, optimizer_steps: of the whole run; None when --num-epoch decides and the rows are not known.
        at_most: they may be fewer: an epoch leaves out prompts that are too long.
        tasks: of a rollout step, each with when it runs; an empty text is always.
        memory: empty when the model, or the length of a sample, is not known.
        device: what ``memory`` was compared with; None: not known.
    """

    roles: tuple[RolePlan, ...]
    devices: int
    batch: BatchPlan
    steps: int | None
    at_most: bool
    optimizer_steps: int | None
    evaluations: Occasions
    checkpoints: Occasions
    tasks: tuple[tuple[str, str], ...]
    memory: tuple[MemoryPlan, ...]
    device: Device | None
    changes: tuple[ChangePlan, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    def lines(self) -> list[str]:
        """As lines of text."""
        return plan_lines(self)


def plan(
    config: RelaxConfig,
    model: ModelShape | None,
    rows: int | None = None,
    *,
    judge: ModelShape | None = None,
    device: Device | None = None,
) -> Plan:
    """What a run will do.

    Args:
        config: resolved and without errors.
        model: the shape of its model; None: memory is left out.
        rows: of the training prompts (see ``count_rows``), which --num-epoch needs; None: not known.
        judge: the shape of the judge's model; None: there is none, or its memory is left out.
        device: memory of each; None: not known.
    """
    batch, rollout = _batch(config), config.rollout
    steps, epoch, at_most = rollout.num_rollout, None, False
    if steps is None and rollout.num_epoch is not None and rows is not None:
        epoch, at_most = derived.epoch_steps(config, rows), True
        steps = epoch * rollout.num_epoch
    every = config.eval.eval_interval if config.eval.eval_datasets else None
    before = every is not None and not config.eval.skip_eval_before_train
    when = {"evaluate_before": "before the first step", "checkpoint": "when due", "evaluate": "when due"}
    absent = {
        "evaluate_before": not before,
        "evaluate": every is None,
        **{stage: not has_stage(config, stage) for stage in ("forward", "train_critic")},
    }
    return Plan(
        roles=tuple(roles(config)),
        devices=devices_in_all(config),
        batch=batch,
        steps=steps,
        at_most=at_most,
        optimizer_steps=None if steps is None else steps * batch.updates,
        evaluations=_occasions(every, steps, before=before),
        checkpoints=_occasions(
            1 if config.checkpoint.rotate_ckpt else config.checkpoint.save_interval, steps, and_last=True, epoch=epoch
        ),
        tasks=tuple((name, when.get(name, "")) for name in TASKS if not absent.get(name)),
        memory=_memory(config, model, judge, batch, device),
        device=device,
        changes=tuple(_changes(config)),
    )


def count_rows(path: str) -> int | None:
    """Rows of a local prompt file, or of its slice `@[a:b]`; None when it is not local or cannot be read.

    Parquet is counted by its metadata, JSONL (which may be compressed) by its lines that are not blank. They are not
    parsed: a line that is no JSON object counts.
    """
    file, match = local_path(path), _SLICE.search(path)
    if file is None or ("@[" in path and path.endswith("]") and match is None):
        return None
    try:
        total = _count(str(file))
    except (OSError, ValueError, EOFError, ImportError, zlib.error):  # pyarrow's errors are OSError or ValueError
        return None
    bounds = [int(bound) if bound else None for bound in match.groups()] if match else []
    return len(range(total)[slice(*bounds)]) if bounds else total


def _count(path: str) -> int:
    import fsspec  # here, and pyarrow below: only prompts need them

    with fsspec.open(path, "rb", compression="infer") as file:
        if file.read(4) == b"PAR1":
            import pyarrow.parquet

            return int(pyarrow.parquet.ParquetFile(file).metadata.num_rows)
        file.seek(0)
        return sum(1 for line in file if line.removeprefix(b"\xef\xbb\xbf").strip())


def _batch(config: RelaxConfig) -> BatchPlan:
    options, rows, longest = config.batch, derived.samples_per_step(config), derived.longest_sample(config)
    update_rows = options.global_batch_size or rows
    rank_rows = -(-update_rows // max(derived.data_parallel_size(config), 1))
    tokens = options.max_tokens_per_gpu if options.use_dynamic_batch_size else None
    # First fit opens another micro-batch only when a sample fits in none: all but one then hold this many, or more.
    full = options.micro_batch_size if tokens is None else max(tokens // longest, 1) if longest else 1
    most = -(-rank_rows // full)
    return BatchPlan(
        prompts=config.rollout.rollout_batch_size or 0,
        samples_per_prompt=config.rollout.n_samples_per_prompt,
        rows=rows,
        updates=options.num_steps_per_rollout or 1,
        update_rows=update_rows,
        rank_rows=rank_rows,
        micro_rows=options.micro_batch_size if tokens is None else None,
        micro_tokens=tokens,
        micro_batches=(most if tokens is None else min(most, 1), most),
        longest=longest,
    )


def _occasions(
    every: int | None, steps: int | None, *, before: bool = False, and_last: bool = False, epoch: int | None = None
) -> Occasions:
    """After each step s where ``every`` divides s + 1.

    Args:
        and_last: also after the last step of the run.
        epoch: steps of an epoch: also after the last step of each. Counts only with ``every``.
    """
    if steps is None:
        return Occasions(before, every, (), None, None if every or and_last else 0)
    periods = [period for period in (every, epoch) if period] if every else []
    # a run may have more steps than can be listed
    regular = sum(steps // period for period in periods) - (steps // math.lcm(*periods) if len(periods) == 2 else 0)
    first = sorted({n * period - 1 for period in periods for n in range(1, SHOWN + 1) if n * period <= steps})
    last = max((steps // period * period - 1 for period in periods), default=-1)
    if and_last and steps and last != steps - 1:
        regular, last, first = regular + 1, steps - 1, [*first, steps - 1]
    shown = tuple(first[:SHOWN] if regular > SHOWN else first)
    return Occasions(before, every, shown, last if last >= 0 else None, regular + before)


def _memory(
    config: RelaxConfig,
    model: ModelShape | None,
    judge: ModelShape | None,
    batch: BatchPlan,
    device: Device | None,
) -> tuple[MemoryPlan, ...]:
    if model is None or batch.longest is None:
        return ()
    device_gib = None if device is None else device.free
    tokens = batch.micro_tokens or min(batch.micro_rows or 1, batch.rank_rows) * batch.longest
    requests = -(-batch.rows // max(derived.num_engines(config), 1))
    critic = [trainer_plan(config, model, tokens, device, "critic")] if derived.needs_critic(config) else []
    questions = -(-batch.rows // max(judges(config), 1))
    actor = trainer_plan(config, model, tokens, device)
    engine = engine_plan(config, model, requests, batch.longest, device_gib)
    return (
        actor,
        *critic,
        engine,
        *([hand_over_plan(config, actor, engine, device_gib)] if config.cluster.colocate else []),
        *([judge_plan(config, judge, questions, device_gib)] if judge is not None else []),
    )


def _changes(config: RelaxConfig) -> list[ChangePlan]:
    """Options by the first stage that they change: what follows that stage runs again too."""
    stages = tuple(stage for stage in STAGES if has_stage(config, stage))
    seen, changes = set[str](), []
    for place, stage in enumerate(stages):
        decide = stage_options(config, stage).keys() - seen
        seen |= decide
        ordered = [name for name in OPTIONS if name in decide] + sorted(decide - OPTIONS.keys())
        own = [option for name in ordered if (option := find_option(name))]
        changes.append(
            ChangePlan(
                stage=stage,
                options=tuple(option.flag for option in own if may_change(option)),
                fixed=tuple(option.flag for option in own if not may_change(option)),
                again=stages[place:],
                kept=stages[:place],
            )
        )
    return changes
