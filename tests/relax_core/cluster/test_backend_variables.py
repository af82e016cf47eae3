"""The variables of the environment file in the actors of a run, on a real Ray head with actors that start nothing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data.errors import UserError
from relax_core.cluster import backend as backend_module
from relax_core.cluster.actors import find, get_or_start, kill, result
from relax_core.cluster.backend import RayBackend
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.engines.spec import EngineSpec
from relax_core.training.actor import trainer_environment, trainer_options

RUN = "variables-test"
SHOW = "import os; print(os.environ.get('COLOUR'), os.environ.get('CUDA_VISIBLE_DEVICES'))"


class Engine:
    """An engine whose server is a process that says what it sees and ends."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    def fits(self, spec: EngineSpec) -> bool:
        return self.spec == spec

    def start(self) -> Any:
        return self.info()

    def stop(self) -> None:
        """Its process has ended already."""

    def info(self) -> Any:
        environment = os.environ | dict(self.spec.environment)  # as relax_core.engines.process starts a server
        done = subprocess.run([sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True)
        return SimpleNamespace(url=f"{os.environ.get('COLOUR')} {done.stdout.strip()} {os.getpid()}")


class Leader:
    """As much of a trainer as the backend asks for."""

    def attach(self) -> int:
        return 1


@pytest.fixture
def environment_file(tmp_path: Path) -> Path:
    file = tmp_path / "env.yaml"
    file.write_text("env_vars:\n  COLOUR: red\n  CUDA_VISIBLE_DEVICES: '7'\n")
    return file


@pytest.fixture
def given(tmp_path: Path, tiny_model: Path, environment_file: Path) -> RelaxConfig:
    return with_options(
        RelaxConfig(),
        {"run_dir": str(tmp_path / "run"), "hf_checkpoint": str(tiny_model), "env_file": str(environment_file)},
    )


@pytest.fixture
def actors(ray_head: str) -> Iterator[None]:
    """Ray, and none of the actors afterwards."""
    yield
    for name in (f"{RUN}.engine-0", f"{RUN}.leader"):
        kill(name)


@pytest.mark.ray
@pytest.mark.usefixtures("actors")
def test_every_actor_and_its_server_get_the_variables_and_are_replaced_when_they_change(
    given: RelaxConfig, environment_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, str]] = []

    def start_trainer(config: RelaxConfig, name: str, *, variables: dict[str, str], **options: Any) -> Any:
        told.append(dict(variables))
        return get_or_start(Leader, f"{RUN}.leader", timeout=60)[0]

    monkeypatch.setattr(backend_module, "SGLangEngine", Engine)
    monkeypatch.setattr(backend_module, "start_trainer", start_trainer)

    def ensured() -> list[str]:
        backend = RayBackend(given, RUN)
        try:
            return str(backend.ensure()[1].urls[0]).split()
        finally:
            backend.close()

    # the actor, its server, and what an engine without a GPU cannot do without
    *seen, first = ensured()
    assert seen == ["red", "red"]  # CUDA_VISIBLE_DEVICES is empty
    assert ensured() == [*seen, first]  # the same actor
    environment_file.write_text("env_vars:\n  COLOUR: blue\n")
    *seen, second = ensured()
    assert seen == ["blue", "blue"]
    assert second != first  # another process
    assert [variables["COLOUR"] for variables in told] == ["red", "red", "blue"]
    assert result(find(f"{RUN}.engine-0").info.remote(), 30).url.endswith(second)


def test_a_file_that_cannot_be_used_is_an_error_before_anything_starts(given: RelaxConfig) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        RayBackend(with_options(given, {"env_file": "nowhere.yaml"}), RUN)


def test_the_trainers_ranks_get_them_below_what_they_cannot_do_without(given: RelaxConfig) -> None:
    variables = {"COLOUR": "red", "OMP_WAIT_POLICY": "active", "NCCL_CUMEM_ENABLE": "1", "B": "1"}
    config = with_options(given, {"train_env_vars": {"B": "2"}})
    environment = trainer_environment(config, variables)
    assert (environment["COLOUR"], environment["OMP_WAIT_POLICY"], environment["B"]) == ("red", "active", "2")
    assert environment["NCCL_CUMEM_ENABLE"] == "0"
    # with other variables a trainer has to be made anew
    assert trainer_options(config, variables) != trainer_options(config)
