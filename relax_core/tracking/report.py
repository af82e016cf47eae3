"""A run on one page, in Markdown: where it is, its curves, its best and worst rollouts, where its time went, and what
was resumed and done again.

Guarantee: a pure function of what it is given; texts of models and errors stand in blocks of code, so that nothing in
them is markup; at most ``ROWS`` rows of any table, whatever happened.
"""

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relax_core.tracking.curves import Curve, curves_svg
from relax_core.tracking.events import KINDS
from relax_core.tracking.links import place
from relax_core.tracking.step_table import short

ROWS = 15

CURVES = (
    ("reward/mean", "mean reward"),
    ("response_len/mean", "response length"),
    ("opd_reverse_kl", "KL to the teacher"),
    ("critic/value_loss", "value loss"),
    ("loss", "loss"),
    ("grad_norm", "gradient norm"),
)
"""Metrics that have a curve, in this order, and what they are called; the first three that a run has are drawn."""

PANELS = 3

RESUMED = (
    *("driver_restarted", "flow_crashed", "stage_reused", "samples_reused", "rewards_reused", "retry", "engine_lost"),
    *("rewind", "retrained", "set_aside", "stage_failed"),
)
"""Events that tell of something that went wrong, was taken up again, or was done again."""


def curves_of(metrics: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The curves of a run: mean reward, scores of evaluations, and what else its ``PANELS`` have room for.

    Args:
        metrics: lines of ``metrics.jsonl``.
    """
    scores = sorted({name for line in metrics for name in line if is_score(name)})[:1]
    wanted = [CURVES[0], *((name, name) for name in scores), *CURVES[1:]]
    found = []
    for name, title in wanted:
        points = [(line["step"], value) for line in metrics if isinstance(value := line.get(name), int | float)]
        if points:
            found.append(Curve(title, points))
    return found[:PANELS]


def is_score(name: str) -> bool:
    """Whether a metric is an evaluation set's score itself, not one of its further metrics."""
    return (
        name.startswith("eval/") and "-pass@" not in name and not name.endswith(("-truncated_ratio", "/mean", "/max"))
    )


def run_report(
    url: str,
    *,
    total_steps: int,
    metrics: Sequence[Mapping[str, Any]],
    seconds: Mapping[str, float],
    made: int,
    events: Sequence[Mapping[str, Any]] = (),
    best: Sequence[Mapping[str, Any]] = (),
    worst: Sequence[Mapping[str, Any]] = (),
    picture: str | None = None,
    picture_at: str | None = None,
    page: str | None = None,
    server: str | None = None,
    ended: str = "",
    closing: str = "",
) -> str:
    """The page.

    Args:
        url: of the run.
        total_steps: that it will have.
        metrics: lines of ``metrics.jsonl``.
        seconds: of each stage, and ``whole steps``, over the steps that this process has made.
        made: how many those are.
        events: the run's timeline.
        best, worst: see ``relax_core.show.samples.best_and_worst``, of the newest step.
        picture: address of the curves, as an image has it.
        picture_at: the file that has them.
        page: where the newest step's rollouts are shown.
        server: see ``relax_core.tracking.links.place``.
        ended: why the run is not going on; nothing while it does.
        closing: the text that ends the run on a terminal.
    """
    name = url.rstrip("/").rpartition("/")[2]
    last = metrics[-1] if metrics else {}
    done = int(last["step"]) + 1 if last else 0
    state = ended or ("finished" if done >= total_steps else "running")
    parts = [f"## {_plain(name)}: step {done} of {total_steps}, {_plain(state)}", _facts(metrics)]
    if picture is not None:
        parts.append(f"![curves]({picture})")
    if picture_at is not None:
        parts.append(f"The same as a file: {place('', picture_at, url, server)}")
    shown = page and place("", page, url, server)
    parts += [*_rollouts(best, worst, done - 1, shown), _time(seconds, made), *_resumed(events)]
    look = closing.strip() or f"relax show {shlex.quote(url)}"
    return "\n\n".join(filter(None, [*parts, "### Look at it", fenced(look)])) + "\n"


def _facts(metrics: Sequence[Mapping[str, Any]]) -> str:
    if not metrics:
        return ""
    first, last = metrics[0], metrics[-1]
    scores = sorted({name for line in metrics for name in line if is_score(name)})
    rows = []
    for name, title in (*((score, score) for score in scores[:ROWS]), *CURVES):
        known = [line[name] for line in metrics if isinstance(line.get(name), int | float)]
        if known:
            largest, smallest = short(float(max(known))), short(float(min(known)))
            rows.append(f"| {title} | {short(known[0])} | {short(known[-1])} | {smallest} | {largest} |")
    head = f"| | step {first['step']} | step {last['step']} | least | most |\n| --- | ---: | ---: | ---: | ---: |"
    return "\n".join([head, *rows])


def _rollouts(
    best: Sequence[Mapping[str, Any]], worst: Sequence[Mapping[str, Any]], step: int, page: str | None
) -> list[str]:
    parts = []
    for title, samples in (("Best", best), ("Worst", worst)):
        if samples:
            parts.append(f"### {title} rollouts of step {step}")
        for sample in samples:
            label = f", label `{_plain(str(sample['label']))}`" if sample.get("label") is not None else ""
            parts.append(f"**reward {short(sample['reward'])}**, {_tokens(sample['length'])} long{label}")
            parts.append(fenced(f"{sample['prompt']}\n--- response ---\n{sample['response']}"))
    if page:
        parts.append(f"All of them, token by token: {page}")
    return parts


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _time(seconds: Mapping[str, float], made: int) -> str:
    whole = seconds.get("whole steps", 0.0)
    if not made or not whole:
        return ""
    stages = {name: value for name, value in seconds.items() if name != "whole steps"}
    stages["between the stages"] = max(0.0, whole - sum(stages.values()))
    rows = [
        f"| {name} | {value / made:.2f} | {value:.1f} | {100 * value / whole:.0f} % |"
        for name, value in sorted(stages.items(), key=lambda item: -item[1])
        if value >= 0.005 * whole
    ]
    steps = "1 step" if made == 1 else f"{made} steps"
    head = f"| stage | seconds a step | in all ({steps} of this process) | share |\n| --- | ---: | ---: | ---: |"
    return "\n".join(["### Time by stage\n", head, *rows])


def _resumed(events: Sequence[Mapping[str, Any]]) -> list[str]:
    first = next((at for at, event in enumerate(events) if event["kind"] == "driver_started"), None)
    kinds = (*RESUMED, "driver_started")
    told = [event for at, event in enumerate(events) if event["kind"] in kinds and at != first]
    title = "### What was resumed and done again"
    if not told:
        return [title, "Nothing: one process has made every step, and nothing died under it."]
    counts = Counter(event["kind"] for event in told)
    many = [f"| {count} | {KINDS[kind]} |" for kind, count in counts.most_common()]
    newest = ["| when | step | what | who | why |", "| --- | ---: | --- | --- | --- |", *map(_row, told[-ROWS:])]
    more = f"The newest {ROWS} of {len(told)}; all with `relax events`." if len(told) > ROWS else ""
    return [title, "\n".join(["| times | what |", "| ---: | --- |", *many]), "\n".join(newest), more]


def _row(event: Mapping[str, Any]) -> str:
    at = time.strftime("%m-%d %H:%M:%S", time.localtime(float(event["time"])))
    step = "" if event.get("step") is None else event["step"]
    cause = str(event.get("cause") or "")
    kind = str(event["kind"]).replace("_", " ")
    return f"| {at} | {step} | {kind} | {_plain(str(event.get('who') or ''))} | {_plain(cause[:200])} |"


def fenced(text: str) -> str:
    """A block of code in which the text is as it stands, whatever it holds."""
    ticks = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}\n{text}\n{fence}"


def _plain(text: str) -> str:
    """One line without anything that Markdown or HTML would read."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))


def added(seconds: dict[str, float], manifests: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """``seconds`` with those of further steps."""
    for manifest in manifests:
        for name, value in {**manifest["seconds"], "whole steps": manifest["wall_seconds"]}.items():
            seconds[name] = seconds.get(name, 0.0) + value
    return seconds


def picture_of(metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """The curves as an SVG; None where there is nothing to draw yet."""
    curves = curves_of(metrics)
    return curves_svg(curves) if curves else None
