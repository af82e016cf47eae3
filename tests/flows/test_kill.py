"""Real kills of real processes: a run that is killed ends with the bits of one that was not.

One run goes through every kind of kill in turn; another is left alone. Both use the real SGLang in its reproducible
setting, the real Megatron-core in float32, Ray and a Prefect server, on a tiny random model. Compared are the
exported weights and every stored table, byte by byte.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.store import RunStore

pytestmark = [pytest.mark.e2e, pytest.mark.sglang, pytest.mark.megatron, pytest.mark.ray]
STEPS = 5
DRIVER = Path(__file__).parents[1] / "driver.py"


def config(folder: Path, model: Path, prompts: Path) -> dict[str, Any]:
    return {
        "run": {"run_dir": str(folder / "run")},
        "checkpoint": {"hf_checkpoint": str(model), "save_interval": 2, "save_hf": str(folder / "hf-{rollout_id}")},
        "data": {"prompt_data": str(prompts), "label_key": "label", "rollout_shuffle": True},
        "rollout": {
            "num_rollout": STEPS,
            "rollout_batch_size": 3,
            "n_samples_per_prompt": 4,
            "rollout_max_response_len": 24,
            "rollout_max_context_len": 64,
        },
        "sglang": {"sglang_enable_deterministic_inference": True},
        "batch": {"num_steps_per_rollout": 2, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 256},
        "optimizer": {"lr": 1e-3},
        "reward": {"rm_type": "random"},
        "eval": {"eval_interval": 2, "eval_prompt_data": ["sums", str(prompts)]},
    }


class Runner:
    """Starts drivers on one run directory and knows their fate."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = folder / "config.json"
        self.settings.write_text(json.dumps(settings))
        self.store = RunStore(settings["run"]["run_dir"])

    def go(self, plan: str = "", timeout: float = 400) -> int:
        """Run a driver to its end; the exit code, negative for a signal."""
        # -P: the folder of tests would shadow packages of the project.
        command = [sys.executable, "-P", str(DRIVER), str(self.settings), *([plan] if plan else [])]
        log = self.folder / f"{plan.replace(':', '-') or 'end'}.log"
        with log.open("w") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=timeout)
        self.output = log.read_text()
        return done.returncode

    def kill_at(self, plan: str) -> None:
        assert self.go(plan) == -signal.SIGKILL, self.output[-3000:]


@pytest.fixture(scope="module")
def standing(relax_home: Path) -> Iterator[None]:
    """A Ray head and a Prefect server that outlive every driver."""
    from relax_core.cluster import services

    services.start_ray()
    prefect = services.start_prefect()
    before = os.environ.get("PREFECT_API_URL")
    os.environ["PREFECT_API_URL"] = prefect.address
    yield
    if before is None:
        del os.environ["PREFECT_API_URL"]
    else:
        os.environ["PREFECT_API_URL"] = before


def engine_processes(folder: Path, actor: str = "") -> list[psutil.Process]:
    """Actor processes of the run in this folder, or that of one actor: found by name, ended by id."""
    import ray

    from relax_core.cluster.head import connected
    from relax_core.run.session import run_id

    with connected():
        prefix = f"{run_id(str(folder / 'run'))}.{actor}"
        names = [row["name"] for row in ray.util.list_named_actors(all_namespaces=True)]
        handles = [ray.get_actor(name, namespace="relax") for name in names if name.startswith(prefix)]
        pids = ray.get([handle.__ray_call__.remote(lambda _: os.getpid()) for handle in handles], timeout=60)
        return [psutil.Process(pid) for pid in pids]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, standing: None, tiny_model: Path, sums: Path) -> Runner:
    folder = tmp_path_factory.mktemp("uninterrupted")
    runner = Runner(folder, config(folder, tiny_model, sums))
    assert runner.go() == 0, runner.output[-3000:]
    return runner


def test_killed_in_every_way_the_run_ends_with_the_same_bits(
    tmp_path: Path, uninterrupted: Runner, tiny_model: Path, sums: Path
) -> None:
    runner = Runner(tmp_path, config(tmp_path, tiny_model, sums))
    # With the engines alive: inside generate and train, and between tasks.
    runner.kill_at("0:generate:50")
    runner.kill_at("0:reward:enter")
    runner.kill_at("0:train:20")
    runner.kill_at("0:train:leave")
    runner.kill_at("1:weight_sync:20")
    runner.kill_at("1:checkpoint:leave")
    runner.kill_at("1:evaluate:20")
    runner.kill_at("2:commit:enter")
    generated = runner.store.read_bytes("steps/000002/rollout.parquet")
    # With everything dead: the trainer comes back from the checkpoint of step 1 and trains again on stored batches.
    runner.kill_at("3:train:20")
    for process in engine_processes(tmp_path):
        process.kill()
    assert runner.go() == 0, runner.output[-3000:]
    assert "training again on the stored batch of step 2" in runner.output
    assert runner.store.read_bytes("steps/000002/rollout.parquet") == generated

    last = f"hf-{STEPS - 1}/model.safetensors"
    assert (tmp_path / last).read_bytes() == (uninterrupted.folder / last).read_bytes()
    for step in range(STEPS):
        for name in ("rollout", "reward", "batch"):
            path = f"steps/{step:06d}/{name}.parquet"
            assert runner.store.read_bytes(path) == uninterrupted.store.read_bytes(path), path


