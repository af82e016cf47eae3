"""The judge's engines as actors: found again under a standing head, replaced when dead, ended with the run; and a real
one that judges a rollout."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relax_core.cluster import backend as backend_module
from relax_core.cluster.actors import find, kill, named, result
from relax_core.cluster.backend import RayBackend
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.engines.control import EngineControl
from relax_core.engines.spec import EngineSpec
from relax_core.rewards.score import score_table

RUN = "genrm-test"

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


class Engine:
    """An engine without a server."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._living = True

    def fits(self, spec: EngineSpec) -> bool:
        return self.spec == spec and self._living

    def start(self) -> Any:
        return self.info()

    def info(self) -> Any:
        return SimpleNamespace(url=f"{self.spec.kind} {self.spec.index} {os.getpid()}")

    def die(self) -> None:
        self._living = False

    def stop(self) -> None:
        pass


@pytest.fixture
def given(tmp_path: Path, tiny_model: Path) -> RelaxConfig:
    options = {
        "run_dir": str(tmp_path / "run"),
        "hf_checkpoint": str(tiny_model),
        "genrm_model_path": str(tiny_model),
        "rm_type": "judge",
        "engine_start_timeout": 300.0,
    }
    return with_options(RelaxConfig(), options)


@pytest.fixture
def no_actors(ray_head: str) -> Iterator[None]:
    """Ray, and none of the actors afterwards."""
    yield
    for name in named(f"{RUN}."):
        kill(name)


def ensured(config: RelaxConfig) -> list[str]:
    """The urls that a driver of its own sees."""
    backend = RayBackend(config, RUN)
    try:
        return list(backend.ensure_genrm().urls)
    finally:
        backend.close()


@pytest.mark.usefixtures("no_actors")
def test_judges_are_found_again_replaced_when_dead_and_ended_with_the_run(
    given: RelaxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "SGLangEngine", Engine)
    two = with_options(given, {"genrm_num_gpus": 2})
    first = ensured(two)
    assert [url.split()[:2] for url in first] == [["judge", "0"], ["judge", "1"]]
    assert named(f"{RUN}.") == [f"{RUN}.genrm-0", f"{RUN}.genrm-1"]
    assert ensured(two) == first
    result(find(f"{RUN}.genrm-1").die.remote(), 30)
    again = ensured(two)
    assert again[0] == first[0]
    assert again[1] != first[1]
    # fewer of them, and then others
    assert ensured(given) == first[:1]
    assert named(f"{RUN}.") == [f"{RUN}.genrm-0"]
    assert ensured(with_options(given, {"genrm_engine_config": {"max_total_tokens": 5000}})) != first[:1]
    backend = RayBackend(given, RUN)
    try:
        backend.release()
    finally:
        backend.close()
    assert named(f"{RUN}.") == []


SECOND = """
import json, sys
from relax_core.cluster.backend import RayBackend
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig

backend = RayBackend(with_options(RelaxConfig(), json.loads(sys.argv[1])), sys.argv[2])
print("URLS", json.dumps(backend.ensure_genrm().urls))
backend.close()
"""


@pytest.mark.sglang
@pytest.mark.usefixtures("no_actors")
def test_a_real_judge_scores_a_rollout_and_is_found_again_by_another_start(given: RelaxConfig) -> None:
    from effect_probes import rollout_table  # here: the process of an actor imports this module

    given = with_options(given, {"genrm_sampling_config": {"max_response_len": 12}})
    [url] = ensured(given)
    table = score_table(rollout_table(), given, None, {"genrm": [url]})
    # a random model says nothing: its answers are kept, and none of them is a score
    assert all(text.startswith("[system]\nYou grade") for text in table["judge_prompt"].to_pylist())
    answers = table["judge_output"].to_pylist()
    assert all(answers)
    assert table["reward"].to_pylist() == [None] * 4
    assert set(table["outcome"].to_pylist()) == {"no_score"}
    assert json.loads(table["components"][0].as_py())["verdict_error"]
    with EngineControl(url) as control:
        info = control.server_info()
    assert info["model_path"] == given.genrm.genrm_model_path
    options = {
        "run_dir": given.run.run_dir,
        "hf_checkpoint": given.checkpoint.hf_checkpoint,
        "genrm_model_path": given.genrm.genrm_model_path,
        "engine_start_timeout": given.run.engine_start_timeout,
    }
    done = subprocess.run(
        [sys.executable, "-c", SECOND, json.dumps(options), RUN],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert f'URLS ["{url}"]' in done.stdout, done.stderr[-2000:]
