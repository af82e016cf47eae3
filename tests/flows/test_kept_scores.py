"""A driver that is killed while it scores: what a slow reward has said is not asked again.

Fake engine and trainer in a process of their own, which kills itself; real flow, files and processes of rewards.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend

from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.tracking.events import read_events

pytestmark = pytest.mark.usefixtures("prefect_server")

REWARD = """
import asyncio, os, pathlib, time

folder = pathlib.Path(__file__).parent

def begin(sample):
    descriptor = os.open(folder / "called", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (sample.sample_id + "\\n").encode())
    os.close(descriptor)
    return sample.index >= 4 and not (folder / "go").exists()  # the driver is killed while these two are out

def plain(sample):
    while begin(sample):
        time.sleep(1000)
    return {"score": sample.index / 3, "why": f"because of {sample.index}"}

async def together(sample):
    while begin(sample):
        await asyncio.sleep(1000)
    return {"score": sample.index / 3, "why": f"because of {sample.index}"}
"""

DRIVER = """
import asyncio, json, os, sys, threading, time
import data, flows, relax_core, tasks  # before the folder of tests, which has folders of these names
sys.path.append(sys.argv[3])
from aiohttp import web
from fakes import FakeBackend, FakeEngine
from data.store import RunStore
from flows.train import train
from relax_core.config import RelaxConfig
from relax_core.rewards import scored
from relax_core.run.session import RunSession

options, streamed = json.loads(sys.argv[1]), sys.argv[2] == "streamed"
scored.KEEP_SECONDS = 0.1
store = RunStore(options["run"]["run_dir"])

class Engine(FakeEngine):
    async def _generate(self, request):
        while self.generate_calls == 5 and streamed:  # the sixth answer never comes
            await asyncio.sleep(1)
        return await super()._generate(request)

def watch():
    while True:
        for scoring in store.ls("steps/000000/reward.parts"):
            parts = store.ls(f"steps/000000/reward.parts/{scoring}")
            if sum(store.read_table(f"steps/000000/reward.parts/{scoring}/{part}").num_rows for part in parts) == 4:
                assert not streamed or not store.exists("steps/000000/rollout.parquet")
                os._exit(9)
        time.sleep(0.05)

if not streamed:
    RunSession.stream_rewards = lambda self, step, table: None
backend = FakeBackend()
backend.engine = backend.trainer.engine = backend.critic.engine = Engine()
threading.Thread(target=watch, daemon=True).start()
train(RelaxConfig.model_validate(options), backend=backend)
"""


def config(folder: Path, model: Path, prompts: Path, function: str) -> dict[str, Any]:
    """One at a time to the engine, so that samples are finished in their order: 0 ... 3 are scored, 4 and 5 are not."""
    return {
        "run": {"run_dir": str(folder / "run")},
        "checkpoint": {"hf_checkpoint": str(model)},
        "data": {"prompt_data": str(prompts), "label_key": "label"},
        "rollout": {
            "num_rollout": 1,
            "rollout_batch_size": 3,
            "n_samples_per_prompt": 2,
            "rollout_max_response_len": 8,
        },
        "sglang": {"sglang_server_concurrency": 1},
        "reward": {"custom_rm_path": f"{folder}/mine.py:{function}", "reward_key": "score"},
    }


@pytest.mark.parametrize(("function", "how"), [("plain", "streamed"), ("together", "behind")])
def test_a_killed_driver_asks_a_slow_reward_only_for_what_it_had_not_said(
    tmp_path: Path, tiny_model: Path, sums: Path, function: str, how: str
) -> None:
    from flows.train import train

    (tmp_path / "mine.py").write_text(REWARD)
    options = config(tmp_path, tiny_model, sums, function)
    command = [sys.executable, "-P", "-c", DRIVER, json.dumps(options), how, str(Path(__file__).parents[1])]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert killed.returncode == 9, killed.stderr[-3000:]
    (tmp_path / "go").touch()

    settings = RelaxConfig.model_validate(options)
    train(settings, backend=FakeBackend())
    store = RunStore(str(tmp_path / "run"))
    rows = {row["sample_id"]: row for row in store.read_table("steps/000000/reward.parquet").to_pylist()}
    called = Counter((tmp_path / "called").read_text().split())
    assert [called[sample] for sample in sorted(rows)][:4] == [1, 1, 1, 1]
    [event] = read_events(store, kind="rewards_reused")
    assert (event["calls"], event["step"]) == (4, 0)

    whole = with_options(settings, {"run_dir": str(tmp_path / "whole")})
    train(whole, backend=FakeBackend())
    table = RunStore(str(tmp_path / "whole")).read_table("steps/000000/reward.parquet")
    assert rows == {row["sample_id"]: row for row in table.to_pylist()}  # to the bit: 1/3 and texts too
