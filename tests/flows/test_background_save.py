"""Checkpoints that are written in the background: manifests name complete ones only, and a kill loses none that it
names."""

from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, FakeTrainer, Killed, Stopper

from data.store import RunStore
from relax_core.config import RelaxConfig, with_options
from relax_core.training.checkpoint_index import complete_iterations

pytestmark = pytest.mark.usefixtures("prefect_server")


class SlowTrainer(FakeTrainer):
    """Its checkpoints become complete in the second call of ``train`` after they were begun, or when they must."""

    def initialise(self) -> None:
        super().initialise()
        self.begun: list[Any] = []

    def train(self, *arguments: Any) -> dict[str, Any]:
        if self.begun:
            self.begun[0] -= 1
            if not self.begun[0]:
                self.finish_save()
        return super().train(*arguments)

    def save(self, url: str, iteration: int) -> dict[str, Any]:
        self.finish_save()
        super().save(url, iteration)
        store, name = RunStore(url), f"iter_{iteration:07d}/relax_state.json"
        self.begun = [2, store, name, store.read_bytes(name)]
        store.delete(name)
        return {"seconds": 0.0}

    def finish_save(self) -> dict[str, Any]:
        if self.begun:
            _, store, name, marker = self.begun
            store.write_bytes(name, marker)
            self.begun = []
        return {}


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path, sums: Path) -> RelaxConfig:
    values = {
        "run_dir": str(tmp_path / "run"),
        "hf_checkpoint": str(tiny_model),
        "prompt_data": str(sums),
        "label_key": "label",
        "num_rollout": 6,
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8,
        "rm_type": "random",
        "save_interval": 2,
        "async_save": True,
    }
    return with_options(RelaxConfig(), values)


def backend() -> FakeBackend:
    made = FakeBackend()
    made.trainer = SlowTrainer(made.engine)
    return made


def named(store: RunStore) -> list[int | None]:
    """The checkpoint that each step's manifest names."""
    manifests = (store.read_manifest(step) or {} for step in range(6))
    return [manifest["checkpoint"] and manifest["checkpoint"]["iteration"] for manifest in manifests]


def test_a_manifest_names_what_is_complete_and_the_last_checkpoint_is_waited_for(settings: RelaxConfig) -> None:
    from flows.train import train

    train(settings, backend=backend())
    store = RunStore(str(settings.run.run_dir))
    # begun after the steps 1, 3 and 5; each is complete when the next one begins, the last when the run ends
    assert named(store) == [None, None, None, 1, None, 5]
    assert [iteration for iteration, _ in complete_iterations(store.uri("checkpoints"))] == [5, 3, 1]


def test_a_kill_while_one_is_written_costs_no_update(settings: RelaxConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.train import train

    whole = backend()
    train(with_options(settings, {"run_dir": f"{settings.run.run_dir}-whole"}), backend=whole)
    killed = backend()
    Stopper(monkeypatch, 4, "generate")
    with pytest.raises(Killed):
        train(settings, backend=killed)
    checkpoints = RunStore(str(settings.run.run_dir)).uri("checkpoints")
    assert [iteration for iteration, _ in complete_iterations(checkpoints)] == [1]  # that of step 3 is not finished
    applied = killed.trainer.applied
    killed.engine.label, killed.engine.weights = "default", "start"
    killed.trainer = SlowTrainer(killed.engine)
    killed.trainer.applied = applied
    result = train(settings, backend=killed)
    assert result["redone"] == [2, 3]
    assert killed.trainer.weights == whole.trainer.weights
    assert [iteration for iteration, _ in complete_iterations(checkpoints)] == [5, 1]
