"""A run is gone on with somewhere else, on something else: nothing but the run directory is needed.

Fake engines where they do not matter, the real flow under Prefect where that is what is lost.
"""

import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, FakeEngine, FakeEngines, FakeTrainer, Killed, Stopper
from loop import Asked, Writes, run_plain

from data.store import RunStore
from relax_core.config import RelaxConfig, with_options
from relax_core.run import lock
from relax_core.tracking.events import read_events
from relax_core.weights.label import weight_label

STEPS = 3


def config(run_dir: Path | str, model: Path, prompts: Path, **options: Any) -> RelaxConfig:
    values = {
        "run_dir": str(run_dir),
        "hf_checkpoint": str(model),
        "save_interval": 2,
        "prompt_data": str(prompts),
        "label_key": "label",
        "rollout_shuffle": True,
        "num_rollout": STEPS,
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8,
        "rm_type": "random",
    }
    return with_options(RelaxConfig(), values | options)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sums: Path) -> tuple[FakeBackend, RunStore]:
    """The run that stays where it is."""
    folder, backend = tmp_path_factory.mktemp("reference") / "run", FakeBackend()
    run_plain(config(folder, tiny_model, sums), backend)
    return backend, RunStore(str(folder))


def same_tables(store: RunStore, reference: tuple[FakeBackend, RunStore]) -> None:
    for step in range(STEPS):
        for name in ("rollout.parquet", "reward.parquet", "batch.parquet"):
            path = store.step_path(step, name)
            assert store.read_bytes(path) == reference[1].read_bytes(path), path


@pytest.mark.usefixtures("prefect_server")
def test_a_run_needs_nothing_of_prefects_database(
    reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun under a Prefect server; after the kill no server, no database and no home of Prefect is there; then it is
    ended under a server that has never heard of it."""
    from flows.train import train

    settings, backend = config(tmp_path / "run", tiny_model, sums), FakeBackend()
    Stopper(monkeypatch, 1, "train")
    with pytest.raises(Killed):
        train(settings.model_copy(deep=True), backend=backend)
    with pytest.raises(Killed), Asked() as without, Writes(0, lambda path: path.endswith("000001/manifest.json")):
        run_plain(settings, backend)
    assert without.seeds == []
    with Asked() as asked:
        train(settings.model_copy(deep=True), backend=backend)
    assert len(asked.seeds) == 6  # those of step 2
    assert backend.trainer.applied == reference[0].trainer.applied
    same_tables(RunStore(str(tmp_path / "run")), reference)


def test_another_machine_goes_on_with_a_run_on_s3(
    reference: Any, tmp_path: Path, s3_endpoint: str, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second machine has another name, another home, another working directory, and neither engines nor files of
    the first; the claim of the driver that died over there is given up when no sign of it comes."""
    url = f"s3://runs/{uuid.uuid4().hex}"
    with pytest.raises(Killed), Writes(0, lambda path: path.endswith("000002/batch.parquet")):
        run_plain(config(url, tiny_model, sums), FakeBackend())
    store = RunStore(url)
    assert store.read_json("driver.json")["host"] == socket.gethostname()
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RELAX_HOME", str(tmp_path / "home/relax"))
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(socket, "gethostname", lambda: "another-machine")
    monkeypatch.setattr(lock, "_machine", lambda: "another boot")
    monkeypatch.setattr(lock, "LATE_SECONDS", 0.4)
    other = FakeBackend()
    with Asked() as asked:
        run_plain(config(url, tiny_model, sums), other)
    assert asked.seeds == []  # the samples of step 2 are in the bucket
    assert [version for version, _ in other.trainer.applied] == [3]  # from the checkpoint of step 1
    assert other.trainer.weights == reference[0].trainer.weights
    same_tables(store, reference)
    assert {event["host"] for event in read_events(store)} > {"another-machine"}
    assert store.read_json("driver.json") == {"epoch": 2}


class ManyEngines(FakeEngines):
    """Several engines as one port."""

    def __init__(self, engines: list[FakeEngine]) -> None:
        super().__init__(engines[0])
        self.urls = [engine.url for engine in engines]


class Fleet(FakeBackend):
    """A trainer and ``count`` engines, all of which get its weights."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.engines = [self.engine, *(FakeEngine() for _ in range(count - 1))]
        self.trainer = FleetTrainer(self.engine, self.engines)

    def ensure(self, critic: bool = False) -> Any:
        return self.trainer, ManyEngines(self.engines)

    @property
    def calls(self) -> list[int]:
        return [engine.generate_calls for engine in self.engines]


class FleetTrainer(FakeTrainer):
    def __init__(self, engine: FakeEngine, engines: list[FakeEngine]) -> None:
        super().__init__(engine)
        self.engines = engines

    def push_weights(self, version: int, urls: list[str], weights_id: str) -> dict[str, Any]:
        for engine in self.engines:
            engine.label, engine.weights = weight_label(version, weights_id), self.weights
        return super().push_weights(version, urls, weights_id)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)], ids=["more engines", "fewer engines"])
def test_a_run_goes_on_with_another_number_of_engines(
    before: int, after: int, reference: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    run = tmp_path / "run"
    first, second = Fleet(before), Fleet(after)
    with pytest.raises(Killed), Writes(0, lambda path: path.endswith("000001/batch.parquet")):
        run_plain(config(run, tiny_model, sums, resource={"actor": (1, 1), "rollout": (1, before)}), first)
    run_plain(config(run, tiny_model, sums, resource={"actor": (1, 1), "rollout": (1, after)}), second)
    assert [sum(fleet.calls) for fleet in (first, second)] == [12, 6]
    assert all(first.calls)
    assert all(second.calls)
    assert second.trainer.weights == reference[0].trainer.weights
    same_tables(RunStore(str(run)), reference)


def test_a_run_goes_on_under_another_parallel_layout(
    reference: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """Two ranks with halves of each matrix, where one had all: the options are taken, and nothing is made again.

    That the real trainer reads a checkpoint and stored batches under another layout: tests of the trainer.
    """
    run = tmp_path / "run"
    with pytest.raises(Killed), Writes(0, lambda path: path.endswith("000002/train.json")):
        run_plain(config(run, tiny_model, sums), FakeBackend())
    other = config(run, tiny_model, sums, tensor_model_parallel_size=2, resource={"actor": (1, 2), "rollout": (1, 1)})
    backend = FakeBackend()
    with Asked() as asked:
        run_plain(other, backend)
    assert asked.seeds == []
    assert [version for version, _ in backend.trainer.applied] == [3]  # from the checkpoint of step 1
    assert backend.trainer.weights == reference[0].trainer.weights
