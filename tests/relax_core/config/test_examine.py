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


def words(tmp_path: Path, *more: str) -> list[str]:
    """A valid command line, and these words."""
    config = valid_config(tmp_path)
    return [
        *("--hf-checkpoint", str(config.checkpoint.hf_checkpoint), "--prompt-data", str(config.data.prompt_data)),
        *("--rollout-batch-size", "8", "--num-rollout", "3", "--rollout-max-response-len", "64", *more),
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        # by default there is one sample a prompt, of which a rule would warn
        (["--rm-type", "math", "--n-samples-per-prompt", "four"], "--n-samples-per-prompt four"),
        (["--rm-type", "math", "--n-samples-per-prompt", "4", "--num-rollout", "x"], "--num-rollout x"),
        # that gsm8 gives no dict is not known
        (
            ["--rm-type", "gsm8", "--n-samples-per-prompt", "4", "--log-reward-category", "kind"],
            "--rm-type gsm8",
        ),
    ],
)
def test_nothing_more_is_told_of_a_value_that_is_wrong(tmp_path: Path, more: list[str], told: str) -> None:
    report = examine_given(read_given(words(tmp_path, *more), {}))
    [problem] = report.problems
    assert str(problem).startswith(told)


def test_a_bad_value_of_a_run_file_is_told_once(tmp_path: Path) -> None:
    Path("run.yaml").write_text("rollout:\n  n_samples_per_prompt: four\n")
    [problem] = examine_given(read_given(words(tmp_path, "--rm-type", "math", "--config", "run.yaml"), {})).problems
    assert str(problem).startswith("rollout.n_samples_per_prompt in run.yaml four:")


def test_warnings_of_other_options_stay_beside_an_error(tmp_path: Path) -> None:
    given = words(tmp_path, "--rm-type", "gsm8", "--n-samples-per-prompt", "4", "--opd-kl-coef", "0.5")
    assert [problem.severity for problem in examine_given(read_given(given, {})).problems] == ["error", "warning"]
