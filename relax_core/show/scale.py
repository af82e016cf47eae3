"""Colours of tokens: what a page and a terminal mark a value with.

Guarantee: a colour is a pure function of a value and its bound; on the page's light and its dark ground text stays
readable (contrast 4.5 or more) on every colour at its strongest.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

RGB = tuple[int, int, int]

ABOVE: RGB = (40, 110, 240)
"""Of values above 0."""

BELOW: RGB = (235, 110, 10)
"""Of values below 0, and of what is unlikely."""

NEUTRAL: RGB = (128, 128, 128)
"""Of tokens that are not trained on, or that no engine made."""

VERSIONS: tuple[RGB, ...] = (ABOVE, BELOW, (20, 160, 110), (190, 70, 200), (180, 150, 0), (230, 60, 100))
"""Of weight versions, in turn."""

STRONGEST = 0.6
"""Opacity of a value at its bound or beyond."""

LIGHT: tuple[RGB, RGB] = ((255, 255, 255), (26, 28, 33))
DARK: tuple[RGB, RGB] = ((22, 24, 29), (232, 234, 238))
"""Ground and text of the page's two themes."""

_PERCENTILE = 99.0


def bound(arrays: Iterable[NDArray[np.floating]]) -> float:
    """What stands for the strongest colour: the 99th percentile of the absolute values, rounded up to 1, 2 or 5 times
    a power of ten, so that one outlier does not make all else pale. 0 without any value other than 0."""
    found = [np.abs(array[np.isfinite(array)]) for array in arrays]
    values = np.concatenate(found) if found else np.empty(0)
    values = values[values > 0]
    if not len(values):
        return 0.0
    at = float(np.percentile(values, _PERCENTILE))
    power = 10.0 ** math.floor(math.log10(at))
    steps = (1.0, 2.0, 5.0, 10.0)
    # with the rounding of float32: 0.20000005 is 0.2 and must not become 0.5
    return float(f"{next(step for step in steps if at <= step * power * (1 + 1e-6)) * power:.3g}")


def opacity(value: float, most: float) -> float:
    """How strong the colour of a value is: in proportion up to the bound, ``STRONGEST`` from there on."""
    return STRONGEST * min(1.0, abs(value) / most) if most > 0 and math.isfinite(value) else 0.0


def contrast(first: RGB, second: RGB) -> float:
    """Contrast ratio of two colours, by WCAG 2."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def over(colour: RGB, alpha: float, ground: RGB) -> RGB:
    """A colour of some opacity on a ground."""
    red, green, blue = (round(alpha * a + (1 - alpha) * b) for a, b in zip(colour, ground, strict=True))
    return red, green, blue


def _luminance(colour: RGB) -> float:
    linear = [c / 12.92 if (c := value / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for value in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
