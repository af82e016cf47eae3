"""The stage of the passes that advantages need: where it is, when it is made again, and that nothing is lost by it.

Fake engine and trainer, real flow and files.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, Killed, Stopper
from passes import REWARD_KL, config, forwards, rows, train

from data.errors import UserError
from data.store import RunStore

pytestmark = pytest.mark.usefixtures("prefect_server")

STEPS = 3
FILES = ("rollout", "forward", "batch")


@pytest.fixture
def other(tiny_model: Path, tmp_path: Path) -> Path:
    """Another model of the same shape."""
    folder = tmp_path / "other"
    shutil.copytree(tiny_model, folder)
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, prefect_server: None, tiny_model: Path, sums: Path) -> Any:
    folder = tmp_path_factory.mktemp("reference") / "run"
    backend = FakeBackend()
    train(config(folder, tiny_model, sums, **REWARD_KL), backend)
    return backend, RunStore(str(folder)), folder


def test_reinforce_plus_plus_stores_its_passes_and_trains_on_them(reference: Any) -> None:
    backend, store, folder = reference
    events = [f"trainer {what} {step}" for step in range(STEPS) for what in ("forward", "train")]
    assert backend.events == events
    for step in range(STEPS):
        forward, batch = rows(folder, step, "forward"), rows(folder, step, "batch")
        assert [row["sample_id"] for row in forward] == [row["sample_id"] for row in batch]
        for name in ("old_log_probs", "ref_log_probs"):
            assert [row[name] for row in forward] == [row[name] for row in batch]
        assert {row["teacher_log_probs"] for row in forward} == {None}
        manifest = store.read_manifest(step)
        assert manifest is not None
        assert "forward/forward" in manifest["tables"]
        gaps = [a - b for row in forward for a, b in zip(row["old_log_probs"], row["ref_log_probs"], strict=True)]
        assert manifest["metrics"]["reward_kl"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-5)


def test_a_run_that_needs_no_pass_has_no_such_stage(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    backend = FakeBackend()
    train(config(tmp_path / "run", tiny_model, sums, num_rollout=1), backend)
    assert forwards(backend) == []
    manifest = RunStore(str(tmp_path / "run")).read_manifest(0)
    assert manifest is not None
    assert "forward" not in manifest["stages"]
    assert not (tmp_path / "run/steps/000000/forward.parquet").exists()


@pytest.mark.parametrize("leave", [False, True], ids=["on entering", "after its work"])
@pytest.mark.parametrize("die", [False, True], ids=["engines survive", "engines die"])
def test_killed_at_the_stage_the_run_ends_the_same(
    leave: bool, die: bool, reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    settings, backend = config(tmp_path / "run", tiny_model, sums, **REWARD_KL), FakeBackend()
    Stopper(monkeypatch, 1, "forward", leave)
    with pytest.raises(Killed):
        train(settings, backend)
    if die:
        backend.lose_all()
    train(settings, backend)
    for step in range(STEPS):
        for name in FILES:
            path = f"steps/{step:06d}/{name}.parquet"
            assert RunStore(str(tmp_path / "run")).read_bytes(path) == reference[1].read_bytes(path), path
    assert backend.engine.generate_calls == reference[0].engine.generate_calls
    assert backend.trainer.weights == reference[0].trainer.weights
    # On entering nothing had been asked; after the work the record was not yet written.
    assert forwards(backend).count("trainer forward 1") == 1 + leave


def test_killed_afterwards_the_passes_are_found_again(
    reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    settings, backend = config(tmp_path / "run", tiny_model, sums, **REWARD_KL), FakeBackend()
    Stopper(monkeypatch, 1, "advantage")
    with pytest.raises(Killed):
        train(settings, backend)
    train(settings, backend)
    assert forwards(backend) == [f"trainer forward {step}" for step in range(STEPS)]
    assert backend.trainer.weights == reference[0].trainer.weights


@pytest.mark.parametrize("die", [False, True], ids=["engines survive", "engines die"])
def test_a_lost_file_is_made_again_with_the_weights_that_the_step_began_with(
    die: bool, reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """The step was trained already: the trainer is first brought back to the weights before it."""
    settings, backend = config(tmp_path / "run", tiny_model, sums, **REWARD_KL), FakeBackend()
    Stopper(monkeypatch, 2, "commit")
    with pytest.raises(Killed):
        train(settings, backend)
    path = "steps/000002/forward.parquet"
    (tmp_path / "run" / path).unlink()
    if die:
        backend.lose_all()
    train(settings, backend)
    assert RunStore(str(tmp_path / "run")).read_bytes(path) == reference[1].read_bytes(path)
    assert forwards(backend).count("trainer forward 2") == 2
    assert backend.trainer.weights == reference[0].trainer.weights


def test_training_again_on_stored_batches_makes_no_pass(
    reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """Without a checkpoint all updates are repeated; only the unfinished step makes its passes."""
    settings = config(tmp_path / "run", tiny_model, sums, **REWARD_KL, save_interval=100)
    backend = FakeBackend()
    Stopper(monkeypatch, 2, "generate")
    with pytest.raises(Killed):
        train(settings, backend)
    backend.lose_all()
    backend.events.clear()
    train(settings, backend)
    assert backend.events == ["trainer train 0", "trainer train 1", "trainer forward 2", "trainer train 2"]
    assert backend.trainer.weights == reference[0].trainer.weights


def test_another_reference_is_another_run(tmp_path: Path, tiny_model: Path, other: Path, sums: Path) -> None:
    train(config(tmp_path / "run", tiny_model, sums, **REWARD_KL, num_rollout=1), FakeBackend())
    changed = config(tmp_path / "run", tiny_model, sums, **REWARD_KL, ref_load=str(other))
    with pytest.raises(UserError, match=r"made by another configuration.*--ref-load"):
        train(changed, FakeBackend())


def test_a_run_without_a_trainer_leaves_out_what_needs_one(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    backend, folder = FakeBackend(), tmp_path / "run"
    train(config(folder, tiny_model, sums, **REWARD_KL, debug_rollout_only=True, num_rollout=1), backend)
    assert not (folder / "steps/000000/batch.parquet").exists()
    assert forwards(backend) == []
