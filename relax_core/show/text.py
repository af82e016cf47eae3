"""Rollouts and steps on a terminal.

Guarantee: a terminal acts on nothing that a prompt or response holds: characters that cannot be seen are written as
escapes, and brackets are no markup.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.color import Color
from rich.console import Console, Group
from rich.padding import Padding
from rich.rule import Rule
from rich.style import Style
from rich.table import Table
from rich.text import Text

from relax_core.show import scale
from relax_core.show.overview import Overview, StepRow, sparkline
from relax_core.show.reading import Sample, Shown
from relax_core.show.samples import Key, ends, facts, in_order, trimmed
from relax_core.show.tokens import Vocabulary, pieces

PROMPT, RESPONSE = 500, 900
"""Characters that are shown of texts of one sample among several."""

TOKENS = 8
"""Rows of a table of tokens."""

_ENDS = {
    "reward": ("Highest reward", "Lowest reward"),
    "length": ("Longest", "Shortest"),
    "gap": ("Largest log-prob gap", "Smallest log-prob gap"),
}


def visible(text: str) -> str:
    """The text with its lines, everything else that cannot be seen as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def overview_text(overview: Overview, blocks: bool = True) -> Group:
    """The run, then a table of its steps.

    Args:
        blocks: whether the terminal can write the characters of a curve.
    """
    parts: list[Any] = [Text(f"Run: {visible(overview.run)}", style="bold")]
    width = max(map(len, overview.facts), default=0)
    for name, text in overview.facts.items():
        parts.append(Text(f"  {visible(name):{width}}  {visible(text)}"))
    if blocks and len(overview.rewards) > 1:
        low, high = min(overview.rewards), max(overview.rewards)
        parts.append(Text(f"  {'curve':{width}}  {sparkline(overview.rewards)}  ({low:.3f} to {high:.3f})"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("step", "reward", "tokens", "truncated", "gap mean", "gap max", "mixed", "loss", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in overview.rows:
        table.add_row(*_cells(row), style="" if row.finished else "dim")
    parts += [Text(), table]
    if left := overview.steps - len(overview.rows):
        parts.append(Text(f"and {left} earlier steps (--json has all)", style="dim"))
    return Group(*parts)


def _cells(row: StepRow) -> list[str]:
    return [
        str(row.step),
        _number(row.reward, ".3f"),
        _number(row.length, ".1f"),
        _number(row.truncated, ".0%"),
        _number(row.gap_mean, ".2g"),
        _number(row.gap_max, ".2g"),
        _number(row.mixed, ".0%"),
        _number(row.loss, ".3g"),
        _number(row.seconds, ".1f"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def step_text(
    shown: Shown, samples: Sequence[Sample], key: Key, reverse: bool, limit: int, whole: bool = False
) -> Group:
    """A step: what holds of all its samples, then those at both ends of the order.

    Args:
        samples: those to choose from.
        reverse: the lower end first.
        limit: samples of each end.
        whole: all of ``samples`` in the order, with whole texts.
    """
    head = "   ".join(f"{name} {value}" for name, value in facts(shown.samples).items())
    parts: list[Any] = [Text(), Text(_title(shown.title), style="bold"), Padding(Text(head), (0, 0, 0, 2))]
    parts += [Padding(Text(f"note: {visible(text)}", style="dim"), (0, 0, 0, 2)) for text in shown.missing]
    if whole:
        parts += [sample_text(sample, whole=True) for sample in in_order(samples, key, ascending=reverse)]
        return Group(*parts)
    first, last = ends(samples, key, limit)
    both = list(zip(_ENDS[key], (first, last), strict=True))
    for title, chosen in reversed(both) if reverse else both:
        if chosen:
            parts += [Text(), Text(title, style="bold")]
            parts += [sample_text(sample) for sample in chosen]
    if not first and samples:
        parts += [Text(), Text(f"No sample has a {key}; the first ones", style="bold")]
        parts += [sample_text(sample) for sample in in_order(samples, key)[:limit]]
    return Group(*parts)


def _title(text: str) -> str:
    return text[:1].upper() + text[1:]


def sample_text(sample: Sample, whole: bool = False) -> Group:
    """A sample.

    Args:
        whole: its texts from beginning to end.
    """
    score = f"reward {sample.reward:.4g}" if sample.reward is not None else f"no score ({sample.outcome or 'not yet'})"
    parts: list[Any] = [Rule(Text(f"{sample.sample_id}  {score}"), align="left", style="dim")]
    parts.append(Text("  ".join(sample_facts(sample)), style="cyan"))
    if sample.error:
        parts.append(Text(visible(sample.error), style="yellow"))
    prompt = sample.prompt if whole else trimmed(sample.prompt, PROMPT)
    response = sample.response if whole else trimmed(sample.response, RESPONSE)
    parts.append(Padding(Text(visible(prompt), style="dim"), (0, 0, 0, 2)))
    parts.append(Padding(Text(visible(response)), (0, 0, 0, 2)))
    if sample.judge_output and whole:
        parts += [Text("The judge said", style="bold"), Padding(Text(visible(sample.judge_output)), (0, 0, 0, 2))]
    return Group(*parts)


def sample_facts(sample: Sample) -> list[str]:
    """What is known of a sample beside its texts and its reward, in short."""
    found = [f"tokens {sample.length}", f"ended {sample.finish_reason or sample.status}"]
    if sample.label is not None:
        found.append(f"label {trimmed(sample.label, 80)}")
    for name, value in sample.parts.items():
        found.append(f"{name} {value:.4g}" if isinstance(value, int | float) else f"{name} {trimmed(str(value), 60)}")
    if sample.advantage is not None:
        found.append(f"advantage {sample.advantage:.4g}")
    if sample.gap_mean is not None and sample.gap_max is not None:
        found.append(f"gap mean {sample.gap_mean:.2g} max {sample.gap_max:.2g}")
    if sample.weight_versions:
        found.append(f"version {', '.join(map(str, sample.weight_versions))}")
    if sample.abort_count:
        found.append(f"broken off {sample.abort_count}x")
    if sample.trained is False or sample.remove_sample:
        found.append("not trained on")
    return [visible(text) for text in found]


def coloured_text(sample: Sample, vocabulary: Vocabulary | None) -> Group | None:
    """The response with the ground of each token in the colour of its gap, or, where no gap is known, of its
    probability, on the page's dark ground; None where neither is known, or tokens have no texts."""
    if vocabulary is None or sample.log_probs is None or sample.tokens is None or not sample.length:
        return None
    ground, ink = scale.DARK
    if sample.gap is not None and (most := scale.bound([sample.gap])):
        what = f"Log-prob gap (orange: the trainer is less sure than the engine, blue: surer; full at {most:g})"
        shades = [(scale.ABOVE if gap > 0 else scale.BELOW, scale.opacity(gap, most)) for gap in sample.gap.tolist()]
    else:
        what = "Probability (the stronger, the less likely the token was)"
        unlikely = 1 - np.exp(np.minimum(sample.log_probs.astype(np.float64), 0))
        shades = [(scale.BELOW, scale.opacity(value, 1.0)) for value in unlikely.tolist()]
    text = Text(style=Style(color=Color.from_rgb(*ink), bgcolor=Color.from_rgb(*ground)))
    tokens = [vocabulary.bytes_of(token) for token in sample.tokens[sample.prompt_length :].tolist()]
    for start, count, piece in pieces(tokens):
        colour, alpha = max(shades[start : start + count], key=lambda shade: shade[1])
        text.append(visible(piece), Style(bgcolor=Color.from_rgb(*scale.over(colour, alpha, ground))))
    return Group(Text(), Text(what, style="bold"), Padding(text, (0, 0, 0, 2)))


def tokens_text(sample: Sample, vocabulary: Vocabulary | None) -> Group | None:
    """The tokens of one sample with the largest gap, or, where no gap is known, the least likely ones; None where
    neither is known."""
    if sample.log_probs is None or sample.tokens is None or not sample.length:
        return None
    by = -np.abs(sample.gap) if sample.gap is not None else sample.log_probs
    order = np.argsort(by, kind="stable")[:TOKENS].tolist()
    ids = sample.tokens[sample.prompt_length :].tolist()
    texts: dict[int, str] = {}
    if vocabulary is not None:
        for start, count, text in pieces([vocabulary.bytes_of(token) for token in ids]):
            texts |= dict.fromkeys(range(start, start + count), text)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("token", "id", "text", "engine", "trainer", "gap", "advantage", "mask", "version"):
        table.add_column(name, justify="left" if name == "text" else "right", no_wrap=True)
    for at in order:
        table.add_row(
            str(at),
            str(ids[at]),
            Text(visible(repr(texts[at])) if at in texts else "-"),
            _number(_at(sample.log_probs, at), ".4g"),
            _number(_at(sample.old_log_probs, at), ".4g"),
            _number(_at(sample.gap, at), ".2g"),
            _number(_at(sample.advantages, at), ".4g"),
            _number(_at(sample.mask, at), ".0f"),
            _number(_at(sample.versions, at), ".0f"),
        )
    title = "Tokens with the largest gap" if sample.gap is not None else "Least likely tokens"
    return Group(Text(), Text(title, style="bold"), table)


def _at(values: Any, at: int) -> float | None:
    return None if values is None else float(values[at])


def console() -> Console:
    """Standard output, without markup and colours that are guessed."""
    return Console(highlight=False, markup=False, emoji=False)
