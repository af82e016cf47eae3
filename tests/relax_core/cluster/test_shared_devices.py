"""Devices that a run's actors share, on a Ray of its own that believes in GPUs, and actors that start nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import json, os, sys
import ray
from pathlib import Path
from types import SimpleNamespace

folder = sys.argv[1]
ray.init(address="local", num_cpus=8, num_gpus=3, include_dashboard=False, namespace="relax", log_to_driver=False,
         object_store_memory=128 * 1024**2)

from data.errors import UserError
from relax_core.cluster import backend as module
from relax_core.cluster.placement import SharedDevices
from relax_core.config.options import with_options
from relax_core.config.resolve import resolve
from relax_core.config.sections import RelaxConfig
from relax_core.training import actor as trainers

def tell(text):
    with open(f"{folder}/told", "a") as file:
        file.write(f"{text}\\n")

class Engine:
    def __init__(self, spec):
        self.spec, self.name = spec, spec.name
    def fits(self, spec):
        return self.spec == spec
    def start(self):
        tell(f"{self.name} starts")
        return self.info()
    def info(self):
        return SimpleNamespace(url=f"{self.name} {dict(self.spec.environment)['CUDA_VISIBLE_DEVICES']}")
    def release(self, parts=None):
        tell(f"{self.name} gives way")
    def stop(self):
        pass

class Trainer(trainers.TrainerActor):
    def form(self, peers, host):
        tell(f"{self._role} starts")
        self._peers, self._trainer = list(peers), "here"
    def _everywhere(self, method, *args):
        tell(f"{self._role} {method}")
        return 0
    def seen(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]

module.SGLangEngine, trainers.TrainerActor = Engine, Trainer
options = {"run_dir": f"{folder}/run", "hf_checkpoint": folder, "colocate": True, "genrm_model_path": folder,
           "resource": {"actor": (1, 2), "rollout": (1, 2), "critic": (1, 1), "genrm": (1, 2)}}
config = resolve(with_options(RelaxConfig(), options))

def everything():
    backend = module.RayBackend(config, "shared")
    _, engines = backend.ensure(critic=True)
    return backend, [*engines.urls, *backend.ensure_genrm().urls]

backend, urls = everything()
told = Path(f"{folder}/told").read_text().splitlines()
seen = [ray.get(ray.get_actor(f"shared.{name}", namespace="relax").seen.remote())
        for name in ("trainer-rank-0", "trainer-rank-1", "critic-rank-0")]
again, same = everything()
quiet = Path(f"{folder}/told").read_text().splitlines() == told
ray.kill(ray.get_actor("shared.trainer-rank-1", namespace="relax"))
everything()
later = Path(f"{folder}/told").read_text().splitlines()[len(told):]
free = ray.available_resources().get("GPU")
refused = ""
try:
    SharedDevices("another", 2, 1.0)
except UserError as error:
    refused = error.problem
backend.release()
import time
deadline = time.monotonic() + 20
while ray.available_resources().get("GPU") != 3 and time.monotonic() < deadline:
    time.sleep(0.1)
print(json.dumps({"urls": urls, "told": told, "seen": seen, "same": same == urls, "quiet": quiet, "later": later,
                  "free": free, "refused": refused, "after": ray.available_resources().get("GPU")}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("shared")
    own = {"CUDA_VISIBLE_DEVICES": "0,1,2", "RELAX_HOME": str(folder), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | own, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def test_each_process_sees_its_devices_and_engines_the_others_behind_them(found: dict[str, Any]) -> None:
    assert found["seen"] == ["0", "1", "0"]  # two ranks, and the critic on the first one's device
    assert found["urls"] == ["engine 0 0,1", "engine 1 1,0", "judge 0 0,1", "judge 1 1,0"]


def test_whoever_starts_finds_its_devices_free(found: dict[str, Any]) -> None:
    told: list[str] = found["told"]
    started = [line for line in told if line.endswith("starts")]
    assert sorted(started[:2]) == ["engine 0 starts", "engine 1 starts"]
    assert started[2:4] == ["actor starts", "critic starts"]
    assert sorted(started[4:]) == ["judge 0 starts", "judge 1 starts"]

    def between(first: str, last: str) -> set[str]:
        return set(told[told.index(first) + 1 : told.index(last)])

    assert {"engine 0 gives way", "engine 1 gives way"} <= set(told[: told.index("actor starts")])
    assert "actor offload" in between("actor starts", "critic starts")
    assert {"actor offload", "critic offload", "engine 0 gives way"} <= between("critic starts", started[4])


def test_nothing_gives_way_where_all_is_there(found: dict[str, Any]) -> None:
    assert found["same"]
    assert found["quiet"]


def test_a_trainer_that_is_started_again_makes_the_engines_give_way(found: dict[str, Any]) -> None:
    later: list[str] = found["later"]
    everyone = {f"{kind} {number} gives way" for kind in ("engine", "judge") for number in (0, 1)}
    assert {*everyone, "critic offload"} <= set(later[: later.index("actor starts")])
    assert [line for line in later if line.endswith("starts")] == ["actor starts"]


def test_devices_are_reserved_for_the_run_and_given_back_with_it(found: dict[str, Any]) -> None:
    assert found["free"] == 1
    assert found["refused"] == ("The roles that share devices need 2 GPUs; the cluster has 3, of which 1 are free.")
    assert found["after"] == 3
