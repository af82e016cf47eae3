"""Curves of a run as one small picture.

Guarantee: an SVG of at most ``POINTS`` points a curve, whatever the length of the run, that can be read on a light and
on a dark page; a value that is missing or not finite is a gap and no error.
"""

import base64
import html
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

POINTS = 120
"""Of a curve; of a longer run each point is the mean of several steps."""

WIDTH, HEIGHT = 300, 150
"""Of a panel, in pixels."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 24, 20
_COLOUR, _GREY = "#2a9d6f", "#8a8f98"

Point = tuple[float, float]
"""A step and a value."""


class Curve(NamedTuple):
    """What a panel shows: one value of each step (NaN: none)."""

    title: str
    points: Sequence[Point]


def curves_svg(curves: Sequence[Curve]) -> str:
    """A picture with the panels side by side; a curve without a value has none."""
    drawn = [(curve.title, points) for curve in curves if (points := _there(curve.points))]
    panels = [_panel(title, points, WIDTH * place) for place, (title, points) in enumerate(drawn)]
    size = f'width="{max(1, len(panels)) * WIDTH}" height="{HEIGHT}"'
    style = f'font-family="sans-serif" font-size="11" fill="{_GREY}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(panels)}</svg>'


def data_uri(svg: str) -> str:
    """The picture as an address, which pages that hold it need no server for."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """The points that have a value, in order of their steps; if there are more than ``most``, means of neighbours."""
    there = _there(points)
    if len(there) <= most:
        return there
    cuts = [round(part * len(there) / most) for part in range(most + 1)]
    parts = [there[begin:end] for begin, end in itertools.pairwise(cuts)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def _there(points: Sequence[Point]) -> list[Point]:
    return sorted((float(x), float(y)) for x, y in points if math.isfinite(y))


def _panel(title: str, there: Sequence[Point], shift: int) -> str:
    points = thinned(there)
    first, (last, newest) = there[0][0], there[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    middle = high == low
    across = (WIDTH - _LEFT - _RIGHT) / ((last - first) or 1.0)
    up = (HEIGHT - _TOP - _BOTTOM) / ((high - low) or 1.0)

    def at(x: float, y: float) -> tuple[float, float]:
        height = (HEIGHT - _TOP - _BOTTOM) / 2 if middle else (y - low) * up
        return round(_LEFT + (x - first) * across, 1), round(HEIGHT - _BOTTOM - height, 1)

    places = [at(x, y) for x, y in points]
    line = " ".join(f"{x:g},{y:g}" for x, y in places)
    dots = "".join(f'<circle cx="{x:g}" cy="{y:g}" r="2"/>' for x, y in (places if len(places) <= 20 else places[-1:]))
    floor = HEIGHT - _BOTTOM
    bounds = ((high, _TOP + 4),) if middle else ((high, _TOP + 4), (low, floor))
    return (
        f'<g transform="translate({shift})">'
        f'<text x="{_LEFT}" y="13" font-weight="bold">{html.escape(title)}</text>'
        f'<text x="{WIDTH - _RIGHT}" y="13" text-anchor="end" fill="{_COLOUR}">{_number(newest)}</text>'
        f'<path d="M{_LEFT},{_TOP}V{floor}H{WIDTH - _RIGHT}" fill="none" stroke="{_GREY}" stroke-opacity=".5"/>'
        + "".join(f'<text x="{_LEFT - 4}" y="{y}" text-anchor="end">{_number(value)}</text>' for value, y in bounds)
        + f'<text x="{_LEFT}" y="{HEIGHT - 5}">step {first:g}</text>'
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{last:g}</text>'
        f'<polyline points="{line}" fill="none" stroke="{_COLOUR}" stroke-width="1.5"/>'
        f'<g fill="{_COLOUR}">{dots}</g></g>'
    )


def _number(value: float) -> str:
    return f"{value:.3g}"
