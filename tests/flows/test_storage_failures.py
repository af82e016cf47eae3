"""A storage that fails at any write or deletion, together with the loss of all actors: nothing that a recovery needs is
ever missing."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, Killed

from data.files import FileStore
from data.store import RunStore, TableRef
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.tracking.events import read_events
from relax_core.training.checkpoint_index import complete_iterations

pytestmark = pytest.mark.usefixtures("prefect_server")

STEPS = 5


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path, sums: Path) -> RelaxConfig:
    values = {
        "run_dir": str(tmp_path / "run"),
        "hf_checkpoint": str(tiny_model),
        "prompt_data": str(sums),
        "label_key": "label",
        "num_rollout": STEPS,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8,
        "rm_type": "random",
        "save_interval": 2,
        "max_actor_ckpt_to_keep": 1,
    }
    return with_options(RelaxConfig(), values)


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int, name: str) -> None:
    """Fail before the first write to, or deletion of, such a file once the manifest of the step before is there."""
    write, delete = FileStore.write_bytes, FileStore.delete

    def look(store: FileStore, path: str) -> None:
        if f"{step:06d}/{name}" in path or f"iter_{step:07d}/{name}" in path:
            raise Killed

    def writes(store: FileStore, path: str, *arguments: Any, **options: Any) -> None:
        look(store, path)
        write(store, path, *arguments, **options)

    def deletes(store: FileStore, path: str) -> None:
        look(store, path)
        delete(store, path)

    monkeypatch.setattr(FileStore, "write_bytes", writes)
    monkeypatch.setattr(FileStore, "delete", deletes)


def needed(store: RunStore) -> list[TableRef]:
    """Batches that a trainer which dies now has to be given again: of finished steps that no checkpoint covers."""
    covered = max((iteration for iteration, _ in complete_iterations(store.uri("checkpoints"))), default=-1)
    found, step = [], covered + 1
    while (manifest := store.read_manifest(step)) is not None:
        found.append(TableRef.from_json(manifest["tables"]["advantage/batch"]))
        step += 1
    return found


@pytest.mark.parametrize(
    ("step", "name", "redone"),
    [
        (2, "batch.parquet", []),  # the checkpoint of step 1 is there, and step 2 has trained nothing
        (2, "manifest.json", [2]),  # it has trained, and its batch is stored
        (3, "relax_state.json", [2, 3]),  # the second checkpoint is not complete
        (3, "manifest.json", []),  # it is complete, and the first is not deleted yet
        (1, "relax_state.json", [0, 1]),
    ],
)
def test_after_a_failure_of_the_storage_and_the_loss_of_all_actors_the_run_ends_with_the_same_weights(
    step: int, name: str, redone: list[int], settings: RelaxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.train import train

    backend, whole = FakeBackend(), FakeBackend()
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        fail_at(patch, step, name)
        train(settings, backend=backend)
    store = RunStore(str(settings.run.run_dir))
    assert store.read_manifest(step) is None
    assert all(store.valid(batch) for batch in needed(store))
    generated = backend.engine.generate_calls
    backend.lose_all()
    assert train(settings, backend=backend)["redone"] == redone
    assert [event["step"] for event in read_events(store, kind="retrained")] == redone
    causes = [event["cause"] for event in read_events(store, kind="rewind")]
    assert all("the run is at" in cause for cause in causes)
    train(with_options(settings, {"run_dir": f"{settings.run.run_dir}-whole"}), backend=whole)
    assert backend.trainer.weights == whole.trainer.weights
    assert backend.engine.generate_calls == whole.engine.generate_calls, generated
