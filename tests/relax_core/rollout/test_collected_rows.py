"""Rows that are made and kept while others are generated: the same table, whatever came when; kept over a kill."""

import logging
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.prompts import Prompt
from data.schema import ROLLOUT
from data.store import RunStore
from relax_core.rollout import collect
from relax_core.rollout.collect import Collector, Kept
from relax_core.rollout.generate import Generated
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.table import rollout_table

NOTHING = ROLLOUT.empty_table()


class Letters:
    """Token i is the i-th letter. Remembers what it decoded."""

    def __init__(self) -> None:
        self.decoded: list[int] = []

    def batch_decode(self, sequences, **options):
        self.decoded += [row[0] for row in sequences if row]
        return ["".join(chr(97 + i % 26) for i in row) for row in sequences]


def result(k: int, status: str = "completed", length: int | None = None, version: int = 4) -> Generated:
    """Sample k: its first token is k, and it has k % 4 + 1 tokens; every third one has no label."""
    prompt = Prompt(f"{k:08d}", "two plus", np.array([5, 6, 7], np.int32), None if k % 3 == 0 else f"{k}", {"k": k})
    request = SampleRequest(f"s{k}", f"g{k // 2}", prompt, seed=100 + k, k=k % 2, index=k, group_index=k // 2)
    length = k % 4 + 1 if length is None else length
    output = np.array([k, *range(length - 1)][:length], np.int32)
    return Generated(request, output, np.full(length, -0.5, np.float32), status, "stop", (version,) if length else ())


def maker(letters: Letters | None = None):
    return partial(rollout_table, step=1, version=4, tokenizer=letters or Letters())


def ids(count: int) -> list[str]:
    return [f"s{k}" for k in range(count)]


@given(order=st.permutations(range(9)), before=st.sets(st.integers(0, 8)), empty=st.sets(st.integers(0, 8)))
@settings(deadline=None, max_examples=40)
def test_the_table_is_that_of_all_results_together(order: list[int], before: set[int], empty: set[int]) -> None:
    """Bit by bit as a file, whatever arrived when and whatever was kept before."""
    results = [result(k, length=0 if k in empty else None) for k in range(9)]
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(folder)
        whole = store.write_table("whole.parquet", maker()(results))
        kept = Kept(store, 1, "run.step.generate.abc")
        for k in order:
            if k in before:
                kept.write(maker()([results[k]]))
        rows = kept.read(ids(9))
        assert sorted(rows["sample_id"].to_pylist()) == sorted(f"s{k}" for k in before)
        collector = Collector(maker(), kept, rows)
        for k in order:
            if k not in before:
                collector.add(results[k])
        again = store.write_table("again.parquet", collector.table(ids(9)))
        assert again.sha256 == whole.sha256


def test_what_is_finished_is_kept_while_others_are_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "KEEP_SECONDS", 0.05)
    written = threading.Event()
    store, letters = RunStore(str(tmp_path)), Letters()
    kept = Kept(store, 1, "abc")
    real = kept.write
    monkeypatch.setattr(kept, "write", lambda rows: (real(rows), written.set()))
    collector = Collector(maker(letters), kept, NOTHING)
    collector.add(result(0))
    assert written.wait(20)
    # the process is killed here: another one finds the sample
    assert Kept(store, 1, "abc").read(ids(3))["sample_id"].to_pylist() == ["s0"]
    collector.add(result(1))
    assert collector.table(ids(2)).num_rows == 2
    assert letters.decoded == [0, 1], "each response is decoded once"


def test_a_generation_that_fails_keeps_what_is_finished_but_nothing_that_was_cut_off(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    collector = Collector(maker(), Kept(store, 1, "abc"), NOTHING)
    for k, status in enumerate(["completed", "truncated", "aborted", "failed"]):
        collector.add(result(k, status))
    collector.close()
    assert Kept(store, 1, "abc").read(ids(4))["status"].to_pylist() == ["completed", "truncated"]


def test_parts_of_another_generation_and_of_other_samples_are_not_taken(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    Kept(store, 1, "run.step.generate.abc").write(maker()([result(0), result(1)]))
    assert Kept(store, 1, "run.step.generate.abd").read(ids(2)).num_rows == 0
    assert Kept(store, 2, "run.step.generate.abc").read(ids(2)).num_rows == 0
    assert Kept(store, 1, "run.step.generate.abc").read(["s1", "s7"])["sample_id"].to_pylist() == ["s1"]


def test_a_sample_that_was_kept_twice_counts_once(tmp_path: Path) -> None:
    kept = Kept(RunStore(str(tmp_path)), 1, "abc")
    kept.write(maker()([result(0), result(1)]))
    kept.write(maker()([result(1), result(2)]))
    assert sorted(kept.read(ids(3))["sample_id"].to_pylist()) == ids(3)


@pytest.mark.parametrize("damage", [b"", b"PAR1 and no more", None])
def test_a_part_that_cannot_be_read_is_left_out_with_a_warning(tmp_path: Path, damage: bytes | None) -> None:
    store, told = RunStore(str(tmp_path)), list[str]()
    kept = Kept(store, 1, "abc")
    kept.write(maker()([result(0)]))
    if damage is None:
        store.write_table(f"steps/000001/{collect.FOLDER}/abc/other.parquet", pa.table({"sample_id": ["s1"]}))
    else:
        store.write_bytes(f"steps/000001/{collect.FOLDER}/abc/broken.parquet", damage)
    assert kept.read(ids(2), told.append)["sample_id"].to_pylist() == ["s0"]
    assert len(told) == 1
    kept.delete()
    assert kept.read(ids(2)).num_rows == 0


def test_an_error_of_a_row_is_raised_when_the_table_is_asked_for(tmp_path: Path) -> None:
    collector = Collector(maker(), Kept(RunStore(str(tmp_path)), 1, "abc"), NOTHING)
    collector.add(result(0, version=3))
    with pytest.raises(UserError, match="weights of version 3"):
        collector.table(ids(1))


def test_a_folder_that_cannot_be_written_fails_no_generation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "steps").write_text("in the way")
    collector = Collector(maker(), Kept(RunStore(str(tmp_path)), 1, "abc"), NOTHING)
    collector.add(result(0))
    with caplog.at_level(logging.WARNING):
        collector.close()
    assert "finished samples are not kept" in caplog.text


def test_new_rows_are_handed_on_in_batches(tmp_path: Path) -> None:
    got: list[pa.Table] = []
    collector = Collector(maker(), Kept(RunStore(str(tmp_path)), 1, "abc"), maker()([result(0)]), got.append)
    collector.add(result(2))
    collector.add(result(1))
    assert collector.table(ids(3))["sample_id"].to_pylist() == ids(3)
    assert sorted(name for rows in got for name in rows["sample_id"].to_pylist()) == ["s1", "s2"]
