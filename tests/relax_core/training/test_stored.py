"""A stored batch cut into the slices of its first global batch, and what tells a slice."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_batches import make_batch

from data.errors import UserError
from data.schema import BATCH, conform
from data.store import RunStore
from relax_core.training.batch import TrainingBatch
from relax_core.training.stored import StoredBatch, opened


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Eight samples in groups of two."""
    store = RunStore(tmp_path_factory.mktemp("stored"))
    return store.read_table(make_batch(store, "b", old_log_probs=lambda n: np.zeros(n.sum(), np.float32)))


def numbered(table: pa.Table, numbers: list[int | None]) -> pa.Table:
    return put(table, "slice", pa.array(numbers, pa.int32()))


def put(table: pa.Table, name: str, values: Any) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), values)


def test_slices_come_in_the_order_of_their_numbers_and_the_rest_behind_them(table: pa.Table) -> None:
    found = StoredBatch.from_table(numbered(table, [None, None, 1, 1, 0, 0, None, None]), 4)
    ids = table["sample_id"].to_pylist()
    assert [part.sample_ids for part in found.slices] == [ids[4:6], ids[2:4]]
    assert found.rest is not None
    assert found.rest.sample_ids == [*ids[:2], *ids[6:]]
    assert found.whole.sample_ids == [*ids[4:6], *ids[2:4], *ids[:2], *ids[6:]]


@pytest.mark.parametrize("samples", [8, None])
def test_rows_without_numbers_or_whose_numbers_do_not_count_stay_as_they_are(
    table: pa.Table, samples: int | None
) -> None:
    rows = numbered(table, [None] * 8 if samples else [1, 1, 0, 0] * 2)
    found = StoredBatch.from_table(rows, samples)
    assert (found.whole.sample_ids, found.slices, found.rest) == (table["sample_id"].to_pylist(), (), None)
    older = StoredBatch.from_table(table.drop_columns(["slice"]), samples)
    assert (older.whole.fingerprint(), older.slices) == (found.whole.fingerprint(), ())


@pytest.mark.parametrize(
    "numbers", [[0, 0, 2, 2] * 2, [1] * 8, [0] * 6 + [None] * 2, [0, 0, 0, 0, 1, 1, None, None]], ids=str
)
def test_numbers_that_are_no_global_batch_are_refused(table: pa.Table, numbers: list[int | None]) -> None:
    with pytest.raises(UserError, match="of a global batch of 8"):
        StoredBatch.from_table(numbered(table, numbers), 8)


@given(st.data())
def test_a_slice_is_told_by_its_content_however_it_was_cut(table: pa.Table, data: st.DataObject) -> None:
    groups = data.draw(st.permutations([0, 0, 1, 1]))
    rows = numbered(table, [number for number in groups for _ in range(2)])
    found = StoredBatch.from_table(rows, 8)
    for number, part in enumerate(found.slices):
        pieces = [rows.slice(2 * i, 1 + j).slice(j, 1) for i, of in enumerate(groups) if of == number for j in (0, 1)]
        handed_on = pa.concat_tables(pieces).drop_columns(["slice", "reward"])
        assert TrainingBatch.from_table(handed_on).fingerprint() == part.fingerprint()
        joined = conform(handed_on.combine_chunks(), BATCH)
        assert TrainingBatch.from_table(joined).fingerprint() == part.fingerprint()
    assert len({part.fingerprint() for part in (*found.slices, found.whole)}) == 3


READ = ("rollout_log_probs", "advantages", "returns", "old_log_probs", "tokens")


@pytest.mark.parametrize("column", READ)
def test_one_other_value_is_another_slice(table: pa.Table, column: str) -> None:
    rows = table[column].to_pylist()
    rows[3][-1] = np.nextafter(np.float32(rows[3][-1]), np.float32(9)) if column != "tokens" else rows[3][-1] ^ 1
    other = put(table, column, pa.array(rows, table.schema.field(column).type))
    assert TrainingBatch.from_table(other).fingerprint() != TrainingBatch.from_table(table).fingerprint()


def test_other_ids_and_masks_are_another_slice_and_a_reward_is_not(table: pa.Table) -> None:
    known = TrainingBatch.from_table(table).fingerprint()
    masks = table["loss_mask"].to_pylist()
    masks[0][0] ^= 1
    for column, values in (
        ("sample_id", [f"x{i}" for i in range(8)]),
        ("group_id", [f"x{i}" for i in range(8)]),
        ("loss_mask", pa.array(masks, table.schema.field("loss_mask").type)),
        ("old_log_probs", pa.nulls(8, table.schema.field("old_log_probs").type)),
    ):
        values = values if isinstance(values, pa.Array) else pa.array(values, pa.string())
        assert TrainingBatch.from_table(put(table, column, values)).fingerprint() != known, column
    rewarded = put(table, "reward", pa.array([0.5] * 8, pa.float32()))
    assert TrainingBatch.from_table(rewarded).fingerprint() == known


def test_rows_may_be_opened_where_they_are_used(table: pa.Table, tmp_path: Path) -> None:
    class Ticket:
        def open(self) -> pa.Table:
            return table

    assert opened(Ticket()) is table
    assert opened(table) is table
