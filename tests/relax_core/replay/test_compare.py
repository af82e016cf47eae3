"""Comparisons of tables and of numbers."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.ragged import Ragged
from relax_core.replay.columns import ABSENT, Tolerance
from relax_core.replay.compare import Difference, compare_tables, compare_values

NAN = float("nan")


def table(ids: str = "abc", **columns: Any) -> pa.Table:
    arrays = {name: column.to_arrow() if isinstance(column, Ragged) else column for name, column in columns.items()}
    return pa.table({"sample_id": list(ids), **arrays})


def lists(*rows: Any, dtype: Any = np.float32) -> Ragged:
    return Ragged.from_list(list(rows), dtype)


def scores(*values: float | None) -> pa.Array:
    """float32 where NaN stays NaN and None is null."""
    return pa.array(values, pa.float32(), from_pandas=False)


def test_equal_tables_are_equal_in_any_order() -> None:
    old = table(reward=scores(1, NAN, None), tokens=lists([1], [], [3, 4], dtype=np.int32))
    new = old.take(pa.array([2, 0, 1]))
    found = compare_tables("reward", old, new)
    assert found.exact
    assert (found.rows, found.changes, found.first) == ((3, 3), (), None)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (NAN, NAN, True),
        (None, None, True),
        (None, NAN, False),
        (NAN, 0.0, False),
        (None, 0.0, False),
        (float("inf"), float("inf"), True),
        (float("inf"), -float("inf"), False),
        (0.0, -0.0, True),
        (1.0, 1.0 + 2**-23, False),  # the next float32
    ],
)
def test_no_score_nan_and_zero_are_different_answers(old: Any, new: Any, same: bool) -> None:
    found = compare_tables("reward", table("a", reward=scores(old)), table("a", reward=scores(new)))
    assert found.same is same
    if not same:
        assert found.first is not None
        assert (found.first.sample_id, found.first.token) == ("a", None)


def test_the_first_sample_then_the_first_column_then_the_first_token_is_named() -> None:
    old = table(x=lists([1, 2], [3, 4, 5], [6]), y=lists([0, 0], [0, 0, 0], [0]))
    new = table(x=lists([1, 2], [3, 9, 9], [0]), y=lists([0, 0], [9, 0, 0], [0]))
    found = compare_tables("advantage", old, new)
    assert found.first == Difference("advantage", "x", "b", 1, 4.0, 9.0)
    x, y = found.changes
    assert (x.name, x.samples, x.values, x.largest) == ("x", 2, 3, 6.0)
    assert (y.name, y.samples, y.values, y.largest) == ("y", 1, 1, 9.0)


def test_lists_of_other_lengths_differ_where_one_ends() -> None:
    old, new = table("ab", x=lists([1, 2], [3])), table("ab", x=lists([1, 2, 7], [3]))
    assert compare_tables("generate", old, new).first == Difference("generate", "x", "a", 2, ABSENT, 7.0)
    assert compare_tables("generate", new, old).first == Difference("generate", "x", "a", 2, 7.0, ABSENT)
    earlier = table("ab", x=lists([0, 2, 7], [3]))
    assert compare_tables("generate", old, earlier).first == Difference("generate", "x", "a", 0, 1.0, 0.0)
    [change] = compare_tables("generate", old, earlier).changes
    assert (change.samples, change.values) == (1, 2)


def test_a_list_that_is_null_is_no_empty_list() -> None:
    kind = pa.list_(pa.float32())
    old, new = (table("ab", x=pa.array(rows, kind)) for rows in ([None, [1.0]], [[], [1.0]]))
    assert compare_tables("forward", old, new).first == Difference("forward", "x", "a", None, None, [])
    assert compare_tables("forward", old, old).exact


def test_samples_that_one_side_lacks_are_named() -> None:
    old, new = table("abc", reward=scores(1, 2, 3)), table("cad", reward=scores(3, 1, 4))
    found = compare_tables("reward", old, new)
    assert (found.missing, found.extra) == (("b",), ("d",))
    assert found.first == Difference("reward", "sample_id", "b", None, "b", ABSENT)
    assert compare_tables("reward", old.slice(0, 1), old.slice(0, 2)).first == Difference(
        "reward", "sample_id", "b", None, ABSENT, "b"
    )
    # a value that differs in an earlier sample comes first
    other = table("cad", reward=scores(3, 7, 4))
    assert compare_tables("reward", old, other).first == Difference("reward", "reward", "a", None, 1.0, 7.0)


def test_columns_that_one_side_lacks_are_said_and_compared_by_nobody() -> None:
    old, new = table("a", reward=scores(1)), table("a", reward=scores(1), outcome=["scored"])
    assert compare_tables("reward", old, new).skipped == ("outcome",)
    assert compare_tables("reward", old, new).same
    assert compare_tables("reward", new, old, ignore=["outcome"]).skipped == ()


def test_texts_and_columns_of_other_types_are_compared_as_they_are() -> None:
    old, new = table("ab", why=["x", None]), table("ab", why=["x", "y"])
    assert compare_tables("reward", old, new).first == Difference("reward", "why", "b", None, None, "y")
    wide = table("ab", why=pa.array(["x", None], pa.large_string()))
    assert compare_tables("reward", old, wide).same


def test_within_a_tolerance_values_are_the_same_but_not_exactly() -> None:
    old, new = table("a", x=lists([1.0, -2.0])), table("a", x=lists([1.0, -2.001]))
    assert compare_tables("train", old, new, Tolerance(rtol=1e-3)).same
    found = compare_tables("train", old, new, Tolerance(rtol=1e-3))
    assert not found.exact
    assert found.changes[0].samples == 0
    assert found.changes[0].largest == pytest.approx(1e-3, rel=1e-3)
    assert not compare_tables("train", old, new, Tolerance(rtol=1e-4)).same
    # what is not finite is near nothing
    far = table("a", x=lists([1.0, float("inf")]))
    assert not compare_tables("train", far, old, Tolerance(rtol=1.0, atol=1.0)).same
    # whole numbers are ids or counts
    ids = (table("a", x=lists(row, dtype=np.int32)) for row in ([5], [6]))
    assert not compare_tables("train", *ids, Tolerance(rtol=1.0, atol=1.0)).same


def test_numbers_are_compared_by_name() -> None:
    found = compare_values("train", {"loss": 1.0, "lr": 0.1, "x": None}, {"lr": 0.1, "loss": 1.5, "x": None})
    assert found.first == Difference("train", "loss", None, None, 1.0, 1.5)
    assert compare_values("train", {"loss": 1.0}, {"loss": 1.5}, Tolerance(atol=0.5)).same
    assert compare_values("train", {"loss": NAN}, {"loss": NAN}).exact
    assert compare_values("train", {"loss": 1.0}, {}).first == Difference("train", "loss", None, None, 1.0, ABSENT)
    assert compare_values("manifest", {"id": "a"}, {"id": "b"}).first == Difference(
        "manifest", "id", None, None, "a", "b"
    )


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    data=st.data(),
)
def test_one_changed_value_in_rows_of_any_order_is_named_exactly(lengths: list[int], data: Any) -> None:
    ids = "abcdefgh"[: len(lengths)]
    values = np.arange(sum(lengths), dtype=np.float32)
    place = data.draw(st.integers(0, len(values) - 1))
    order = data.draw(st.permutations(range(len(lengths))))
    changed = values.copy()
    changed[place] = NAN
    old, new = (table(ids, x=Ragged.from_lengths(column, lengths)) for column in (values, changed))
    ends = np.cumsum(lengths)
    row = int(np.searchsorted(ends, place, side="right"))
    found = compare_tables("advantage", old, new.take(pa.array(order)))
    assert found.first is not None
    assert (found.first.sample_id, found.first.token) == (ids[row], place - int(ends[row] - lengths[row]))
    assert found.first.old == float(place)
    assert (found.changes[0].samples, found.changes[0].values, found.changes[0].largest) == (1, 1, None)
