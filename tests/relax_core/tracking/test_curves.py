"""Curves of a run as one small picture."""

import base64
import math
import xml.etree.ElementTree as ET

from relax_core.tracking.curves import POINTS, Curve, curves_svg, data_uri, thinned

SVG = "{http://www.w3.org/2000/svg}"


def test_a_run_of_any_length_has_so_many_points_that_are_means_of_neighbours() -> None:
    # 4 points of 2 steps each: (0, 1) -> 0.5, (2, 3) -> 2.5, ...
    assert thinned([(x, float(x)) for x in range(8)], most=4) == [(0.5, 0.5), (2.5, 2.5), (4.5, 4.5), (6.5, 6.5)]
    assert len(thinned([(x, 0.0) for x in range(100_000)])) == POINTS


def test_values_that_are_missing_are_left_out_and_steps_are_in_order() -> None:
    assert thinned([(2, 1.0), (0, math.nan), (1, math.inf), (0, 3.0)]) == [(0.0, 3.0), (2.0, 1.0)]


def test_the_line_goes_from_the_lowest_value_at_the_bottom_to_the_highest_at_the_top() -> None:
    picture = ET.fromstring(curves_svg([Curve("mean <reward>", [(0, -1.0), (10, 1.0)])]))
    (line,) = picture.iter(f"{SVG}polyline")
    # 300 x 150; axes are 44 from the left, 10 from the right, 24 from the top, 20 from the bottom
    assert line.attrib["points"] == "44,130 290,24"
    assert [text.text for text in picture.iter(f"{SVG}text")] == ["mean <reward>", "1", "1", "-1", "step 0", "10"]


def test_the_axis_of_a_long_run_begins_and_ends_with_its_own_steps_and_names_the_newest_value() -> None:
    svg = curves_svg([Curve("r", [(x, float(x)) for x in range(500)])])
    assert ">step 0<" in svg
    assert svg.count(">499<") == 2  # the last step, and its value


def test_one_value_and_equal_values_are_a_flat_line() -> None:
    for points in ([(3, 0.5)], [(3, 0.5), (4, 0.5)]):
        (line,) = ET.fromstring(curves_svg([Curve("r", points)])).iter(f"{SVG}polyline")
        assert {place.split(",")[1] for place in line.attrib["points"].split()} == {"77"}


def test_a_curve_without_values_has_no_panel() -> None:
    svg = curves_svg([Curve("a", [(0, math.nan)]), Curve("b", [(0, 1.0)])])
    assert ">b<" in svg
    assert ">a<" not in svg
    assert 'width="300"' in svg


def test_the_address_holds_the_whole_picture_and_stays_small() -> None:
    svg = curves_svg([Curve(name, [(x, math.sin(x)) for x in range(500)]) for name in "abc"])
    address = data_uri(svg)
    assert base64.b64decode(address.partition(",")[2]).decode() == svg
    assert len(address) < 12_000
