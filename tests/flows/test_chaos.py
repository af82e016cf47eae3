"""Drivers that are killed at random moments, with SIGKILL: the short version of ``benchmarks/chaos.py``, on stand-ins
for engines and trainer in a process of their own. Other victims: ``tests/flows/test_kill.py``, and the benchmark.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from chaos_checks import SAME, mistakes, repeated  # noqa: E402
from chaos_parts import noting, read_notes, seconds_to_work  # noqa: E402

from data.store import RunStore  # noqa: E402
from relax_core.tracking.events import EventLog  # noqa: E402


@pytest.mark.parametrize(("mode", "kills"), [("sync", 12), ("async", 8)])
def test_killed_at_random_moments_runs_end_as_if_nothing_had_happened(mode: str, kills: int, tmp_path: Path) -> None:
    """The benchmark exits with 0 only where it found no mistake."""
    command = [sys.executable, str(ROOT / "benchmarks/chaos.py"), "--fakes", "--mode", mode, "--kills", str(kills)]
    command += ["--steps", "4", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{kills} kills" in done.stdout
    assert "finished samples generated again: 0" in done.stdout


@pytest.mark.parametrize(
    ("notes", "wrong"),
    [
        ([{"pid": 1, "has": []}, {"pid": 1, "ask": 7}, {"pid": 2, "has": []}, {"pid": 2, "ask": 7}], []),
        ([{"pid": 1, "has": []}, {"pid": 1, "ask": 7}, {"pid": 2, "has": [7]}, {"pid": 2, "ask": 7}], [7]),
        (
            [{"pid": 1, "has": [8]}, {"pid": 1, "ask": 7}, {"pid": 1, "got": 7, "whole": True}, {"pid": 1, "ask": 7}],
            [7],
        ),
        ([{"pid": 1, "has": []}, {"pid": 1, "got": 7, "whole": False}, {"pid": 1, "ask": 7}], []),
    ],
    ids=["lost with its driver", "kept, and asked again", "answered, and asked again", "aborted, and gone on with"],
)
def test_a_sample_that_is_generated_again_is_seen(notes: list[dict], wrong: list[int]) -> None:
    assert repeated(notes) == wrong


def written(path: Path, rows: list[list[tuple[str, int]]], updates: list[int]) -> RunStore:
    """A run: for each step its samples with the version that made them, and the optimiser steps after it."""
    store = RunStore(str(path))
    for step, its in enumerate(rows):
        columns = {name: [sample for sample, _ in its] for name in SAME}
        table = pa.table(columns | {"token_versions": [[version] * 2 for _, version in its]})
        for name in ("rollout", "reward", "batch"):
            store.write_table(store.step_path(step, f"{name}.parquet"), table)
        store.write_json(store.step_path(step, "train.json"), {"metrics": {}})
        store.write_manifest(step, {"optimizer_step": updates[step]})
        store.append_jsonl("metrics.jsonl", {"step": step})
    return store


def test_the_checks_of_a_run_see_what_is_wrong(tmp_path: Path) -> None:
    """Two steps of two rows: the second has a row of the first, and has been trained twice."""
    store = written(tmp_path / "run", [[("a", 0), ("b", 0)], [("b", 1), ("c", 1)]], [2, 5])
    assert mistakes(store, 2, 2, 2, None) == ["step 1: 5 optimiser steps instead of 4", "b is there 2 times"]
    assert "step 2 has no manifest" in mistakes(store, 3, 2, 2, None)


def test_the_checks_of_overlapping_steps_see_other_samples_and_weights_that_are_too_old(tmp_path: Path) -> None:
    """Step 2 may have tokens of versions 1 and 2; which of them made a token differs from run to run."""
    left_alone = written(tmp_path / "alone", [[("a", 0)], [("b", 1)], [("c", 2)]], [1, 2, 3])
    right = written(tmp_path / "right", [[("a", 0)], [("b", 0)], [("c", 1)]], [1, 2, 3])
    assert mistakes(right, 3, 1, 1, left_alone, staleness=1) == []
    assert any("differs" in text for text in mistakes(right, 3, 1, 1, left_alone))
    wrong = written(tmp_path / "wrong", [[("a", 0)], [("d", 0)], [("c", 0)]], [1, 2, 3])
    assert mistakes(wrong, 3, 1, 1, left_alone, staleness=1) == [
        "steps/000001/rollout.parquet differs from the undisturbed run's",
        "step 2 has tokens of the versions [0]",
    ]


def test_time_to_useful_work_is_that_of_the_first_request_or_stage(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path / "run"))
    EventLog(store).add("driver_started")
    notes = [{"time": 10.0, "ask": 1}, {"time": 12.5, "got": 1}, {"time": 14.0, "ask": 2}]
    assert seconds_to_work(11.0, notes, store) == 3.0
    assert seconds_to_work(15.0, notes, store) is None


def test_an_answer_that_was_aborted_is_noted_as_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relax_core.engines.client import Completion, EngineClient

    async def generate(client: object, input_ids: object, params: dict) -> Completion:
        nothing = np.zeros(0)
        return Completion(nothing, nothing, {"type": params["ends"]}, "1", ("1",), 1, 0)

    monkeypatch.setattr(EngineClient, "generate", generate)
    with noting(RunStore(str(tmp_path / "run")), tmp_path / "notes"):
        for seed, reason in enumerate(("stop", "length", "abort")):
            asyncio.run(EngineClient.generate(None, [1], {"sampling_seed": seed, "ends": reason}))
    got = {note["got"]: note["whole"] for note in read_notes(tmp_path / "notes") if "got" in note}
    assert got == {0: True, 1: True, 2: False}
