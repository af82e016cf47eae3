"""What a manifest says, by hand."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data.store import RunStore
from relax_core.config import RelaxConfig, with_options
from relax_core.run.manifest import checkpoint_entry, count, manifest_content, other_files, random_state
from relax_core.run.records import StageRecord

ROLLOUT = pa.table(
    {
        "sample_id": ["a", "b", "c"],
        "group_id": ["g", "g", "h"],
        "status": ["completed", "truncated", "aborted"],
        "prompt_length": pa.array([3, 3, 4], pa.int32()),
        "response_length": pa.array([5, 8, 0], pa.int32()),
    }
)
REWARDS = pa.table({"sample_id": ["c", "a", "b"], "reward": pa.array([None, 1.0, 0.0], pa.float32())})
STEP = {
    "steps": 1,
    "samples": 3,
    "groups": 2,
    "prompt_tokens": 10,
    "response_tokens": 13,
    "scored": 2,
    "completed": 1,
    "truncated": 1,
    "aborted": 1,
    "failed": 0,
}


def test_counters_go_on_from_the_manifest_before() -> None:
    assert count(ROLLOUT, REWARDS, None) == STEP
    assert count(ROLLOUT, REWARDS, {"counters": STEP}) == {name: 2 * value for name, value in STEP.items()}
    assert count(ROLLOUT, REWARDS, {"step": 0}) == STEP  # of an earlier version


def test_an_empty_step_counts_nothing() -> None:
    empty = count(ROLLOUT.slice(0, 0), REWARDS.slice(0, 0), None)
    assert empty == {name: int(name == "steps") for name in STEP}


@pytest.fixture
def step(tmp_path: Path) -> tuple[RunStore, dict[str, StageRecord]]:
    """Step 4 as it is when its manifest is written."""
    store = RunStore(str(tmp_path / "run"))
    rollout = store.write_table("steps/000004/rollout.parquet", ROLLOUT)
    buffer = store.write_table("steps/000004/buffer.parquet", ROLLOUT.slice(0, 1))
    records = {
        "generate": StageRecord("generate", "k1", {"rollout": rollout, "buffer": buffer}),
        "train": StageRecord("train", "k2", {}, {"optimizer_step": 10}),
    }
    store.write_bytes("steps/000004/train.json", b"{}")
    store.write_bytes("steps/000004/stages/train.json", b"{1}")
    store.write_bytes("steps/000004/generate.parts/k1/0.parquet", b"part")
    return store, records


def content(store: RunStore, records: dict[str, StageRecord], **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "config": with_options(RelaxConfig(), {"rollout_seed": 7, "seed": 8}),
        "weights": {"version": 5, "id": "w"},
        "cursor": {"epoch": 0, "offset": 3, "groups": 3},
        "counters": STEP,
        "files": other_files(store, 4, records),
        "metrics": {"loss": 0.5},
        "seconds": {"train": 0.12345},
        "wall_seconds": 1.23456,
        "checkpoint": None,
    }
    return manifest_content(4, records, **values | changes)


def test_every_file_of_a_step_is_named_with_its_hash_but_for_parts(step: Any) -> None:
    store, records = step
    made = content(store, records)
    assert sorted(made["tables"]) == ["generate/buffer", "generate/rollout"]
    assert made["tables"]["generate/buffer"] == records["generate"].tables["buffer"].to_json()
    assert made["files"] == {
        "steps/000004/stages/train.json": {"bytes": 3, "sha256": hashlib.sha256(b"{1}").hexdigest()},
        "steps/000004/train.json": {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()},
    }
    assert made["stages"] == {"generate": "k1", "train": "k2"}


def test_all_that_the_next_step_needs_is_in_it(step: Any) -> None:
    made = content(*step)
    assert (made["step"], made["weights"], made["optimizer_step"]) == (4, {"version": 5, "id": "w"}, 10)
    assert made["cursor"] == {"epoch": 0, "offset": 3, "groups": 3}
    assert made["counters"] == STEP
    assert (made["rng"]["rollout_seed"], made["rng"]["seed"], made["rng"]["next_step"]) == (7, 8, 5)
    assert (made["seconds"], made["wall_seconds"]) == ({"train": 0.123}, 1.235)
    assert "critic" not in made
    assert content(*step, critic={"id": "c"})["critic"] == {"id": "c"}


def test_the_same_step_gives_the_same_content(step: Any) -> None:
    assert content(*step) == content(*step)
    assert random_state(RelaxConfig(), 4) == random_state(RelaxConfig(), 4)


def test_a_step_that_trained_nothing_has_no_optimiser_step(step: Any) -> None:
    store, records = step
    del records["train"]
    assert content(store, records)["optimizer_step"] == 0


def test_a_checkpoint_is_named_with_the_hash_of_its_marker(tmp_path: Path) -> None:
    RunStore(str(tmp_path)).write_bytes("iter_0000003/relax_state.json", b"marker")
    saved = {"iteration": 3, "url": str(tmp_path), "seconds": 0.1}
    assert checkpoint_entry(saved) == {**saved, "marker_sha256": hashlib.sha256(b"marker").hexdigest()}
    assert checkpoint_entry(None) is None


def test_a_file_that_is_no_table_and_was_changed_is_told_and_the_step_stays_complete(step: Any) -> None:
    store, records = step
    for number in range(4):
        store.write_manifest(number, {"step": number, "tables": {}})
    store.write_manifest(4, content(store, records))
    store.write_bytes("steps/000004/train.json", b"{")
    told: list[tuple[int, str]] = []
    assert store.last_complete_step(say=lambda step, text: told.append((step, text))) == 4
    assert told == [(4, "steps/000004: steps/000004/train.json is not as it was written; nothing needs it to go on.")]
