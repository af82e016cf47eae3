"""The generation of a step that begins more groups than it needs, and what it leaves for the next one.

Guarantee: every prompt that the run has drawn is in one place: in a rollout, in the newest buffer, or among the groups
that a filter left out, which are counted. What a generation that was cut off had finished is not generated again, and
the groups that it had begun are begun again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from data.store import TableRef
from relax_core import aio
from relax_core.config.sections import RelaxConfig
from relax_core.functions import UserFunction
from relax_core.rollout.buffer import (
    Group,
    buffer_table,
    carried_groups,
    finished_rows,
    produced,
    stopped_rows,
    trained_rows,
    unbegun,
)
from relax_core.rollout.collect import Collector, Kept, MakeTable
from relax_core.rollout.filters import buffer_filter, choose, dynamic_filter
from relax_core.rollout.generate import Generation, Report
from relax_core.rollout.generated import Generated
from relax_core.rollout.groups import Selection, select
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.sample import Status, samples_of
from relax_core.rollout.scores import GroupScores, unscored
from relax_core.rollout.source import NewGroups, Source
from relax_core.run.group_stream import GroupStream
from relax_core.run.session import RunSession

TABLE = "buffer"
"""Name of the table beside ``rollout``."""

_MANY = 10
"""A filter that has left out so many times the groups of a step is told of."""


def buffer_before(run: RunSession, step: int) -> TableRef | None:
    """What the step before has left; None: nothing."""
    if step == 0:
        return None
    record = run.records.last(step - 1, "generate")
    if record is not None:
        return record.tables.get(TABLE)
    reference = (run.store.read_manifest(step - 1) or {}).get("tables", {}).get(f"generate/{TABLE}")
    return None if reference is None else TableRef.from_json(reference)


Opened: TypeAlias = Callable[[], AbstractAsyncContextManager[Generation]]
"""Opens the way to the engines."""

Written: TypeAlias = Callable[[pa.Table, pa.Table | None], dict[str, TableRef]]
"""Writes the rollout and the buffer, if there is one."""


def selected(
    run: RunSession, step: int, make: MakeTable, kept: Kept, opened: Opened, write: Written
) -> tuple[dict[str, TableRef], dict[str, Any]]:
    """Generate a step.

    Args:
        make: rows of results, see ``Collector``.
        kept: of an earlier driver at the same generation.

    Returns:
        What ``write`` gives, and ``cursor`` (behind the prompts that were drawn) and ``metrics`` (see ``_tables``).

    Raises:
        UserError: the engines, a reward or a filter failed; what is finished is kept.
    """
    config, known = run.config, kept.read(None)
    reference, finished = buffer_before(run, step), frozenset(known["sample_id"].to_pylist())
    buffer = [] if reference is None else carried_groups(run.store.read_table(reference))
    carried = finished_rows(buffer)
    again = pc.is_in(carried["sample_id"], known["sample_id"].combine_chunks())
    before = pa.concat_tables([known, carried.filter(pc.invert(again))])
    new = NewGroups(run.prompts, run.cursor(step), step, config)
    source = Source(buffer, new, partial(_chosen, buffer_filter(config), config, step), partial(_known, finished))
    numbers = [number for number in map(new.number, known["group_id"].to_pylist()) if number is not None]
    if known.num_rows:
        run.progress.note(f"{known.num_rows} samples were finished before: they are not generated again")
        cause = "an earlier driver ended while it generated"
        run.events.add("samples_reused", step, "generate", cause, samples=known.num_rows)
    function = dynamic_filter(config)
    scoring = GroupStream(run, step, needed=function is not None)
    scores = GroupScores(scoring.add, config, function)
    scoring.tell(scores)
    scores.arrived(before)
    rows = Collector(make, kept, before, scores.arrived)
    try:
        found = aio.run(_select(run, source, opened, scores, function is not None, rows, max(numbers, default=-1)))
        rollout, rest, metrics = _tables(run, step, found, source, rows, make, finished)
        tables = write(rollout, rest)
    except BaseException:
        rows.close()
        run.end_stream(step)
        raise
    finally:
        scoring.end()
    return tables, {"cursor": new.cursor.to_json(), "metrics": metrics}


async def _select(
    run: RunSession,
    source: Source,
    opened: Opened,
    scores: GroupScores,
    filtered: bool,
    rows: Collector,
    last_known: int,
) -> Selection:
    options = run.config.rollout
    need = int(options.rollout_batch_size or 1)
    report = Report(0, run.progress.update)
    told = [_MANY * need]

    def more(found: Selection) -> None:
        if len(found.dropped) >= told[0]:
            told[0] *= 2
            run.progress.note(f"the filter has left out {len(found.dropped)} groups and kept {len(found.accepted)}")

    def begun(group: Group) -> None:
        report.more(len(group.requests) - len(group.finished))

    def finished(result: Generated) -> None:
        rows.add(result)
        report.finished(result)

    def accepted(group: Group) -> None:
        scores.want(group.sample_ids)

    async with opened() as sampler:
        found = await select(
            source,
            sampler,
            need,
            int(options.over_sampling_batch_size or need),
            at_least=last_known + 1,
            judge=scores.verdict if filtered else None,
            spare=partial(_protected, run.config),
            finished=finished,
            accepted=accepted,
            begun=begun,
            refilled=more,
        )
    report.tell()
    return found


def _protected(config: RelaxConfig, request: SampleRequest) -> bool:
    """Whether a sample was stopped so often that it is left to finish."""
    options = config.rollout
    limit = options.partial_rollout_max_aborted_count
    count = 0 if request.progress is None else request.progress.abort_count
    return options.partial_rollout and limit is not None and count >= limit


def _known(finished: frozenset[str], group: Group) -> Group:
    """The group, with the samples that an earlier driver had finished."""
    return replace(group, finished=group.finished | finished.intersection(group.sample_ids))


def _chosen(
    function: UserFunction | None, config: RelaxConfig, step: int, buffer: Mapping[str, Group], count: int
) -> tuple[list[str], list[str]]:
    if function is None:
        return list(buffer)[:count], []
    samples = {}
    for name, group in buffer.items():
        assert group.rows is not None  # it comes from the buffer
        samples[name] = samples_of(group.rows, unscored(group.rows))
    return choose(function, config, step, samples, count)


def _tables(
    run: RunSession,
    step: int,
    found: Selection,
    source: Source,
    rows: Collector,
    make: MakeTable,
    known: frozenset[str],
) -> tuple[pa.Table, pa.Table | None, dict[str, float]]:
    """The rows of the step, those for the next one, and metrics: groups that were begun, that came from the buffer
    and that went there; ``partial_samples``, trained on and begun by an earlier step; ``aborted``, samples that this
    step stopped; ``lost_tokens`` of such without --partial-rollout; groups that the filter left out, by its reason."""
    options = run.config.rollout
    stopped = [group for group, _ in found.stopped]
    parts = {"accepted": found.accepted, "surplus": found.surplus, "stopped": stopped}
    ids = {name: [one for group in groups for one in group.sample_ids] for name, groups in parts.items()}
    left = [one for group in source.left for one in group.sample_ids]
    ids["left"] = [one for one in left if one in known]  # that an earlier driver had finished
    everything, tables, start = rows.table([one for some in ids.values() for one in some]), {}, 0
    for name, some in ids.items():
        tables[name], start = everything.slice(start, len(some)), start + len(some)
    lengths = produced(source.carried)
    ended = tables["stopped"].filter(pc.equal(tables["stopped"]["status"], Status.ABORTED))
    if options.partial_rollout:
        again = stopped_rows(tables["stopped"], step)
    else:
        again = make([unbegun(request) for group in stopped for request in group.requests])
    carried = [tables["surplus"], again, tables["left"]]
    carried += [_without(group.rows, known) for group in source.left if group.rows is not None]
    buffer = buffer_table(carried)
    masked = lengths if options.mask_offpolicy_in_partial_rollout else {}
    rollout = trained_rows(tables["accepted"], step, masked)
    lost = 0 if options.partial_rollout else sum(tables["stopped"]["response_length"].to_pylist())
    _tell(run, step, found, source, lost, ended.num_rows)
    parts_begun = [*found.accepted, *found.surplus, *stopped, *(group for group, _ in found.dropped)]
    metrics = {
        "rollout/groups_begun": float(len(parts_begun)),
        "rollout/groups_from_buffer": float(len(source.carried)),
        "rollout/groups_to_buffer": float(len(found.surplus) + len(stopped) + len(source.left)),
        "rollout/partial_samples": float(sum(bool(lengths.get(one)) for one in ids["accepted"])),
        "rollout/aborted": float(ended.num_rows),
        "rollout/lost_tokens": float(lost),
        **_drops(found),
    }
    return rollout, buffer, metrics


def _without(rows: pa.Table, ids: frozenset[str]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["sample_id"], pa.array(sorted(ids), pa.string()))))


def _drops(found: Selection) -> dict[str, float]:
    """How many groups the filter left out, by its reasons: slime's names."""
    counts = Counter(reason for _, reason in found.dropped if reason)
    return {f"rollout/dynamic_filter/drop_{reason}": float(count) for reason, count in sorted(counts.items())}


def _tell(run: RunSession, step: int, found: Selection, source: Source, lost: int, samples: int) -> None:
    if found.dropped:
        reasons = Counter(reason or "no reason" for _, reason in found.dropped)
        text = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        run.progress.note(f"the filter left out {len(found.dropped)} groups: {text}")
        run.events.add("groups_dropped", step, "generate", text, groups=_names([group for group, _ in found.dropped]))
    if source.discarded:
        run.progress.note(f"--buffer-filter-path has taken {len(source.discarded)} groups out of the buffer")
        cause = "--buffer-filter-path"
        run.events.add("groups_dropped", step, "generate", cause, groups=_names(source.discarded))
    if lost:
        run.progress.note(
            f"{lost} tokens of {samples} unfinished responses are given up, and their prompts come again"
            " (--partial-rollout goes on with them)"
        )
    counts = {"finished": len(found.surplus), "stopped": len(found.stopped), "left": len(source.left)}
    if any(counts.values()):
        run.events.add("groups_carried", step, "generate", "more were begun than the step needs", **counts)


def _names(groups: Sequence[Group]) -> list[str]:
    return [group.group_id for group in groups]
