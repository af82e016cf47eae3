"""Labels of weights."""

import pytest

from relax_core.weights.label import version_of, weight_label


def test_a_label_names_version_and_history() -> None:
    assert weight_label(4, "ab12") == "4.ab12"
    assert weight_label(4, "ab12") != weight_label(4, "cd34")
    assert version_of(weight_label(4, "ab12")) == version_of(weight_label(4)) == 4


@pytest.mark.parametrize("text", ["default", "updating-4.ab12", "unequal-4", "checking", "", "-1", "4.", "4.xyz"])
def test_what_is_no_label_has_no_version(text: str) -> None:
    assert version_of(text) is None
