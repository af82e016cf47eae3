"""Columns to micro-batches and back: by hand, the way through Arrow, and what is refused."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.ragged import Ragged
from relax_core.batching.columns import Packing
from relax_core.batching.plan import plan_updates


def test_micro_batches_are_views_of_the_packed_column():
    column = Ragged.from_list([[1, 2], [3], [], [4, 5, 6]], np.int32)
    packing = Packing.of([[3, 0], [], [2]])
    packed = packing.pack(column)
    assert packed.values.tolist() == [4, 5, 6, 1, 2]
    first, dummy, last = (packing.micro_batch(packed, number) for number in range(len(packing)))
    assert (first.values.tolist(), first.offsets.tolist()) == ([4, 5, 6, 1, 2], [0, 3, 5])
    assert np.shares_memory(first.values, packed.values)
    assert (len(dummy), dummy.values.size) == (0, 0)
    assert (len(last), last.values.size) == (1, 0)
    # samples 0, 2 and 3, in this order
    assert [row.tolist() for row in packing.unpack(packed)] == [[1, 2], [], [4, 5, 6]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=20), st.integers(1, 3), st.integers(1, 900), st.data())
def test_columns_of_all_ranks_come_back_as_they_were(lengths, dp_size, budget, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    table = pa.table(
        {
            name: Ragged.from_lengths((rng.random(sum(lengths)) * 99).astype(kind), lengths).to_arrow()
            for name, kind in {"tokens": np.int32, "loss_mask": np.uint8, "advantages": np.float32}.items()
        }
    )
    (plan,) = plan_updates(lengths, dp_size=dp_size, max_tokens=budget, balance=True)
    for name in table.column_names:
        column = Ragged.from_arrow(table[name])
        parts = []
        for rank in plan.micro_batches:
            packing = Packing.of(rank)
            rows = packing.unpack(packing.pack(column))
            assert rows.equals(column.take(np.sort(packing.samples)))
            parts.append((packing.samples, packing.pack(column)))
        # all ranks' rows together, as after a gather
        together = Packing(np.concatenate([samples for samples, _ in parts]), np.array([0, len(lengths)]))
        back = together.unpack(Ragged.concat(packed for _, packed in parts))
        assert back.to_arrow().equals(table[name].combine_chunks())


def test_a_packed_column_may_be_written():
    column = Ragged.from_arrow(pa.array([[1, 2], [3]], pa.list_(pa.int32())))
    packed = Packing.of([[0, 1]]).pack(column)
    packed.values[0] = 9
    assert column[0].tolist() == [1, 2]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="in two micro-batches"):
        Packing.of([[0], [1, 0]])
    with pytest.raises(ValueError, match="1 rows for 2 samples"):
        Packing.of([[0, 1]]).unpack(Ragged.from_list([[1]], np.int32))


def test_ranks_without_samples_have_dummies_alone():
    packing = Packing.of([[], []])
    packed = packing.pack(Ragged.from_list([[1.0]], np.float32))
    assert (len(packing), len(packed), packed.dtype) == (2, 0, np.float32)
    assert len(packing.unpack(packed)) == 0
