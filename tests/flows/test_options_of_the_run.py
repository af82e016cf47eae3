"""Options that change what a run keeps, reports or leaves out (fake engines, real flow, real files)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import FakeBackend, Killed, Stopper

from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig, with_options

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def given(tmp_path: Path, tiny_model: Path, sums: Path) -> Any:
    """A small run in ``<tmp>/run`` with these options."""

    def make(**options: Any) -> RelaxConfig:
        values = {
            "run_dir": str(tmp_path / "run"),
            "hf_checkpoint": str(tiny_model),
            "prompt_data": str(sums),
            "label_key": "label",
            "rollout_shuffle": True,
            "num_rollout": 4,
            "rollout_batch_size": 3,
            "n_samples_per_prompt": 2,
            "rollout_max_response_len": 8,
            "rm_type": "random",
        }
        return with_options(RelaxConfig(), values | options)

    return make


def run_to_end(settings: RelaxConfig, backend: FakeBackend) -> dict[str, Any]:
    from flows.train import train

    return train(settings, backend=backend)


def store_of(settings: RelaxConfig) -> RunStore:
    return RunStore(str(settings.run.run_dir))


def checkpoints(settings: RelaxConfig) -> list[str]:
    return store_of(settings).ls("checkpoints")


def metrics(settings: RelaxConfig) -> list[dict[str, Any]]:
    return store_of(settings).read_jsonl("metrics.jsonl")


# What is kept


def test_rotation_keeps_the_newest_and_its_landmarks(given: Any) -> None:
    settings = given(num_rollout=7, rotate_ckpt=True, save_interval=2, async_save=True, max_actor_ckpt_to_keep=2)
    run_to_end(settings, FakeBackend())
    # All were saved; 0, 2, 4 and 6 are landmarks, of which the newest two stay; 6 is the newest itself.
    assert checkpoints(settings) == ["iter_0000004", "iter_0000006"]
    manifests = [store_of(settings).read_manifest(step) for step in range(7)]
    assert all(manifest is not None and manifest["checkpoint"] for manifest in manifests)


@pytest.mark.parametrize("stage", ["checkpoint", "commit"])
@pytest.mark.parametrize("leave", [False, True], ids=["before", "after"])
def test_a_kill_at_any_time_leaves_a_checkpoint_to_go_on_from(
    stage: str, leave: bool, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two checkpoints the older one is deleted at the end of step 3's commit, and not before."""
    settings = given(save_interval=2, max_actor_ckpt_to_keep=1)
    backend = FakeBackend()
    Stopper(monkeypatch, 3, stage, leave)
    with pytest.raises(Killed):
        run_to_end(settings, backend)
    newest = "iter_0000003"
    expected = {
        ("checkpoint", False): ["iter_0000001"],
        ("checkpoint", True): ["iter_0000001", newest],
        ("commit", False): ["iter_0000001", newest],
        ("commit", True): [newest],
    }
    assert checkpoints(settings) == expected[stage, leave]
    backend.lose_all()
    monkeypatch.undo()
    settings = given(save_interval=2, max_actor_ckpt_to_keep=1, num_rollout=5)
    run_to_end(settings, backend)
    assert [version for version, _ in backend.trainer.applied][:4] == [1, 2, 3, 4]
    assert checkpoints(settings) == ["iter_0000004"]
    assert backend.trainer.version == 5


def test_epochs_end_with_a_checkpoint(given: Any) -> None:
    """Eight prompts, three a step: two whole steps an epoch; the third one takes what is left and wraps."""
    settings = given(num_rollout=None, num_epoch=3, save_interval=4)
    backend = FakeBackend()
    assert run_to_end(settings, backend)["steps"] == 6
    assert checkpoints(settings) == [f"iter_{step:07d}" for step in (1, 3, 5)]
    cursor = store_of(settings).read_manifest(2)["cursor"]
    assert (cursor["epoch"], cursor["offset"]) == (1, 1)


# Parts of the loop


def test_recorded_samples_train_to_the_same_weights_without_an_engine(given: Any, sums: Path, tmp_path: Path) -> None:
    whole = FakeBackend()
    run_to_end(given(save_debug_rollout_data=str(tmp_path / "dump/{rollout_id}.pt")), whole)
    settings = given(
        run_dir=str(tmp_path / "again"),
        load_debug_rollout_data=str(tmp_path / "dump/{rollout_id}.pt"),
        eval_interval=1,
        eval_prompt_data=["sums", str(sums)],
    )
    alone = FakeBackend()
    run_to_end(settings, alone)
    assert alone.trainer.applied == whole.trainer.applied
    assert (alone.engine.generate_calls, alone.engine.events) == (0, [])
    for step in range(4):
        path = f"steps/{step:06d}/batch.parquet"
        assert store_of(settings).read_bytes(path) == RunStore(str(tmp_path / "run")).read_bytes(path)


def test_recorded_tables_are_scored_by_the_reward(given: Any, tmp_path: Path) -> None:
    run_to_end(given(), FakeBackend())
    template = str(tmp_path / "run/steps/{rollout_id:06d}/rollout.parquet")
    settings = given(run_dir=str(tmp_path / "again"), load_debug_rollout_data=template, rm_type="dummy")
    run_to_end(settings, FakeBackend())
    scores = store_of(settings).read_table("steps/000002/reward.parquet")
    assert scores["rm_type"].to_pylist() == ["dummy"] * 6