def ppo(folder: Path, model: Path, prompts: Path) -> dict[str, Any]:
    """Three steps of PPO, of which the last is saved."""
    settings = config(folder, model, prompts)
    del settings["checkpoint"]["save_interval"], settings["eval"]
    settings["rollout"]["num_rollout"] = 3
    settings["algorithm"] = {"advantage_estimator": "ppo", "gamma": 0.99, "lambd": 0.95, "critic_lr": 2e-3}
    settings["cluster"] = {"resource": {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 1), "advantages": (1, 0)}}
    return settings


def test_a_run_with_a_critic_ends_with_the_same_bits_whatever_is_killed(
    tmp_path: Path, standing: None, tiny_model: Path, sums: Path
) -> None:
    folders = [tmp_path / name for name in ("alone", "killed")]
    for folder in folders:
        folder.mkdir()
    alone, runner = (Runner(folder, ppo(folder, tiny_model, sums)) for folder in folders)
    assert alone.go() == 0, alone.output[-3000:]
    assert "the critic starts from the model" in alone.output

    runner.kill_at("0:train_critic:leave")
    runner.kill_at("1:train:10")
    runner.kill_at("2:train_critic:enter")
    (critic,) = engine_processes(runner.folder, "critic-rank-0")
    critic.kill()  # the actor lives: only the critic learns the first two steps again
    assert runner.go() == 0, runner.output[-3000:]
    assert "training the critic again on the stored batch of step 1" in runner.output
    assert "training again on the stored batch" not in runner.output

    last = "hf-2/model.safetensors"
    assert (runner.folder / last).read_bytes() == (alone.folder / last).read_bytes()
    for step in range(3):
        for name in ("rollout", "forward", "batch"):
            path = f"steps/{step:06d}/{name}.parquet"
            assert runner.store.read_bytes(path) == alone.store.read_bytes(path), path
        mine, theirs = (each.store.read_manifest(step) for each in (runner, alone))
        assert mine is not None
        assert theirs is not None
        of_critic = {name: value for name, value in theirs["metrics"].items() if name.startswith("critic/")}
        assert of_critic["critic/grad_norm"] > 0
        assert of_critic.items() <= mine["metrics"].items()
        assert mine["critic"]["id"] == theirs["critic"]["id"]


def test_a_finished_run_is_complete_and_exits_0_without_engines(uninterrupted: Runner) -> None:
    started = time.monotonic()
    assert uninterrupted.go() == 0
    assert "is complete" in uninterrupted.output
    assert engine_processes(uninterrupted.folder) == [], f"after {time.monotonic() - started:.0f} s"


def test_a_sync_makes_engine_and_trainer_agree(uninterrupted: Runner) -> None:
    """The engine's log-probs of its samples and the trainer's on the same tokens, in float32, every step."""
    for step in range(STEPS):
        manifest = uninterrupted.store.read_manifest(step)
        assert manifest is not None
        assert manifest["metrics"]["train_rollout_logprob_abs_diff"] < 1e-4


def test_killed_without_a_standing_head_nothing_is_left_behind_and_the_run_goes_on(
    tmp_path: Path, uninterrupted: Runner, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAX_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_API_URL")  # a temporary server, which must end too
    settings = config(tmp_path, tiny_model, sums)
    settings["rollout"]["num_rollout"] = 2
    runner = Runner(tmp_path, settings)
    runner.kill_at("1:train:20")
    marker = str(tmp_path)
    deadline = time.monotonic() + 60
    while (left := processes_of(marker)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not left, [process.cmdline()[:8] for process in left]
    assert runner.go() == 0, runner.output[-3000:]
    expected = uninterrupted.store.read_bytes("steps/000001/batch.parquet")
    assert runner.store.read_bytes("steps/000001/batch.parquet") == expected


def processes_of(marker: str) -> list[psutil.Process]:
    """SGLang servers and actors whose command line or environment names the run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and (
                any(marker in part for part in process.cmdline())
                or marker in str(process.environ().get("RELAX_HOME", ""))
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
