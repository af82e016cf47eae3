"""Rewards of a run start while it still generates, and stay a stage of their own.

Fake engine and trainer, real flow and files.
"""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from fakes import FakeBackend, FakeEngine, Killed, Stopper

from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options

pytestmark = pytest.mark.usefixtures("prefect_server")

SAMPLES = 6

REWARD = """
import os, pathlib

def reward(sample):
    descriptor = os.open(pathlib.Path(__file__).parent / "called", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (sample.sample_id + "\\n").encode())
    os.close(descriptor)
    return float(sample.index)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(REWARD)
    return path


def called(file: Path) -> Counter[str]:
    log = file.parent / "called"
    return Counter(log.read_text().split()) if log.exists() else Counter()


def config(folder: Path, model: Path, prompts: Path, file: Path, **options: Any) -> RelaxConfig:
    values = {
        "run_dir": str(folder / "run"),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": 1,
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8,
        "custom_rm_path": f"{file}:reward",
        **options,
    }
    return with_options(RelaxConfig(), values)


def train(settings: RelaxConfig, backend: FakeBackend) -> dict[str, Any]:
    from flows.train import train

    return train(settings, backend=backend)


def rewards(settings: RelaxConfig) -> pa.Table:
    store = RunStore(str(settings.run.run_dir))
    return store.read_table(store.step_path(0, "reward.parquet"))


class Backend(FakeBackend):
    """Holds the sixth answer back until five samples are scored."""

    def __init__(self, file: Path) -> None:
        class Engine(FakeEngine):
            async def _generate(self, request: web.Request) -> web.Response:
                answer = await super()._generate(request)
                if self.generate_calls == SAMPLES:
                    end = time.monotonic() + 60
                    while called(file).total() < SAMPLES - 1:
                        assert time.monotonic() < end, "no sample is scored before the last is there"
                        await asyncio.sleep(0.01)
                return answer

        super().__init__()
        self.engine = self.trainer.engine = self.critic.engine = Engine()


def one_at_a_time(settings: RelaxConfig) -> RelaxConfig:
    return with_options(settings, {"sglang_server_concurrency": 1})


def test_samples_are_scored_once_each_before_the_last_is_generated_and_anew_by_another_function(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, backend = one_at_a_time(config(tmp_path, tiny_model, sums, file)), Backend(file)
    Stopper(monkeypatch, 0, "advantage")
    with pytest.raises(Killed):
        train(settings, backend)
    first = rewards(settings)
    assert called(file) == Counter(first["sample_id"].to_pylist())
    assert first["reward"].to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    file.write_text(REWARD.replace("float(sample.index)", "-float(sample.index)"))
    metrics = train(settings, backend)["metrics"]
    assert backend.engine.generate_calls == SAMPLES
    assert rewards(settings)["reward"].to_pylist() == [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    assert set(called(file).values()) == {2}
    assert "perf/rewards_while_generating" not in metrics  # nothing was generated


def test_the_metrics_say_how_many_rewards_were_there_when_the_generation_ended(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path
) -> None:
    settings = one_at_a_time(config(tmp_path, tiny_model, sums, file))
    metrics = train(settings, Backend(file))["metrics"]
    assert SAMPLES - 2 <= metrics["perf/rewards_while_generating"] <= SAMPLES  # five were called, four were over
    assert metrics["perf/reward_time_behind_generation"] > 0


def test_a_kill_between_generation_and_reward_changes_no_score(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = (config(tmp_path / name, tiny_model, sums, file) for name in ("whole", "killed"))
    train(whole, FakeBackend())
    Stopper(monkeypatch, 0, "reward")
    backend = FakeBackend()
    with pytest.raises(Killed):
        train(killed, backend)
    train(killed, backend)
    assert backend.engine.generate_calls == SAMPLES
    assert rewards(killed).equals(rewards(whole))


def test_what_has_scores_is_not_scored_while_it_is_generated_again(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, backend = config(tmp_path, tiny_model, sums, file), FakeBackend()
    Stopper(monkeypatch, 0, "advantage")
    with pytest.raises(Killed):
        train(settings, backend)
    (tmp_path / "run/steps/000000/rollout.parquet").unlink()
    train(settings, backend)
    assert backend.engine.generate_calls == 2 * SAMPLES
    assert set(called(file).values()) == {1}  # the samples are the same, and so the scores are found


def test_a_reward_that_fails_loses_no_generation(tmp_path: Path, tiny_model: Path, sums: Path, file: Path) -> None:
    file.write_text(REWARD.replace("return float(sample.index)", "return 1 / sample.index"))
    settings, backend = config(tmp_path, tiny_model, sums, file), FakeBackend()
    with pytest.raises(UserError, match="failed on sample 000000-0000-000: ZeroDivisionError"):
        train(settings, backend)
    assert backend.engine.generate_calls == SAMPLES
    file.write_text(REWARD)
    train(settings, backend)
    assert backend.engine.generate_calls == SAMPLES


def test_a_table_that_cannot_be_written_loses_no_sample(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, backend, write = config(tmp_path, tiny_model, sums, file), FakeBackend(), RunStore.write_table

    def full(store: RunStore, path: str, table: pa.Table) -> Any:
        if path.endswith("rollout.parquet"):
            raise UserError("The disk is full.")
        return write(store, path, table)

    monkeypatch.setattr(RunStore, "write_table", full)
    with pytest.raises(UserError, match="disk is full"):
        train(settings, backend)
    monkeypatch.setattr(RunStore, "write_table", write)
    train(settings, backend)
    assert backend.engine.generate_calls == SAMPLES


def test_a_generation_that_fails_leaves_no_call_running(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    """The first sample keeps its reward busy; then the engine fails."""
    pid = tmp_path / "pid"
    (tmp_path / "mine.py").write_text(
        "import os, pathlib, time\n"
        "def reward(sample):\n"
        f"    pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(1000)\n"
    )

    class Engine(FakeEngine):
        async def _generate(self, request: web.Request) -> web.Response:
            if self.generate_calls == 0:
                return await super()._generate(request)
            while not (pid.exists() and pid.read_text()):
                await asyncio.sleep(0.01)
            return web.Response(status=400, text="no")

    backend = FakeBackend()
    backend.engine = backend.trainer.engine = backend.critic.engine = Engine()
    with pytest.raises(UserError, match="No rollout engine is left"):
        train(one_at_a_time(config(tmp_path, tiny_model, sums, tmp_path / "mine.py")), backend)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
