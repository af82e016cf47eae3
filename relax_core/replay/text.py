"""Replays and comparisons of runs as text for people.

Guarantee: the first difference stands in a line of its own, with stage, sample and token and both values, and apart
from it what options that were set have changed; of long values the part is shown in which they differ; nothing is
listed without end.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relax_core.replay.columns import ABSENT
from relax_core.replay.compare import Comparison, Difference
from relax_core.replay.report import Report, StageReport
from relax_core.replay.runs import RunsDifference, StageSummary

SHOWN = 20
"""Samples, options and notes that are listed."""

MOST = 60
"""Characters of a value."""

_STATES = {
    "same": "same",
    "close": "same but for rounding",
    "differs": "DIFFERS",
    "new": "made",
    "recorded": "as recorded",
    "left out": "LEFT OUT",
}


def replay_lines(report: Report) -> Iterator[str]:
    """A replay."""
    yield f"{report.run}, step {report.step}"
    for change in report.changes[:SHOWN]:
        yield f"  with {change.flag} {change.new} (recorded with {change.old})"
    yield from _more(report.changes, "  ")
    yield ""
    width = max((len(stage.stage) for stage in report.stages), default=0)
    changed = bool(report.changes)
    for stage in report.stages:
        yield f"{stage.stage:{width}}  {_state(stage, report.is_changed(stage.stage))}"
    if changed:
        yield from _side_by_side(report)
    yield ""
    if report.first is not None:
        yield f"First difference: {difference_text(report.first, 'recorded', 'now')}"
        if report.reached:
            yield f"The options that were set count from stage {report.reached} on: they have not made it."
    if report.first_change is not None:
        yield f"First change: {difference_text(report.first_change, 'recorded', 'with these options')}"
    if report.first is None and report.first_change is None:
        nothing = "Nothing would have changed." if changed else "Nothing differs."
        yield nothing if report.equal else "Nothing differs of what was repeated."
    for note in report.notes[:SHOWN]:
        yield f"note: {note}"
    yield from _more(report.notes, "note: ")
    if report.out:
        yield f"{report.out} has the tables and replay.json."


def _state(stage: StageReport, changed: bool) -> str:
    state = _STATES[stage.state]
    if changed and stage.state == "differs":
        state = "changed"
    found = [] if stage.comparison is None else [_counts(stage.comparison)]
    return ": ".join(filter(None, [state, *found, stage.note]))


def _counts(found: Comparison) -> str:
    """What of a comparison fits on a line."""
    parts = [f"{len(found.missing)} samples missing"] if found.missing else []
    parts += [f"{len(found.extra)} samples more"] if found.extra else []
    for change in found.changes[:6]:
        largest = "" if change.largest is None else f"by up to {change.largest:.3g}"
        tokens = f", {change.values} values" if change.values != change.samples else ""
        if not change.samples:
            parts.append(f"{change.name} {largest}")
        elif sum(found.rows) and found.first is not None and found.first.sample_id is not None:
            parts.append(f"{change.name} of {change.samples} samples{tokens}{f' {largest}' if largest else ''}")
        else:
            parts.append(f"{change.name}{tokens} {largest}".rstrip())
    if len(found.changes) > 6:
        parts.append(f"and {len(found.changes) - 6} more")
    if found.skipped:
        parts.append(f"not compared, as one side has it not: {', '.join(found.skipped)}")
    return "; ".join(parts)


def difference_text(found: Difference, old: str, new: str) -> str:
    """``stage advantage, sample 000003-0001-000, advantages of response token 4: 0.5 recorded, 0.25 now``.

    Args:
        old, new: names of the two sides.
    """
    where = [f"stage {found.stage}"]
    if found.sample_id is not None:
        where.append(f"sample {found.sample_id}")
    if found.column == "sample_id":
        side = new if found.new == ABSENT else old
        return f"{', '.join(where)}: absent {side}"
    what = found.column
    if found.token is not None and found.sample_id is not None:
        what += f" of token {found.token}" if found.column == "tokens" else f" of response token {found.token}"
    elif found.token is not None:
        what += f"[{found.token}]"
    before, after = _values(found.old, found.new)
    return f"{', '.join([*where, what])}: {before} {old}, {after} {new}"


def _values(old: Any, new: Any) -> tuple[str, str]:
    """Both values; of long ones what lies about the first character that differs, at the same place of both."""
    texts = _text(old), _text(new)
    if max(map(len, texts)) <= MOST:
        return texts
    at = next((place for place, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    begin = 0 if at <= MOST // 2 else at - MOST // 3
    cut = [_window(text, begin) for text in texts]
    return cut[0], cut[1]


def _window(text: str, begin: int) -> str:
    part = text[begin : begin + MOST]
    return f"{'...' if begin else ''}{part}{'...' if begin + MOST < len(text) else ''}"


def _text(value: Any) -> str:
    """On one line; a text that is not plain to see has quotation marks."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return value if value.isprintable() and value.strip() == value and value else repr(value)
    return repr(value)


