"""Secrets of a run: what Prefect keeps of its parameters, and who may read its config.yaml."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from configs import valid_config

from flows.evaluate import evaluate_flow
from flows.parameters import shown, shown_sources
from flows.train import rollout_step, train_flow
from relax_core.config import RelaxConfig, prepare, run_file
from relax_core.config.options import option_values
from relax_core.run.session import RunSession

SECRET = {
    "http_proxy": "http://me:hunter2@proxy:1",
    "notify_urls": "slack://hunter2/x",
    "train_env_vars": {"HF_TOKEN": "hunter2", "NCCL_DEBUG": "INFO"},
    "custom_args": {"api_key": "hunter2"},
}


def given(folder: Path, **options: Any) -> RelaxConfig:
    return valid_config(folder, run_dir=str(folder / "run"), **options)


def session(config: RelaxConfig) -> RunSession:
    progress = SimpleNamespace(note=lambda text: None)
    return RunSession(prepare(config), {}, lambda *_: None, progress)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("of", [train_flow, evaluate_flow])
def test_prefect_keeps_no_secret_of_a_configuration(tmp_path: Path, of: Any) -> None:
    config = given(tmp_path, **SECRET)
    kept = of.serialize_parameters({"config": shown(config)})["config"]
    assert "hunter2" not in json.dumps(kept)
    assert kept["debug"]["http_proxy"] == "http://***@proxy:1"
    assert kept["rollout"]["rollout_batch_size"] == 8
    assert kept["training"]["train_env_vars"] == {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO"}


def test_the_flow_itself_gets_every_value(tmp_path: Path) -> None:
    config = given(tmp_path, **SECRET)
    assert option_values(shown(config)) == option_values(config)
    taken = train_flow.validate_parameters({"config": shown(config)})["config"]
    assert option_values(taken) == option_values(config)


def test_where_a_value_came_from_is_shown_without_a_password() -> None:
    assert shown_sources({"lr": "file s3://me:hunter2@bucket/run.yaml"}) == {"lr": "file s3://***@bucket/run.yaml"}


def test_a_step_shows_prefect_nothing_of_the_run(tmp_path: Path) -> None:
    run = session(given(tmp_path, **SECRET))
    kept = rollout_step.serialize_parameters({"run": run, "step": 0})
    run.close()
    assert kept == {"run": "<RunSession>", "step": 0}


def test_only_its_owner_reads_a_configuration_with_secrets_and_the_run_goes_on_with_it(tmp_path: Path) -> None:
    config = given(tmp_path, **SECRET)
    session(config).close()
    file = tmp_path / "run" / "config.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    # an evaluation, or the same command with --config, needs the values
    assert run_file.load(file.read_text())[0].debug.http_proxy == SECRET["http_proxy"]
    session(config).close()


def test_a_configuration_without_secrets_is_readable_as_ever(tmp_path: Path) -> None:
    session(given(tmp_path)).close()
    file, other = tmp_path / "run" / "config.yaml", tmp_path / "plain"
    other.touch()
    assert file.stat().st_mode == other.stat().st_mode