def test_a_replay_that_is_killed_goes_on(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FakeBackend()
    run_to_end(given(save_debug_rollout_data=str(tmp_path / "dump/{rollout_id}.pt")), whole)
    settings = given(
        run_dir=str(tmp_path / "again"), load_debug_rollout_data=str(tmp_path / "dump/{rollout_id}.pt"), save_interval=1
    )
    alone = FakeBackend()
    Stopper(monkeypatch, 2, "train", leave=True)
    with pytest.raises(Killed):
        run_to_end(settings, alone)
    alone.lose_all()
    run_to_end(settings, alone)
    assert alone.trainer.weights == whole.trainer.weights


def test_a_share_of_the_recorded_groups_is_trained_on(given: Any, tmp_path: Path) -> None:
    run_to_end(given(save_debug_rollout_data=str(tmp_path / "dump/{rollout_id}.pt")), FakeBackend())
    settings = given(
        run_dir=str(tmp_path / "again"),
        load_debug_rollout_data=str(tmp_path / "dump/{rollout_id}.pt"),
        load_debug_rollout_data_subsample=0.7,  # of three groups: two, the first and the last
    )
    run_to_end(settings, FakeBackend())
    groups = store_of(settings).read_table("steps/000001/batch.parquet")["group_id"].to_pylist()
    assert groups == ["000001-0000"] * 2 + ["000001-0002"] * 2


def test_a_rollout_alone_needs_no_trainer_and_keeps_the_first_weights(given: Any, sums: Path) -> None:
    settings = given(debug_rollout_only=True, eval_interval=2, eval_prompt_data=["sums", str(sums)], save_interval=1)
    backend = FakeBackend()
    run_to_end(settings, backend)
    store = store_of(settings)
    assert (backend.ensured, backend.trainer.applied) == (0, [])
    assert backend.engine.generate_calls == 4 * 6 + 8  # the evaluation before the first step, and no other
    for step in range(4):
        assert {"rollout.parquet", "reward.parquet", "batch.parquet"} <= set(store.ls(f"steps/{step:06d}"))
        manifest = store.read_manifest(step)
        assert manifest["weights"]["version"] == 0
    assert not store.exists("checkpoints")
    assert "loss" not in metrics(settings)[0]
    assert "reward/mean" in metrics(settings)[3]
    calls = backend.engine.generate_calls
    run_to_end(given(**{**settings.debug.model_dump(exclude_defaults=True), "num_rollout": 5}), backend)
    assert backend.engine.generate_calls == calls + 6


def test_a_run_cannot_change_over_to_recorded_samples(given: Any, tmp_path: Path) -> None:
    run_to_end(given(num_rollout=1), FakeBackend())
    torch.save({"samples": []}, tmp_path / "0.pt")
    with pytest.raises(UserError, match="--load-debug-rollout-data"):
        run_to_end(given(load_debug_rollout_data=str(tmp_path / "0.pt")), FakeBackend())
    with pytest.raises(UserError, match="--debug-rollout-only"):
        run_to_end(given(debug_rollout_only=True), FakeBackend())


# What is reported


def test_copies_and_reports_of_a_run(given: Any, sums: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = given(
        num_rollout=2,
        dump_details=str(tmp_path / "details"),
        timeline_dump_dir=str(tmp_path / "timeline"),
        use_tensorboard=True,
        tb_project_name=str(tmp_path / "board"),
        tb_experiment_name="mine",
        log_passrate=True,
        log_multi_turn=True,
        eval_interval=2,
        eval_prompt_data=["sums", str(sums)],
    )
    run_to_end(settings, FakeBackend())
    details = tmp_path / "details"
    assert {path.name for path in (details / "rollout_data").iterdir()} == {
        "0.parquet",
        "1.parquet",
        "eval_before_0.parquet",
        "eval_1.parquet",
    }
    assert {path.name for path in (details / "train_data").iterdir()} == {"0_0.parquet", "1_0.parquet"}
    assert (details / "tokenizer/tokenizer_config.json").is_file()
    events = json.loads((tmp_path / "timeline/timeline_step_1.json").read_text())["traceEvents"]
    stages = [event["name"] for event in events if event["ph"] == "X"]
    assert stages == ["ensure_engines", "generate", "reward", "advantage", "train", "weight_sync", "checkpoint",
                      "evaluate", "commit"]  # fmt: skip
    board = EventAccumulator(str(tmp_path / "board/mine"))
    board.Reload()
    rows = metrics(settings)
    for name in ("loss", "reward/mean", "pass@1", "num_turn/mean"):
        assert [event.value for event in board.Scalars(name)] == pytest.approx([row[name] for row in rows])
    assert rows[1]["eval/sums"] is not None


def test_people_are_told_of_a_failure_of_going_on_and_of_the_end(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import tasks.reward
    from relax_core.tracking import notify

    told: list[str] = []
    monkeypatch.setattr(notify, "notify", lambda config, title, text: told.append(f"{title}: {text}"))
    real, calls = tasks.reward.score_timed, []

    def fails(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise UserError("The reward failed.")
        return real(*arguments)

    monkeypatch.setattr(tasks.reward, "score_timed", fails)
    settings = given(num_rollout=2, notify_urls="json://localhost")
    with pytest.raises(UserError, match="The reward failed"):
        run_to_end(settings, FakeBackend())
    run_to_end(settings, FakeBackend())
    run = store_of(settings).url
    failed, goes_on, finished = told
    assert failed.startswith(f"Relax failed: {run}: UserError: The reward failed.\n1 of 2 steps, mean reward ")
    assert goes_on == f"Relax goes on with {run}: Step 2 is next."
    assert finished.startswith(f"Relax finished {run}: 2 of 2 steps, mean reward ")
