"""A run that is stopped at any task boundary ends as one that was never stopped (fake engines, real flow, real files).

Reference: the same five steps without an interruption. What is compared: the weights' chain of updates, which covers
every prompt, response, reward and advantage before it, since each update hashes the weights before it and the stored
batch.
"""

from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, Killed, Stopper

from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.tracking.events import read_events

pytestmark = pytest.mark.usefixtures("prefect_server")
STEPS = 4


def config(run_dir: Path, model: Path, prompts: Path, **changes: Any) -> RelaxConfig:
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
            "eval": {"eval_interval": 2, "eval_prompt_data": ["sums", str(prompts)]},
            **changes,
        }
    )


def run_to_end(settings: RelaxConfig, backend: FakeBackend) -> dict[str, Any]:
    from flows.train import train

    return train(settings, backend=backend)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, prefect_server: None, tiny_model: Path, sums: Path) -> Any:
    folder = tmp_path_factory.mktemp("reference") / "run"
    backend = FakeBackend()
    run_to_end(config(folder, tiny_model, sums), backend)
    return backend, RunStore(str(folder))


def test_an_uninterrupted_run_leaves_every_artefact(reference: Any) -> None:
    backend, store = reference
    assert [version for version, _ in backend.trainer.applied] == [1, 2, 3, 4]
    for step in range(STEPS):
        assert set(store.ls(f"steps/{step:06d}")) >= {
            "manifest.json",
            "rollout.parquet",
            "reward.parquet",
            "batch.parquet",
            "train.json",
            "stages",
        }
    assert store.exists("steps/000000/eval_before/sums.parquet")
    assert store.exists("steps/000001/eval/sums.parquet")
    assert not store.exists("steps/000000/eval/sums.parquet")
    lines = store.read_bytes("metrics.jsonl").decode().splitlines()
    assert len(lines) == STEPS


def test_the_timeline_of_an_uninterrupted_run_tells_every_stage_once(reference: Any) -> None:
    _, store = reference
    stages = ["generate", "reward", "advantage", "train"]
    told = [(event["kind"], event["who"]) for event in read_events(store, step=0) if event["kind"] != "weight_sync"]
    both = [(f"stage_{kind}", name) for name in ["evaluate_before", *stages] for kind in ("started", "finished")]
    assert told == [*both, ("step_committed", "driver")]
    of_run = [event["kind"] for event in read_events(store) if event["step"] is None]
    assert of_run == ["driver_started", "driver_ended"]
    assert store.read_table("events.parquet").num_rows == len(read_events(store))


STAGES = [
    "ensure_engines",
    "generate",
    "reward",
    "advantage",
    "train",
    "weight_sync",
    "checkpoint",
    "evaluate",
    "commit",
]


