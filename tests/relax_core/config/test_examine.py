from pathlib import Path

import pytest
from configs import valid_config

from relax_core.config.eval_sets import EvalSet
from relax_core.config.examine import examine, examine_given
from relax_core.config.parser import read_given


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["run_dir", "eval_config", "custom_rm_path", "load", "notify_urls"])
def test_an_empty_text_is_told(name: str, tmp_path: Path) -> None:
    report = examine(valid_config(tmp_path, **{name: ""}), sources={name: "command line"})
    flag = f"--{name.replace('_', '-')}"
    assert f'{flag} "" (command line): is empty. Leave it out.' in map(str, report.errors)


@pytest.mark.parametrize("name", ["label_key", "system_prompt"])
def test_an_empty_text_may_mean_something(name: str, tmp_path: Path) -> None:
    report = examine(valid_config(tmp_path, **{name: ""}))
    assert not [problem for problem in report.errors if "is empty" in problem.reason]


def test_nothing_is_called_missing_where_a_file_cannot_be_read() -> None:
    [error] = examine_given(read_given(["--config", "no.yaml"], {})).errors
    assert str(error).startswith("--config no.yaml: cannot be read: No such file")


def test_sets_that_lose_against_those_of_the_run_file_are_told(tmp_path: Path) -> None:
    Path("eval.yaml").write_text("datasets: [{name: b, path: prompts.jsonl}]\n")
    config = valid_config(tmp_path, eval_config="eval.yaml", eval_datasets=[EvalSet(name="a", path="prompts.jsonl")])
    sources = {"eval_config": "command line", "eval_datasets": "file run.yaml"}
    told = [str(problem) for problem in examine(config, sources=sources).warnings]
    assert [text for text in told if "is not used" in text] == [
        "--eval-config eval.yaml (command line): is not used: eval_datasets (file run.yaml) says which sets there are. "
        "Leave one out."
    ]


def test_a_set_whose_file_is_missing_is_named(tmp_path: Path) -> None:
    report = examine(valid_config(tmp_path, eval_prompt_data=["sums", "no.jsonl", "more", ""]))
    told = [str(problem) for problem in report.errors]
    assert any(text.startswith("--eval-prompt-data no.jsonl (evaluation set sums): does not exist") for text in told)
    assert any(text.startswith('--eval-prompt-data "" (evaluation set more): names no file.') for text in told)
