"""Engines beside a run: one, of this process or of a cluster with free GPUs, and only what nothing else wants."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from configs import valid_config

from data.errors import UserError
from relax_core.cluster import beside
from relax_core.config import RelaxConfig, with_options
from relax_core.config.derived import num_engines
from relax_core.engines.serve import GIVES_WAY, NICENESS


class Engine:
    """In place of ``SGLangEngine``."""

    made: list["Engine"]

    def __init__(self, spec: Any) -> None:
        self.spec, self.alive = spec, False
        self.made.append(self)

    def start(self) -> Any:
        self.alive = True
        return SimpleNamespace(url=f"http://{self.spec.kind}-{self.spec.index}")

    def stop(self) -> None:
        self.alive = False


class Control:
    """In place of ``EngineControl``."""

    labels: dict[str, str]

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_weight_version(self, label: str) -> None:
        self.labels[self.url] = label


@pytest.fixture
def config(tmp_path: Path) -> RelaxConfig:
    """A run of four engines that take turns with the trainer, on a machine without services."""
    options = {"resource": {"actor": (1, 1), "rollout": (1, 4)}, "offload_rollout": True, "colocate": True}
    return valid_config(tmp_path, **options)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Engine.made, Control.labels = [], {}
    monkeypatch.setattr(beside, "SGLangEngine", Engine)
    monkeypatch.setattr(beside, "EngineControl", Control)
    monkeypatch.setattr(beside, "gpus", list)
    monkeypatch.setenv("RELAX_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_cpu_has_one_engine_that_gives_way_and_ends(config: RelaxConfig, tmp_path: Path) -> None:
    with beside.engines_beside(config, "r-evaluation", tmp_path / "logs", 4, "abc") as found:
        [engine] = Engine.made
        assert found == (["http://engine-0"], {})
        assert Control.labels == {"http://engine-0": "4.abc"}
        assert (engine.alive, engine.spec.device, engine.spec.releases_memory) == (True, "cpu", False)
        assert dict(engine.spec.environment)[GIVES_WAY] == "1"
        assert engine.spec.start_timeout == 3 * config.run.engine_start_timeout
        assert engine.spec.log_path == f"{tmp_path}/logs/engine-0.log"
    assert not Engine.made[0].alive


def test_a_judge_of_its_own_scores(config: RelaxConfig, tmp_path: Path) -> None:
    judged = with_options(config, {"genrm_model_path": "judge", "genrm_num_gpus": 2})
    with beside.engines_beside(judged, "r-evaluation", tmp_path, 1, "") as (urls, services):
        assert urls == ["http://engine-0"]
        assert services == {"genrm": ["http://judge-0", "http://judge-1"]}
        assert Control.labels == {"http://engine-0": "1"}
    assert not any(engine.alive for engine in Engine.made)


def test_gpus_that_nobody_hands_out_have_to_be_named(
    config: RelaxConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "gpus", lambda: [("0", "GPU-a"), ("1", "GPU-b")])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    refused = pytest.raises(UserError, match=r"free is not known.*CUDA_VISIBLE_DEVICES")
    with refused, beside.engines_beside(config, "r-evaluation", tmp_path, 4, "abc"):
        pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with beside.engines_beside(config, "r-evaluation", tmp_path, 4, "abc"):
        [engine] = Engine.made
        assert engine.spec.device == "cuda"
        assert GIVES_WAY not in dict(engine.spec.environment)
        assert not engine.spec.releases_memory
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # none
    with beside.engines_beside(config, "r-evaluation", tmp_path, 4, "abc"):
        assert Engine.made[-1].spec.device == "cpu"


def test_a_cluster_with_gpus_gives_a_free_one_to_an_actor(
    config: RelaxConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Backend:
        def __init__(self, config: RelaxConfig, name: str) -> None:
            self.config, self.name, self.ended = config, name, ""
            made.append(self)

        def ensure_rollout(self, weights_id: str) -> Any:
            return SimpleNamespace(urls=["http://actor"])

        def release(self) -> None:
            self.ended += "release "

        def close(self) -> None:
            self.ended += "close"

    made: list[Backend] = []
    monkeypatch.setattr("relax_core.cluster.backend.RayBackend", Backend)
    monkeypatch.setattr(beside, "_has_cluster", lambda config: True)
    with beside.engines_beside(config, "r-evaluation", tmp_path, 4, "abc") as found:
        [backend] = made
        assert found == (["http://actor"], {})
        assert Control.labels == {"http://actor": "4.abc"}
        assert backend.name == "r-evaluation"
        cluster = backend.config.cluster
        assert (num_engines(backend.config), cluster.colocate, cluster.offload_rollout) == (1, False, False)
        assert backend.ended == ""
    assert backend.ended == "release close"


def test_giving_way_is_a_niceness_of_a_process_and_of_what_it_starts() -> None:
    code = (
        "import subprocess, sys; from relax_core.engines.serve import give_way; give_way(); give_way();"
        "print(subprocess.run([sys.executable, '-c', 'import os; print(os.getpriority(os.PRIO_PROCESS, 0))'],"
        " capture_output=True, text=True).stdout, end='')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True)
    assert int(found.stdout) == max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
