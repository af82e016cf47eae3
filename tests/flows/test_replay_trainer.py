"""A replay with the real trainer: a run of PPO that real trainers and a fake engine recorded, update for update."""

from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, FakeEngine
from passes import config
from recorded_runs import OPTIONS, files

from flows.launch import checked
from relax_core.replay.changes import one_process
from relax_core.replay.columns import EXACT
from relax_core.replay.local_trainer import LocalTrainer
from relax_core.replay.replay import Replay
from relax_core.replay.text import replay_lines
from relax_core.weights.label import weight_label

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.megatron]

CHANGED = {"lr": 1e-2, "critic_lr": 1e-2, "global_batch_size": 3, "save_interval": 2, "entropy_coef": 0.01}


class _Trainer(LocalTrainer):
    """One whose weights a fake engine only gets the name of."""

    engine: FakeEngine

    def push_weights(self, version: int, urls: Any, weights_id: str) -> dict[str, Any]:
        self.engine.label, self.engine.weights = weight_label(version, weights_id), weights_id
        return {"seconds": 0.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, prefect_server: None, tiny_model: Path, sums: Path) -> Path:
    """Three steps of two optimiser steps each, checkpoints of steps 1 and 2."""
    from flows.train import train

    folder = tmp_path_factory.mktemp("recorded") / "run"
    settings = config(folder, tiny_model, sums, advantage_estimator="ppo", **OPTIONS["ppo"], **CHANGED)
    own, backend = one_process(checked(settings)), FakeBackend()
    actor, critic = _Trainer(own, "actor"), _Trainer(own, "critic")
    actor.engine = critic.engine = backend.engine
    backend.trainer, backend.critic = actor, critic  # type: ignore[assignment]
    train(settings, backend=backend)
    actor.close()
    critic.close()
    return folder


def test_a_step_of_ppo_is_repeated_bit_for_bit_with_its_weights(run: Path) -> None:
    """Step 1 begins with version 1, which is trained again from the first weights; its checkpoint is compared with."""
    before = files(run)
    report = Replay(str(run), 1, last="train", tolerance=EXACT).run()
    text = "\n".join(replay_lines(report))
    stages = ["reward", "forward", "advantage", "train_critic", "critic weights", "train", "weights"]
    assert {stage.stage: stage.state for stage in report.stages} == dict.fromkeys(stages, "same"), text
    assert report.equal
    assert files(run) == before


def test_another_rate_from_the_recorded_weights_is_another_update(run: Path) -> None:
    report = Replay(str(run), 1, first="train", changes=["lr=0.02", "entropy_coef=0.5"]).run()
    metrics = report.metrics["train"]
    assert metrics["lr"] == (pytest.approx(0.01), pytest.approx(0.02))
    for name in ("loss", "grad_norm"):
        assert metrics[name][0] != metrics[name][1]
    assert not report.equal
    # The critic has a rate of its own, and no entropy.
    assert {stage.stage: stage.state for stage in report.stages}["train_critic"] == "same"
