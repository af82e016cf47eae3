"""A PPO run that is stopped anywhere ends as one that was never stopped: actor and critic are recovered each by itself.

Fake engines and trainers (a model's weights are the hash of all its updates), real flow, real files. Reference: the
same steps without an interruption.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes import FakeBackend, Killed, Stopper

from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig, with_options

pytestmark = pytest.mark.usefixtures("prefect_server")
STEPS = 3
FILES = ("rollout", "forward", "batch")


def config(run_dir: Path, model: Path, prompts: Path, **changes: Any) -> RelaxConfig:
    options = {
        "run_dir": str(run_dir),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": STEPS,
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8,
        "rm_type": "exact_number",
        "save_interval": 2,
        "advantage_estimator": "ppo",
        "lambd": 0.9,
        "resource": {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 1), "advantages": (1, 0)},
    }
    return with_options(RelaxConfig(), options | changes)


def run_to_end(settings: RelaxConfig, backend: FakeBackend) -> dict[str, Any]:
    from flows.train import train

    return train(settings, backend=backend)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, prefect_server: None, tiny_model: Path, sums: Path) -> Any:
    backend, folder = FakeBackend(), tmp_path_factory.mktemp("reference") / "run"
    run_to_end(config(folder, tiny_model, sums), backend)
    return backend, RunStore(str(folder))


def assert_same(store: RunStore, expected: RunStore, steps: int = STEPS) -> None:
    """The files of all steps, bit by bit."""
    for step in range(steps):
        for name in (*(f"{name}.parquet" for name in FILES), "train.json", "train_critic.json"):
            path = f"steps/{step:06d}/{name}"
            assert store.read_bytes(path) == expected.read_bytes(path), path


def test_both_models_learn_each_step_from_values_of_before_it(reference: Any) -> None:
    backend, store = reference
    steps = [[f"critic forward {step}", f"critic train {step}", f"trainer train {step}"] for step in range(STEPS)]
    assert backend.events == [event for step in steps for event in step]
    folder = Path(store.url) / "steps/000001"
    forward, batch = (pq.read_table(folder / f"{name}.parquet") for name in ("forward", "batch"))
    assert batch["values"].to_pylist() == forward["values"].to_pylist()
    assert forward["old_log_probs"].null_count == forward.num_rows  # nothing needs them
    # GAE: returns are advantages and values, wherever a token is trained
    for row in batch.to_pylist():
        for t, kept in enumerate(row["loss_mask"]):
            if kept:
                assert row["returns"][t] == pytest.approx(row["advantages"][t] + row["values"][t], abs=1e-5)


def test_a_manifest_names_both_models_and_their_checkpoints(reference: Any) -> None:
    _, store = reference
    manifest = json.loads(store.read_bytes("steps/000001/manifest.json"))
    assert manifest["critic"]["version"] == manifest["weights"]["version"] == 2
    assert manifest["critic"]["id"] != manifest["weights"]["id"]
    assert manifest["critic"]["checkpoint"]["iteration"] == manifest["checkpoint"]["iteration"] == 1
    assert manifest["critic"]["checkpoint"]["url"].endswith("/critic-checkpoints")
    assert json.loads(store.read_bytes("steps/000000/manifest.json"))["critic"]["checkpoint"] is None
    assert {"critic/value_loss", "loss"} & manifest["metrics"].keys() == {"loss"}  # what the fake tells
    assert "train_critic" in manifest["seconds"]


STAGES = ["ensure_engines", "generate", "reward", "forward", "advantage", "train_critic", "train", "weight_sync",
          "checkpoint", "commit"]  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_killed_before_and_after_any_stage_the_run_ends_the_same(
    stage: str, reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """On entering it in step 0, and just after its work in step 1; then all engines are lost. Every step is saved."""
    settings, backend = config(tmp_path / "run", tiny_model, sums, save_interval=1), FakeBackend()
    for step, leave in ((0, False), (1, True)):
        with monkeypatch.context() as patch:
            Stopper(patch, step, stage, leave)
            with pytest.raises(Killed):
                run_to_end(settings, backend)
    expected, store = reference
    for mine, theirs in ((backend.trainer, expected.trainer), (backend.critic, expected.critic)):
        assert mine.applied == theirs.applied[: len(mine.applied)], "an update was applied twice or lost"
    backend.lose_all()
    run_to_end(settings, backend)
    assert backend.trainer.weights == expected.trainer.weights
    assert backend.critic.weights == expected.critic.weights
    assert_same(RunStore(str(tmp_path / "run")), store)


@pytest.mark.parametrize(("lost", "stage"), [("actor", "forward"), ("critic", "generate"), ("critic", "train_critic"),
                                             ("actor", "train"), ("actor", "weight_sync"), ("critic", "weight_sync"),
                                             ("all", "weight_sync")])  # fmt: skip
def test_what_is_lost_is_recovered_and_nothing_else(
    lost: str, stage: str, reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """In step 2: the checkpoint of step 1 covers the first two; what is lost loads it, and may train step 2 anew."""
    settings, backend = config(tmp_path / "run", tiny_model, sums), FakeBackend()
    Stopper(monkeypatch, 2, stage, leave=True)
    with pytest.raises(Killed):
        run_to_end(settings, backend)
    {"actor": backend.lose_actor, "critic": backend.lose_critic, "all": backend.lose_all}[lost]()
    seen = len(backend.events)
    run_to_end(settings, backend)
    expected, store = reference
    assert backend.trainer.weights == expected.trainer.weights
    assert backend.critic.weights == expected.critic.weights
    assert_same(RunStore(str(tmp_path / "run")), store)
    again = [event for event in backend.events[seen:] if "train" in event.split()]
    assert all(event.endswith(" 2") for event in again)
    if stage == "weight_sync":  # both updates are recorded: whoever lives has nothing to do
        names = {"actor": {"trainer"}, "critic": {"critic"}, "all": {"trainer", "critic"}}[lost]
        assert {event.split()[0] for event in again} == names


def test_checkpoints_of_both_are_kept_by_one_rule(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    run = tmp_path / "run"
    own = {"save_interval": 1, "max_actor_ckpt_to_keep": 1, "critic_save": str(tmp_path / "critics")}
    run_to_end(config(run, tiny_model, sums, num_rollout=2, **own), FakeBackend())
    for folder in (run / "checkpoints", tmp_path / "critics"):
        assert sorted(path.name for path in folder.glob("iter_*")) == ["iter_0000001"]


@pytest.mark.parametrize("folder", ["checkpoints", "critic-checkpoints"])
def test_a_model_without_its_checkpoint_trains_again_on_the_stored_batches(
    folder: str, reference: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    backend, run = FakeBackend(), tmp_path / "run"
    run_to_end(config(run, tiny_model, sums, num_rollout=2), backend)
    shutil.rmtree(run / folder)
    backend.lose_all()
    seen = len(backend.events)
    result = run_to_end(config(run, tiny_model, sums), backend)
    expected, store = reference
    assert backend.trainer.weights == expected.trainer.weights
    assert backend.critic.weights == expected.critic.weights
    assert_same(RunStore(str(run)), store)
    name = "trainer" if folder == "checkpoints" else "critic"
    assert backend.events[seen : seen + 2] == [f"{name} train 0", f"{name} train 1"]
    assert result["redone"] == [0, 1]


def test_a_model_that_is_behind_and_has_no_batches_is_told(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    backend, run = FakeBackend(), tmp_path / "run"
    run_to_end(config(run, tiny_model, sums, num_rollout=2), backend)
    shutil.rmtree(run / "critic-checkpoints")
    (run / "steps/000000/batch.parquet").unlink()
    backend.lose_all()
    with pytest.raises(UserError, match=r"of the critic of no step and of the trainer up to step 1.* step 0") as told:
        run_to_end(config(run, tiny_model, sums), backend)
    assert "steps/000000" in str(told.value)


def test_a_critic_alone_learns_in_its_steps_and_the_actor_stays(
    tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """Versions go on: engines get the same weights under the next label, also after the loss of everything."""
    settings = config(tmp_path / "run", tiny_model, sums, num_critic_only_steps=2)
    backend = FakeBackend()
    backend.trainer.rests = 2  # as the real one decides from the option
    Stopper(monkeypatch, 1, "train", leave=True)
    with pytest.raises(Killed):
        run_to_end(settings, backend)
    backend.lose_all()
    run_to_end(settings, backend)
    assert [version for version, _ in backend.trainer.applied] == [3]
    assert [version for version, _ in backend.critic.applied] == [1, 2, 1, 2, 3]
    assert backend.critic.applied[0] == backend.critic.applied[2]
    assert backend.engine.weights == backend.trainer.weights
    manifests = [RunStore(str(tmp_path / "run")).read_json(f"steps/{step:06d}/manifest.json") for step in range(STEPS)]
    assert [manifest["weights"]["version"] for manifest in manifests] == [1, 2, 3]
    assert [manifest["optimizer_step"] for manifest in manifests] == [0, 0, 3]
    assert ["loss" in manifest["metrics"] for manifest in manifests] == [False, False, True]


def test_a_changed_option_of_the_critic_is_refused_as_one_of_the_actor(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    run_to_end(config(tmp_path / "run", tiny_model, sums, num_rollout=1), FakeBackend())
    for change in ({"critic_lr": 0.5}, {"value_clip": 0.5}, {"critic_save": str(tmp_path / "elsewhere")}):
        with pytest.raises(UserError, match=f"--{next(iter(change)).replace('_', '-')}"):
            run_to_end(config(tmp_path / "run", tiny_model, sums, **change), FakeBackend())


def test_recorded_samples_train_both_models_without_engines(
    tmp_path: Path, reference: Any, tiny_model: Path, sums: Path
) -> None:
    """--debug-train-only on the rollouts of the reference."""
    _, store = reference
    recorded = f"{store.url}/steps/{{rollout_id:06d}}/rollout.parquet"
    settings = config(tmp_path / "run", tiny_model, sums, load_debug_rollout_data=recorded)
    backend = FakeBackend()
    run_to_end(settings, backend)
    assert backend.ensured
    assert backend.engine.generate_calls == 0
    mine, theirs = (RunStore(url).read_table("steps/000000/batch.parquet") for url in (f"{tmp_path}/run", store.url))
    assert mine.equals(theirs)
    assert [version for version, _ in backend.critic.applied] == [1, 2, 3]


def test_a_rollout_alone_starts_neither_model(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    """--debug-rollout-only: without a critic there are no values, hence no advantages; samples and scores are there."""
    settings = config(tmp_path / "run", tiny_model, sums, debug_rollout_only=True, num_rollout=2)
    backend = FakeBackend()
    run_to_end(settings, backend)
    assert (backend.ensured, backend.critics, backend.events) == (0, 0, [])
    found = set(RunStore(str(tmp_path / "run")).ls("steps/000001"))
    assert {"rollout.parquet", "reward.parquet", "manifest.json"} <= found
    assert not {"forward.parquet", "batch.parquet"} & found


def test_an_evaluation_starts_no_critic(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    from flows.evaluate import evaluate

    run_to_end(config(tmp_path / "run", tiny_model, sums, num_rollout=1), FakeBackend())
    backend = FakeBackend()
    settings = config(tmp_path / "run", tiny_model, sums, num_rollout=1, eval_prompt_data=["sums", str(sums)])
    result = evaluate(settings, backend=backend)
    assert result["version"] == 1
    assert (backend.critics, backend.critic.applied) == (0, [])
