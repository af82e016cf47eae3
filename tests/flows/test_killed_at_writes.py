"""A driver that is stopped before any of its writes: the run goes on, and ends as one that was never stopped.

One run goes through them all: each driver is stopped at the first thing that no driver before it was about to write,
and the next one goes on, so that nothing tidies up after a kill but the following start. Real files, records and
recovery; fake engines; flows and tasks as plain functions (``tests/loop.py``).
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, Killed
from loop import Asked, Writes, run_plain

from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.run.records import StageRecords
from relax_core.tracking.events import read_events
from relax_core.tracking.jsonl import read_metrics

STEPS = 3


def config(run_dir: Path | str, model: Path, prompts: Path, **changes: Any) -> RelaxConfig:
    return RelaxConfig.model_validate(
        {
            "run": {"run_dir": str(run_dir)},
            "checkpoint": {"hf_checkpoint": str(model), "save_interval": 2},
            "data": {"prompt_data": str(prompts), "label_key": "label", "rollout_shuffle": True},
            "rollout": {
                "num_rollout": STEPS,
                "rollout_batch_size": 3,
                "n_samples_per_prompt": 2,
                "rollout_max_response_len": 8,
            },
            "reward": {"rm_type": "random"},
            **changes,
        }
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sums: Path) -> tuple[FakeBackend, RunStore]:
    """The run that nobody stops."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    backend = FakeBackend()
    run_plain(config(folder, tiny_model, sums), backend)
    return backend, RunStore(str(folder))


def rows(store: RunStore, step: int) -> list[tuple[str, int]]:
    """Sample ids and seeds of a step."""
    table = store.read_table(store.step_path(step, "rollout.parquet"))
    return list(zip(table["sample_id"].to_pylist(), table["seed"].to_pylist(), strict=True))


def finished_seeds(store: RunStore) -> set[int]:
    """Of the samples whose generation is recorded."""
    records = StageRecords(store)
    return {seed for step in range(STEPS) if records.last(step, "generate") for _, seed in rows(store, step)}


class Visits:
    """Stops each driver at the first write that is not known yet."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def drivers(self) -> Iterator[Writes]:
        while True:
            fresh: list[str] = []

            def counts(path: str, fresh: list[str] = fresh) -> bool:
                name = re.sub(r"[0-9a-f]{32}", "*", path)  # probes and parts have names of their own
                if name.startswith("driver-beat") or name in self.known:
                    return False
                self.known.add(name)
                fresh.append(name)
                return True

            yield Writes(0, counts, torn=True)
            if not fresh:
                return


@pytest.mark.parametrize("lose", [False, True], ids=["engines survive", "engines die each time"])
def test_stopped_before_every_write_the_run_ends_the_same(
    lose: bool, reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend, store, kills = FakeBackend(), RunStore(str(tmp_path / "run")), 0
    settings = config(tmp_path / "run", tiny_model, sums)
    again: list[int] = []
    for writes in Visits().drivers():
        done = finished_seeds(store)
        with Asked() as asked, writes:
            try:
                run_plain(settings, backend)
            except Killed:
                kills += 1
        again += [seed for seed in asked.seeds if seed in done]
        if lose:
            backend.lose_all()
    assert kills > 8 * STEPS, "each step has nine files at least"
    assert again == [], "a finished sample was generated again"
    expected_backend, expected = reference
    applied = backend.trainer.applied
    if not lose:
        assert applied == expected_backend.trainer.applied, "an update was applied twice, or lost"
    assert set(applied) == set(expected_backend.trainer.applied), "an update had another result"
    for step in range(STEPS):
        for name in ("rollout.parquet", "reward.parquet", "batch.parquet", "train.json"):
            path = store.step_path(step, name)
            assert store.read_bytes(path) == expected.read_bytes(path), path
        assert max(Counter(name for name, _ in rows(store, step)).values()) == 1
        mine, theirs = store.read_manifest(step), expected.read_manifest(step)
        assert mine is not None
        assert theirs is not None
        same = ("weights", "optimizer_step", "cursor", "counters", "rng", "tables", "stages")
        assert [mine[name] for name in same] == [theirs[name] for name in same]
    assert [line["step"] for line in read_metrics(store)] == list(range(STEPS))
    assert len(read_events(store, kind="driver_started")) > kills / 2
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_first_thing_that_engines_hear_after_a_kill_is_the_weights(
    reference: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """Everything is lost in step 1: new engines get version 1 before the first request."""
    backend, settings = FakeBackend(), config(tmp_path / "run", tiny_model, sums)
    with pytest.raises(Killed), Writes(0, lambda path: path.endswith("000001/rollout.parquet")):
        run_plain(settings, backend)
    backend.lose_all()
    backend.engine.events.clear()
    with Asked(backend.engine.events):
        run_plain(settings, backend)
    told = [event for event in backend.engine.events if event != "abort_all"]
    assert told[:2] == ["push 1", "request"]


def test_a_write_that_fails_leaves_a_run_that_goes_on(
    reference: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """Where a kill may tear a line, the next driver adds a whole one behind it."""
    backend, settings = FakeBackend(), config(tmp_path / "run", tiny_model, sums)
    seen = [0]

    def fifth_event(path: str) -> bool:
        seen[0] += path == "events.jsonl"
        return seen[0] == 5

    with pytest.raises(Killed), Writes(0, fifth_event, torn=True):
        run_plain(settings, backend)
    assert b'"kind": "sta' in (tmp_path / "run/events.jsonl").read_bytes().splitlines()[-1]
    run_plain(settings, backend)
    assert backend.trainer.applied == reference[0].trainer.applied
    ends = [event["kind"] for event in read_events(RunStore(str(tmp_path / "run")))][-1]
    assert ends == "driver_ended"