def _side_by_side(report: Report) -> Iterator[str]:
    if report.rewards:
        yield from _rewards(report.rewards)
    if report.advantages:
        found = report.advantages
        yield ""
        yield from _table("advantages", {name: (found["old"][name], found["new"][name]) for name in found["old"]})
        yield f"  {found['changed']} of {found['shared']} tokens changed, {found['turned']} turned their sign"
    for stage, metrics in report.metrics.items():
        yield ""
        yield from _table(stage, metrics)


def _rewards(found: Mapping[str, Any]) -> Iterator[str]:
    kinds = ", ".join(f"{found[name]} {name}" for name in ("up", "down", "gained", "lost") if found[name])
    changed = found["changed"]
    yield ""
    yield f"rewards: {len(changed)} of {found['samples']} changed{f' ({kinds})' if kinds else ''}, mean" + (
        f" {_number(found['old_mean'])} -> {_number(found['new_mean'])}"
    )
    if changed:
        width = max(len(row["sample_id"]) for row in changed[:SHOWN])
        yield f"  {'sample':{width}}  {'recorded':>12}  {'now':>12}"
        for row in changed[:SHOWN]:
            yield f"  {row['sample_id']:{width}}  {_number(row['old']):>12}  {_number(row['new']):>12}"
        yield from _more(changed, "  ")


def _table(title: str, rows: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Numbers in two columns; what changed has a star."""
    width = max(map(len, [title, *rows])) + 2
    yield f"{title:{width}}  {'recorded':>12}  {'now':>12}"
    for name, (old, new) in rows.items():
        yield f"  {name:{width - 2}}  {_number(old):>12}  {_number(new):>12}{'  *' if old != new else ''}"


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:.6g}" if isinstance(value, int | float) else str(value)


def _more(items: Sequence[Any], before: str) -> Iterator[str]:
    if len(items) > SHOWN:
        yield f"{before}... and {len(items) - SHOWN} more"


def runs_lines(found: RunsDifference) -> Iterator[str]:
    """A comparison of two runs."""
    yield f"A {found.runs[0]}"
    yield f"B {found.runs[1]}"
    if found.options:
        yield ""
        yield "options that differ:"
        yield from (f"  {change.flag}: {change.old} in A, {change.new} in B" for change in found.options[:SHOWN])
        yield from _more(found.options, "  ")
    yield ""
    yield f"steps compared: {_steps(found.steps)}"
    for run, steps in found.only.items():
        if steps:
            yield f"only {run} has steps {_steps(steps)}"
    width = max((len(stage.stage) for stage in found.stages), default=0)
    yield from (f"{stage.stage:{width}}  {_summary(stage)}" for stage in found.stages)
    yield from (f"note: {note}" for note in found.notes[:SHOWN])
    yield from _more(found.notes, "note: ")
    yield ""
    if found.first is not None:
        yield f"First difference: step {found.first.step}, {difference_text(found.first.difference, 'in A', 'in B')}"
    else:
        yield "Nothing differs." if found.equal else "Nothing differs of what both have."


def _summary(stage: StageSummary) -> str:
    parts = []
    if stage.compared:
        what = "same" if stage.same == stage.compared else f"DIFFERS from step {stage.first}"
        parts.append(f"{what} ({stage.same} of {stage.compared} steps the same)")
    if stage.samples:
        many = "numbers" if stage.stage in ("train", "train_critic", "manifest") else "samples"
        parts.append(f"{stage.samples} {many} differ")
    if stage.largest is not None:
        parts.append(f"by up to {stage.largest:.3g}")
    for run in ("A", "B"):
        steps = [step for step, only in stage.only.items() if only == run]
        if steps:
            parts.append(f"only {run} has it in steps {_steps(steps)}")
    return ", ".join(parts)


def _steps(steps: Sequence[int]) -> str:
    """``0-3, 5``."""
    spans: list[list[int]] = []
    for step in steps:
        if spans and step == spans[-1][-1] + 1:
            spans[-1][1:] = [step]
        else:
            spans.append([step])
    return ", ".join("-".join(map(str, span)) for span in spans) or "none"
