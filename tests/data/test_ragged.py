"""Ragged columns: values and offsets, to and from Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.ragged import Ragged

ROWS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), max_size=8)


def to_lists(ragged: Ragged) -> list[list[int]]:
    return [row.tolist() for row in ragged]


@given(ROWS)
def test_rows_survive_the_way_through_arrow(rows: list[list[int]]) -> None:
    ragged = Ragged.from_list(rows, np.int32)
    array = ragged.to_arrow()
    assert array.to_pylist() == rows  # Arrow's own reading of what we wrote
    assert array.type == pa.list_(pa.int32())
    back = Ragged.from_arrow(array)
    assert back.equals(ragged)
    assert to_lists(back) == rows


@given(ROWS, st.data())
def test_a_slice_of_an_arrow_array_gives_the_rows_of_the_slice(rows: list[list[int]], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    length = data.draw(st.integers(0, len(rows) - start))
    ragged = Ragged.from_arrow(pa.array(rows, pa.list_(pa.int32())).slice(start, length))
    assert to_lists(ragged) == rows[start : start + length]
    assert len(ragged.values) == sum(map(len, rows[start : start + length]))


@given(st.lists(ROWS, max_size=4))
def test_chunks_are_joined_in_order(chunks: list[list[list[int]]]) -> None:
    kind = pa.list_(pa.int32())
    ragged = Ragged.from_arrow(pa.chunked_array([pa.array(rows, kind) for rows in chunks], type=kind))
    assert to_lists(ragged) == [row for rows in chunks for row in rows]
    assert ragged.dtype == np.int32


@given(ROWS.filter(len), st.data())
def test_take_is_indexing_of_rows(rows: list[list[int]], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=10))
    assert to_lists(Ragged.from_list(rows, np.int64).take(indices)) == [rows[i] for i in indices]


def test_long_rows_are_taken_like_short_ones() -> None:
    # long pieces are copied as a whole: rows apart, rows that follow one another, empty ones, and one twice
    ragged = Ragged.from_lengths(np.arange(3000, dtype=np.int16), [900, 0, 600, 0, 1500])
    rows = to_lists(ragged)
    for indices in ([4, 2, 0], [0, 1, 2, 3, 4], [2, 3, 4, 0, 1], [1, 4, -5, 4], [3, 1, 0]):
        taken = ragged.take(indices)
        assert to_lists(taken) == [rows[i] for i in indices]
        assert taken.dtype == np.int16
        assert not np.shares_memory(taken.values, ragged.values)


@given(ROWS, st.slices(8))
def test_slicing_is_slicing_of_rows(rows: list[list[int]], part: slice) -> None:
    assert to_lists(Ragged.from_list(rows, np.int64)[part]) == rows[part]


def test_one_chunk_is_a_read_only_view_of_arrows_memory_and_copy_is_not() -> None:
    array = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    ragged = Ragged.from_arrow(pa.chunked_array([array]))
    assert ragged.values.ctypes.data == array.values.buffers()[1].address
    with pytest.raises(ValueError, match="read-only"):
        ragged.values[0] = 9
    own = ragged.copy()
    own.values[0] = 9
    assert array.to_pylist() == [[1, 2], [3]]


def test_large_lists_fixed_types_and_booleans_are_read() -> None:
    assert to_lists(Ragged.from_arrow(pa.array([[1], [2, 3]], pa.large_list(pa.uint8())))) == [[1], [2, 3]]
    assert to_lists(Ragged.from_arrow(pa.array([[True], [False, True]]))) == [[True], [False, True]]


def test_rows_lengths_and_items() -> None:
    ragged = Ragged.from_list([[1.5], [], [2.5, 3.5]], np.float32)
    assert ragged.lengths.tolist() == [1, 0, 2]
    assert len(ragged) == 3
    assert ragged[-1].tolist() == [2.5, 3.5]
    assert ragged[1].size == 0
    with pytest.raises(IndexError):
        ragged[3]
    with pytest.raises(IndexError):
        ragged[-4]
    assert Ragged.concat([ragged, ragged]).lengths.tolist() == [1, 0, 2, 1, 0, 2]
    assert ragged.astype(np.float64).dtype == np.float64


def test_nan_equals_nan_and_other_types_differ() -> None:
    ragged = Ragged.from_list([[np.nan]], np.float32)
    assert ragged.equals(Ragged.from_list([[np.nan]], np.float32))
    assert not ragged.equals(Ragged.from_list([[np.nan]], np.float64))
    assert not ragged.equals(Ragged.from_list([[1.0]], np.float32))


@pytest.mark.parametrize("rows", [[[1], None], [[1, None]]])
def test_nulls_are_refused(rows: list[list[int | None] | None]) -> None:
    with pytest.raises(ValueError, match="null"):
        Ragged.from_arrow(pa.array(rows, pa.list_(pa.int32())))


def test_nulls_outside_a_slice_do_not_matter() -> None:
    array = pa.array([None, [1], [None]], pa.list_(pa.int32()))
    assert to_lists(Ragged.from_arrow(array.slice(1, 1))) == [[1]]


def test_columns_that_are_not_lists_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        Ragged.from_arrow(pa.array([1, 2]))


@pytest.mark.parametrize("offsets", [[0, 1], [1, 2], [0, 3], [0, 2, 1, 2], []])
def test_offsets_that_do_not_fit_the_values_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError):
        Ragged(np.array([7, 8]), np.array(offsets, dtype=np.int64))


def test_rows_of_two_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        Ragged.from_list([[[1]]], np.int32)


def test_more_values_than_int32_offsets_can_address_are_refused() -> None:
    values = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), shape=(2**31,), strides=(0,))  # no memory
    with pytest.raises(ValueError, match="too many"):
        Ragged.from_lengths(values, [2**31]).to_arrow()
