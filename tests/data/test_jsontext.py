"""JSON text that every reader takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.jsontext import dumps
from data.store import TableRef

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES)
def test_what_json_can_hold_is_unchanged(value: object) -> None:
    assert json.loads(dumps(value)) == value


def test_numpy_values_paths_and_references_are_written() -> None:
    ref = TableRef("a.parquet", 1, 2, "ab", "batch/1")
    value = {
        "i": np.int32(3),
        "f": np.float32(0.5),
        "b": np.bool_(True),
        "a": np.array([[1], [2]]),
        "p": Path("/x"),
        "r": ref,
    }
    expected = {"i": 3, "f": 0.5, "b": True, "a": [[1], [2]], "p": "/x", "r": ref.to_json()}
    assert json.loads(dumps(value)) == expected
    assert json.loads(dumps({**value, "nan": float("nan")})) == {**expected, "nan": None}  # the other path, same result


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan"), np.float32("-inf")])
def test_what_json_has_no_number_for_is_null(value: float) -> None:
    assert dumps({"x": [value, (1.0, value)]}) == '{"x": [null, [1.0, null]]}'
    assert dumps({"x": np.array([value, 1.0])}) == '{"x": [null, 1.0]}'


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="set cannot be written as JSON"):
        dumps({"x": {1}})