@pytest.mark.parametrize("stage", STAGES)
def test_killed_before_or_after_any_stage_the_run_ends_the_same(
    stage: str, reference: Any, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """Killed in steps 1 and 3 (which checkpoint and evaluate): on entering the stage, and just after its work.

    The engines live through the first kill and are lost with the second.
    """
    from relax_core.tracking.progress import Progress

    settings = config(tmp_path / "run", tiny_model, sums)
    backend = FakeBackend()
    real_stage = Progress.stage
    plan = [(1, stage, "enter"), (3, stage, "leave")]

    def stage_that_dies(self: Progress, step: int, name: str) -> Any:
        import contextlib

        @contextlib.contextmanager
        def guarded() -> Any:
            if plan and plan[0] == (step, name, "enter"):
                plan.pop(0)
                raise Killed
            with real_stage(self, step, name):
                yield
            if plan and plan[0] == (step, name, "leave"):
                plan.pop(0)
                raise Killed

        return guarded()

    monkeypatch.setattr(Progress, "stage", stage_that_dies)
    with pytest.raises(Killed):
        run_to_end(settings, backend)
    with pytest.raises(Killed):
        run_to_end(settings, backend)
    applied = list(backend.trainer.applied)
    assert applied == reference[0].trainer.applied[: len(applied)], "an update was applied twice or lost"
    backend.lose_all()
    assert not plan
    run_to_end(settings, backend)
    timeline = read_events(RunStore(str(tmp_path / "run")))
    ends = [event["cause"] for event in timeline if event["kind"] == "driver_ended"]
    assert ends == (["Killed", "Killed"] if stage == "commit" else ["Killed", "Killed", "finished"])
    rewound = [(event["checkpoint"], event["version"]) for event in timeline if event["kind"] == "rewind"]
    again = [event["step"] for event in timeline if event["kind"] == "retrained"]
    assert len(rewound) <= 1, "a trainer that was lost once is rewound once at most"
    assert again == [step for checkpoint, _ in rewound for step in range(checkpoint + 1, again[-1] + 1 if again else 0)]

    expected_backend, expected_store = reference
    if backend.trainer.version:  # a run that was killed after its last manifest needs no trainer any more
        assert backend.trainer.weights == expected_backend.trainer.weights
    store = RunStore(str(tmp_path / "run"))
    for step in range(STEPS):
        for name in ("rollout.parquet", "reward.parquet", "batch.parquet", "train.json"):
            path = f"steps/{step:06d}/{name}"
            assert store.read_bytes(path) == expected_store.read_bytes(path), path
    # A generation is repeated only where the kill was inside it: once on entering (nothing asked yet), once after.
    again = 1 if stage == "generate" else 0
    training = expected_backend.engine.generate_calls + again * 6
    lost_evaluation = 8 if stage == "evaluate" else 0
    assert backend.engine.generate_calls == training + lost_evaluation


def test_samples_that_were_finished_before_an_engine_died_are_not_generated_again(
    reference: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """Step 1 asks for 3 prompts x 2 samples, step 0 has asked for 6: the engine answers 10, which leaves 2."""
    from data.errors import UserError

    settings, backend = short(tmp_path / "run", tiny_model, sums, steps=2), FakeBackend()
    backend.engine.answers = 10
    with pytest.raises(UserError, match="No rollout engine is left"):
        run_to_end(settings, backend)
    store = RunStore(str(tmp_path / "run"))
    assert store.exists("steps/000001/generate.parts")
    assert not store.exists("steps/000001/rollout.parquet")
    backend.engine.answers = None
    run_to_end(settings, backend)
    assert backend.engine.generate_calls == 12
    for step in range(2):
        for name in ("rollout.parquet", "reward.parquet", "batch.parquet", "train.json"):
            path = f"steps/{step:06d}/{name}"
            assert store.read_bytes(path) == reference[1].read_bytes(path), path
        assert not store.exists(f"steps/{step:06d}/generate.parts")
    [reused] = read_events(store, kind="samples_reused")
    assert (reused["step"], reused["samples"]) == (1, 4)


def test_a_finished_run_says_so_and_starts_no_engine(reference: Any, tiny_model: Path, sums: Path, capsys: Any) -> None:
    _, store = reference
    backend = FakeBackend()
    result = run_to_end(config(Path(store.url), tiny_model, sums), backend)
    assert backend.ensured == 0
    assert "complete" in capsys.readouterr().out
    assert result["steps"] == STEPS


def short(run_dir: Path, model: Path, prompts: Path, steps: int = 3, **changes: Any) -> RelaxConfig:
    settings = config(run_dir, model, prompts, **changes)
    settings.rollout.num_rollout = steps
    settings.eval.eval_interval = None
    return settings


@pytest.mark.parametrize("leave", [False, True], ids=["before the sync", "after the sync"])
def test_a_changed_reward_scores_and_learns_again_but_never_generates_again(
    leave: bool, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """Step 2 was learnt with the old reward: it is taken back (checkpoint of step 1) and learnt anew.

    Engines that hold version 3 of the discarded history get the new one.
    """
    backend = FakeBackend()
    folder = tmp_path / "run"
    Stopper(monkeypatch, 2, "weight_sync", leave)
    with pytest.raises(Killed):
        run_to_end(short(folder, tiny_model, sums), backend)
    calls = backend.engine.generate_calls
    before = RunStore(str(folder)).read_bytes("steps/000002/reward.parquet")
    run_to_end(short(folder, tiny_model, sums, reward={"rm_type": "dummy"}), backend)
    assert RunStore(str(folder)).read_bytes("steps/000002/reward.parquet") != before
    assert backend.engine.generate_calls == calls
    assert [version for version, _ in backend.trainer.applied] == [1, 2, 3, 3]
    assert backend.engine.weights == backend.trainer.weights


def test_a_reward_changed_and_changed_back_gives_the_weights_of_the_first(
    tmp_path: Path, reference: Any, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """Reward A is learnt, B is scored but not learnt, then A again: A's recorded update is repeated on A's batch."""
    backend = FakeBackend()
    folder = tmp_path / "run"
    Stopper(monkeypatch, 2, "weight_sync")
    with pytest.raises(Killed):
        run_to_end(short(folder, tiny_model, sums), backend)
    Stopper(monkeypatch, 2, "train")
    with pytest.raises(Killed):
        run_to_end(short(folder, tiny_model, sums, reward={"rm_type": "dummy"}), backend)
    backend.lose_all()
    run_to_end(short(folder, tiny_model, sums), backend)
    assert backend.trainer.weights == reference[0].trainer.applied[2][1]
    assert backend.engine.weights == backend.trainer.weights


@pytest.mark.parametrize("lost", ["rollout", "reward", "batch"])
@pytest.mark.parametrize("die", [False, True], ids=["engines survive", "engines die"])
def test_a_lost_file_of_an_unfinished_step_is_made_again(
    lost: str, die: bool, tmp_path: Path, reference: Any, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """The step was already trained and synced: what is missing is computed anew, and the weights are the same."""
    backend = FakeBackend()
    folder = tmp_path / "run"
    Stopper(monkeypatch, 2, "commit")
    with pytest.raises(Killed):
        run_to_end(short(folder, tiny_model, sums), backend)
    (folder / f"steps/000002/{lost}.parquet").unlink()
    if die:
        backend.lose_all()
    run_to_end(short(folder, tiny_model, sums), backend)
    path = f"steps/000002/{lost}.parquet"
    assert RunStore(str(folder)).read_bytes(path) == reference[1].read_bytes(path)
    assert backend.trainer.weights == reference[0].trainer.applied[2][1]


def test_a_lost_file_of_an_old_step_costs_nothing_when_a_checkpoint_covers_it(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    backend = FakeBackend()
    folder = tmp_path / "run"
    run_to_end(short(folder, tiny_model, sums, 3), backend)
    calls = backend.engine.generate_calls
    (folder / "steps/000000/rollout.parquet").unlink()
    run_to_end(short(folder, tiny_model, sums, 4), backend)
    assert backend.engine.generate_calls == calls + 6


def test_damaged_records_of_finished_steps_are_replaced_by_their_manifests(
    tmp_path: Path, reference: Any, tiny_model: Path, sums: Path
) -> None:
    """The records of steps 0 to 2 are cut; the checkpoint of step 1 is gone: everything is learnt again, once."""
    backend = FakeBackend()
    folder = tmp_path / "run"
    run_to_end(short(folder, tiny_model, sums, 3), backend)
    for step in range(3):
        for name in ("train", "advantage"):
            record = folder / f"steps/{step:06d}/stages/{name}.json"
            record.write_text(record.read_text()[:30])
    for checkpoint in (folder / "checkpoints").glob("iter_*/relax_state.json"):
        checkpoint.unlink()
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 3, "loss": 0}\n')  # of a step that was killed before its manifest
    backend.lose_all()
    backend.trainer.applied.clear()
    run_to_end(short(folder, tiny_model, sums, 4), backend)
    assert [version for version, _ in backend.trainer.applied] == [1, 2, 3, 4]
    assert backend.trainer.weights == reference[0].trainer.weights
    steps = [row["step"] for row in RunStore(str(folder)).read_jsonl("metrics.jsonl")]
    assert steps == [0, 1, 2, 3]


def test_a_run_on_s3_is_the_same_run(
    tmp_path: Path, reference: Any, s3_endpoint: str, tiny_model: Path, sums: Path, monkeypatch: Any
) -> None:
    """Killed in step 2 after its checkpoint, gone on with by another machine: nothing but the bucket is shared."""
    from relax_core.tracking.progress import Progress

    settings = config(tmp_path, tiny_model, sums)
    settings.run.run_dir = "s3://runs/whole-run"
    real = Progress.stage

    def die_in_commit(self: Progress, step: int, name: str) -> Any:
        if (step, name) == (2, "commit"):
            raise Killed
        return real(self, step, name)

    monkeypatch.setattr(Progress, "stage", die_in_commit)
    with pytest.raises(Killed):
        run_to_end(settings, FakeBackend())
    monkeypatch.setattr(Progress, "stage", real)
    other = FakeBackend()
    run_to_end(settings, other)
    expected_backend, expected_store = reference
    assert other.trainer.weights == expected_backend.trainer.weights
    assert [version for version, _ in other.trainer.applied] == [3, 4]  # step 1's checkpoint, then 2 again and 3
    store = RunStore("s3://runs/whole-run")
    for step in range(STEPS):
        path = f"steps/{step:06d}/batch.parquet"
        assert store.read_bytes(path) == expected_store.read_bytes(path)


def test_a_second_driver_is_told_who_drives_the_run(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    import socket
    import subprocess
    import sys

    import psutil

    from data.errors import UserError

    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    holder = {"host": socket.gethostname(), "pid": other.pid, "created": psutil.Process(other.pid).create_time()}
    RunStore(str(tmp_path / "run")).write_json("driver.json", holder)
    with pytest.raises(UserError, match=f"Process {other.pid} drives the run"):
        run_to_end(config(tmp_path / "run", tiny_model, sums), FakeBackend())
    other.kill()
    other.wait()
    settings = config(tmp_path / "run", tiny_model, sums)
    settings.rollout.num_rollout = 1
    settings.eval.eval_interval = None
    run_to_end(settings, FakeBackend())
    assert RunStore(str(tmp_path / "run")).read_json("driver.json") == {"epoch": 1}


def test_a_mistake_in_the_data_can_be_corrected_in_the_same_run_directory(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    from data.errors import UserError

    settings = config(tmp_path / "run", tiny_model, sums)
    settings.data.input_key = "question"
    with pytest.raises(UserError, match="question"):
        run_to_end(settings, FakeBackend())
    settings = config(tmp_path / "run", tiny_model, sums)
    settings.rollout.num_rollout = 1
    settings.eval.eval_interval = None
    run_to_end(settings, FakeBackend())
