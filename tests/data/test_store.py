"""The run store: tables and their references on every kind of file system."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import UserError
from data.ragged import Ragged
from data.schema import BATCH, SCHEMA_KEY
from data.store import RunStore, TableRef


def test_a_table_is_read_back_as_it_was_written(store: RunStore, batch: pa.Table) -> None:
    ref = store.write_table(store.step_path(12, "batch.parquet"), batch)
    assert ref.path == "steps/000012/batch.parquet"
    assert (ref.rows, ref.schema) == (3, "batch/3")
    data = store.read_bytes(ref.path)
    assert (len(data), hashlib.sha256(data).hexdigest()) == (ref.bytes, ref.sha256)
    for source in (ref, ref.path):
        back = store.read_table(source)
        assert back.equals(batch)
        assert back.schema.equals(BATCH, check_metadata=True)
    assert Ragged.from_arrow(store.read_table(ref)["tokens"])[1].tolist() == [5, 6, 7]


def test_some_columns_can_be_read(store: RunStore, batch: pa.Table) -> None:
    ref = store.write_table("batch.parquet", batch)
    assert store.read_table(ref, ["reward", "sample_id"]).column_names == ["reward", "sample_id"]
    assert store.read_table(ref, []).num_columns == 0
    with pytest.raises(UserError, match=r"batch\.parquet has no column 'rewards'"):
        store.read_table(ref, ["rewards"])


def test_a_valid_reference_stays_valid_and_a_changed_file_does_not(store: RunStore, batch: pa.Table) -> None:
    ref = store.write_table("t.parquet", batch)
    assert store.valid(ref)
    assert store.valid(ref)
    whole = store.read_bytes("t.parquet")
    flipped = bytes([*whole[:100], whole[100] ^ 1, *whole[101:]])
    for damaged in (whole[:-1], whole + b"x", b"", flipped):
        store.write_bytes("t.parquet", damaged)
        assert not store.valid(ref)
        with pytest.raises(UserError, match="is not the file that the run's records name"):
            store.read_table(ref)
    store.write_bytes("t.parquet", whole)
    assert store.valid(ref)
    store.delete("t.parquet")
    assert not store.valid(ref)
    with pytest.raises(UserError, match=r"t\.parquet is missing"):
        store.read_table(ref)
    with pytest.raises(UserError, match=r"t\.parquet is missing"):
        store.read_table("t.parquet")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"PAR1", lambda data: b""])
def test_a_truncated_table_is_explained(store: RunStore, batch: pa.Table, damage: Callable[[bytes], bytes]) -> None:
    store.write_table("t.parquet", batch)
    store.write_bytes("t.parquet", damage(store.read_bytes("t.parquet")))
    with pytest.raises(UserError, match=r"t\.parquet is not a whole Parquet file.*Start the run again"):
        store.read_table("t.parquet")


def test_a_verdict_is_remembered_until_the_file_is_touched(
    tmp_path: Path, batch: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path)
    ref = store.write_table("t.parquet", batch)
    file = tmp_path / "t.parquet"
    os.utime(file, (1_000_000, 1_000_000))  # long settled
    reads: list[str] = []
    read_bytes = RunStore.read_bytes

    def counted(self: RunStore, path: str) -> bytes:
        reads.append(path)
        return read_bytes(self, path)

    monkeypatch.setattr(RunStore, "read_bytes", counted)
    assert [store.valid(ref) for _ in range(3)] == [True] * 3
    assert reads == ["t.parquet"]
    content = bytearray(file.read_bytes())
    content[50] ^= 1
    file.write_bytes(content)  # same size, new time
    assert not store.valid(ref)


def test_the_same_rows_give_the_same_bytes_however_they_are_chunked(tmp_path: Path, batch: pa.Table) -> None:
    store = RunStore(tmp_path)
    first = store.write_table("a.parquet", batch)
    chunked = pa.concat_tables([batch.slice(0, 1), batch.slice(1)])
    extra = batch.replace_schema_metadata({SCHEMA_KEY: b"batch/3", b"written": b"today"})
    larger = pa.concat_tables([batch, batch]).combine_chunks()
    for name, same in (("b", chunked), ("c", extra), ("d", larger.slice(3))):
        assert store.write_table(f"{name}.parquet", same).sha256 == first.sha256


def test_another_process_gives_the_same_bytes(tmp_path: Path, batch: pa.Table) -> None:
    ref = RunStore(tmp_path).write_table("a.parquet", batch)
    code = (
        "import sys; from data.store import RunStore; store = RunStore(sys.argv[1]);"
        "print(store.write_table('b.parquet', store.read_table('a.parquet')).sha256)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ref.sha256


def test_a_table_without_a_schema_of_ours_is_stored_too(store: RunStore) -> None:
    plain = pa.table({"x": [1, 2]})
    ref = store.write_table("x.parquet", plain)
    assert ref.schema == ""
    assert store.read_table(ref).equals(plain)


def test_an_empty_table_is_stored_too(store: RunStore) -> None:
    ref = store.write_table("x.parquet", BATCH.empty_table())
    assert ref.rows == 0
    assert len(Ragged.from_arrow(store.read_table(ref)["tokens"])) == 0


@pytest.mark.parametrize(
    ("kind", "says"), [("batch/4", "newer version"), ("surprise/1", "unknown kind"), ("batch/x", "unknown kind")]
)
def test_tables_of_another_version_are_refused(store: RunStore, batch: pa.Table, kind: str, says: str) -> None:
    ref = store.write_table("t.parquet", batch.replace_schema_metadata({SCHEMA_KEY: kind.encode()}))
    with pytest.raises(UserError, match=says):
        store.read_table(ref)


def test_duckdb_and_pandas_open_the_file(tmp_path: Path, batch: pa.Table) -> None:
    store = RunStore(tmp_path)
    store.write_table("t.parquet", batch)
    path = store.local_path("t.parquet")
    rows = (
        duckdb.connect()
        .execute(f"select sample_id, reward, advantages, len(tokens) from '{path}' order by 1")
        .fetchall()
    )
    assert rows == [
        ("000000-0000-000", 1.0, [1.0], 2),
        ("000000-0000-001", None, [2.0, 3.0], 3),
        ("000000-0001-000", 0.0, [], 1),
    ]
    frame = pd.read_parquet(path)
    assert [tokens.tolist() for tokens in frame["tokens"]] == [[5, 6], [5, 6, 7], [8]]
    np.testing.assert_array_equal(frame["reward"], [1.0, np.nan, 0.0])


def test_a_file_holds_neither_dictionary_nor_statistics(tmp_path: Path, batch: pa.Table) -> None:
    RunStore(tmp_path).write_table("t.parquet", batch)
    column = pq.read_metadata(tmp_path / "t.parquet").row_group(0).column(2)
    assert (column.compression, column.is_stats_set, column.has_dictionary_page) == ("ZSTD", False, False)


def test_a_reference_goes_through_json_in_any_order() -> None:
    ref = TableRef("steps/000000/rollout.parquet", 3, 100, "ab" * 32, "rollout/1")
    obj = dict(sorted(json.loads(json.dumps(ref.to_json())).items(), reverse=True))
    assert TableRef.from_json({**obj, "later": 1}) == ref
    del obj["sha256"]
    with pytest.raises(UserError, match="lacks 'sha256'"):
        TableRef.from_json(obj)


def test_a_store_can_be_sent_to_another_process(store: RunStore, batch: pa.Table) -> None:
    ref = store.write_table("t.parquet", batch)
    assert pickle.loads(pickle.dumps(store)).read_table(ref).equals(batch)
