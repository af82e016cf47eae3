"""Manifests: which step a run goes on from."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from data import manifest
from data.store import RunStore, TableRef


@pytest.fixture
def steps(store: RunStore, batch: pa.Table) -> RunStore:
    """Steps 0, 1 and 2, complete."""
    for step in range(3):
        ref = store.write_table(store.step_path(step, "batch.parquet"), batch)
        store.write_manifest(step, {"step": step, "tables": {"batch": ref}, "eval": [{"set": "x", "table": ref}]})
    return store


def test_a_manifest_is_read_back_with_its_references(steps: RunStore) -> None:
    found = steps.read_manifest(1)
    assert found is not None
    refs = list(manifest.table_refs(found))
    assert refs == [TableRef.from_json(found["tables"]["batch"])] * 2
    assert all(steps.valid(ref) for ref in refs)
    assert steps.read_manifest(3) is None


def test_the_last_complete_step_of_whole_steps_is_the_newest(steps: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "data.manifest"):
        assert steps.last_complete_step() == 2
    assert not caplog.records


def test_an_empty_run_has_no_complete_step(store: RunStore) -> None:
    assert store.last_complete_step() is None


@pytest.mark.parametrize("damage", ["no manifest", "cut manifest", "not an object", "cut table", "no table"])
def test_an_incomplete_newest_step_is_ignored_with_a_warning(
    steps: RunStore, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    name, table = steps.step_path(2, "manifest.json"), steps.step_path(2, "batch.parquet")
    if damage == "no manifest":
        steps.delete(name)
    elif damage == "cut manifest":
        steps.write_bytes(name, steps.read_bytes(name)[:-10])
    elif damage == "not an object":
        steps.write_json(name, [1])
    elif damage == "cut table":
        steps.write_bytes(table, steps.read_bytes(table)[:-10])
    else:
        steps.delete(table)
    with caplog.at_level(logging.WARNING, "data.manifest"):
        assert steps.last_complete_step() == 1
    (record,) = caplog.records
    assert "steps/000002 is not finished" in record.getMessage()
    assert "goes on with it, from its first stage on" in record.getMessage()
    assert "later" not in record.getMessage()


def test_a_gap_ends_the_search_and_says_how_many_steps_lie_behind_it(
    steps: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    steps.delete(steps.step_path(1, "batch.parquet"))
    with caplog.at_level(logging.WARNING, "data.manifest"):
        assert steps.last_complete_step() == 0
    assert "steps/000001/batch.parquet is missing" in caplog.text
    assert "1 later step follows in the same way" in caplog.text


def test_it_is_said_after_which_stage_an_unfinished_step_goes_on(
    steps: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    steps.delete(steps.step_path(2, "manifest.json"))
    for stage in ("reward", "generate"):
        steps.write_json(steps.step_path(2, f"stages/{stage}.json"), {})
    assert steps.last_complete_step() == 1
    text = "steps/000002 is not finished (it has no manifest): the run goes on with it, after its stage reward"
    assert text in caplog.text


def test_a_step_that_is_gone_altogether_ends_the_search(steps: RunStore) -> None:
    steps.delete("steps/000001")
    assert steps.last_complete_step() == 0


def test_steps_before_the_first_that_matters_may_be_gone(steps: RunStore) -> None:
    steps.delete("steps/000000")
    assert steps.last_complete_step() is None
    assert steps.last_complete_step(first=1) == 2
    assert steps.last_complete_step(first=3) is None


def test_other_folders_among_the_steps_do_not_matter(steps: RunStore) -> None:
    steps.write_bytes("steps/notes/a.txt", b"x")
    steps.write_bytes("steps/readme.txt", b"x")
    assert steps.last_complete_step() == 2
