"""Colours of tokens, by hand."""

import itertools

import numpy as np
import pytest

from relax_core.show import scale


def arrays(*rows: list[float]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.float32) for row in rows]


def test_the_bound_is_a_round_number_above_nearly_all_values() -> None:
    # the 99th percentile of four values 0.2 is 0.2, which is round
    assert scale.bound(arrays([0.2, -0.2], [0.2, 0.2])) == 0.2
    # of one value it is the value: 0.3 -> 0.5, 0.06 -> 0.1, 7 -> 10
    assert [scale.bound(arrays([value])) for value in (0.3, 0.06, 7.0)] == [0.5, 0.1, 10.0]


def test_one_outlier_does_not_make_all_else_pale() -> None:
    # 999 values 0.1 and one 50: the percentile lies among the 0.1
    assert scale.bound(arrays([0.1] * 999 + [50.0])) == 0.1


def test_zeros_nan_and_infinity_take_no_part() -> None:
    assert scale.bound(arrays([0.0, float("nan"), float("inf"), 1.0])) == 1.0
    assert scale.bound(arrays([0.0, 0.0])) == 0.0
    assert scale.bound([]) == 0.0


def test_opacity_grows_in_proportion_up_to_the_bound() -> None:
    # 0.6 at the bound; half of it at half of the bound
    assert scale.opacity(-0.1, 0.2) == pytest.approx(0.3)
    assert scale.opacity(0.2, 0.2) == scale.opacity(9.0, 0.2) == 0.6
    assert scale.opacity(0.1, 0.0) == scale.opacity(float("nan"), 1.0) == 0.0


def test_contrast_is_that_of_wcag() -> None:
    # black on white: (1 + 0.05) / (0 + 0.05); a colour on itself: 1
    assert scale.contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert scale.contrast((9, 9, 9), (9, 9, 9)) == pytest.approx(1)


@pytest.mark.parametrize("theme", [scale.LIGHT, scale.DARK])
def test_text_is_readable_on_every_colour_of_both_themes(theme: tuple[scale.RGB, scale.RGB]) -> None:
    ground, text = theme
    for colour in (scale.ABOVE, scale.BELOW, scale.NEUTRAL, *scale.VERSIONS):
        assert scale.contrast(text, scale.over(colour, scale.STRONGEST, ground)) >= 4.5, colour


def test_versions_that_follow_each_other_have_different_colours() -> None:
    assert all(a != b for a, b in itertools.combinations(scale.VERSIONS, 2))
