"""``relax evaluate`` on a run: its options come from the run's own file, which is named where something is wrong."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from configs import valid_config

from data.store import RunStore
from flows.cli import run as command
from flows.cli.main import main
from relax_core.config import OPTIONS, dump
from relax_core.config.sources import DEFAULT, FILE


@pytest.fixture(params=["{tmp}/run", "memory://evaluate-command"])
def run_dir(request: Any, tmp_path: Path) -> str:
    """The address of a run that was given a temperature and an evaluation set."""
    address = str(request.param).format(tmp=tmp_path)
    config = valid_config(tmp_path, rollout_temperature=0.5, eval_prompt_data=["sums", "missing.jsonl"])
    given = {"hf_checkpoint", "prompt_data", "rollout_temperature", "eval_prompt_data", "rollout_max_response_len"}
    sources = {name: FILE if name in given else DEFAULT for name in OPTIONS}
    RunStore(address).write_bytes("config.yaml", dump(config, sources).encode())
    return address


def test_the_runs_own_options_count_unless_they_are_given_anew(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, sums: Path
) -> None:
    import flows.evaluate

    seen = []
    monkeypatch.setattr(flows.evaluate, "evaluate", lambda config, again: seen.append((config, again)))
    monkeypatch.setattr(command, "_quiet_logs", lambda: None)
    words = ["--run-dir", run_dir, "--eval-prompt-data", "sums", str(sums), "--rm-type", "exact_number"]
    assert main(["evaluate", *words]) == 0
    assert main(["evaluate", "--again", *words]) == 0
    (config, again), (_, anew) = seen
    assert (again, anew) == (False, True)
    assert config.rollout.rollout_temperature == 0.5
    assert config.eval.eval_prompt_data == ["sums", str(sums)]
    assert config.run.run_dir == run_dir


def test_a_mistake_in_them_names_the_runs_file_and_nothing_is_left_behind(
    run_dir: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(command, "_quiet_logs", lambda: None)
    assert main(["evaluate", "--run-dir", run_dir, "--rm-type", "exact_number"]) == 2
    told = capsys.readouterr().err
    assert "missing.jsonl" in told
    store = RunStore(run_dir)
    store.write_bytes("config.yaml", b"rollout:\n  rollout_temperature: warm\n")
    assert main(["evaluate", "--run-dir", run_dir, "--rm-type", "exact_number"]) == 2
    assert f"rollout.rollout_temperature in {run_dir}/config.yaml" in capsys.readouterr().err
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_run_file_may_be_remote(run_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", f"{run_dir}/config.yaml"]) in (0, 1, 2)
    assert "cannot be read" not in capsys.readouterr().out
    assert main(["doctor", "--config", f"{run_dir}/none.yaml"]) == 2
    assert f"--config {run_dir}/none.yaml" in capsys.readouterr().out
