"""Parameters of flow runs: read and checked as a command line is."""

from pathlib import Path
from typing import Any

import pytest
from configs import model_folder

from relax_core.config.submitted import given_parameters, run_file_of, submission_problems


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """A run that can start, as parameters."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "1 + 1 =", "label": "2"}\n')
    return {
        "run": {"run_dir": str(tmp_path / "run")},
        "checkpoint": {"hf_checkpoint": str(model_folder(tmp_path / "model"))},
        "data": {"prompt_data": str(prompts), "label_key": "label"},
        "rollout": {
            "num_rollout": 1,
            "rollout_batch_size": 1,
            "n_samples_per_prompt": 1,
            "rollout_max_response_len": 8,
        },
        "reward": {"rm_type": "math"},
    }


def texts(flow: str, parameters: dict[str, Any], files: bool = True) -> list[str]:
    return [str(problem) for problem in submission_problems(flow, parameters, files)]


def test_a_right_submission_has_no_problems(options: dict[str, Any]) -> None:
    assert texts("train", {"config": options, "config_file": ""}) == []


def test_every_mistake_is_told_with_the_rule_s_message(options: dict[str, Any]) -> None:
    options["rollout"]["rollout_batch_size"] = 0
    options["optimizer"] = {"learning": 1}
    found = texts("train", {"config": options})
    assert "optimizer.learning in the parameters: no such option." in found[0]
    assert found[1:] == ["--rollout-batch-size 0 (parameters): must be 1 or more."]


def test_a_rule_over_several_options_is_told(options: dict[str, Any]) -> None:
    options["rollout"]["over_sampling_batch_size"] = 1
    options["rollout"]["rollout_batch_size"] = 2
    assert any("--over-sampling-batch-size 1 (parameters)" in text for text in texts("train", {"config": options}))


def test_parameters_win_over_the_run_file_and_the_environment_stands_between(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("optimizer: {lr: 1.0e-6, weight_decay: 0.5, clip_grad: 3.0}\n")
    environ = {"RELAX_WEIGHT_DECAY": "0.25", "RELAX_LR": "1e-3"}
    given = given_parameters({"optimizer": {"lr": 2e-6}}, str(path), environ)
    found = given.config.optimizer
    assert (found.lr, found.weight_decay, found.clip_grad) == (2e-6, 0.25, 3.0)
    assert given.sources["lr"] == "parameters"
    assert given.sources["weight_decay"] == "environment RELAX_WEIGHT_DECAY"
    assert given.sources["clip_grad"] == f"file {path}"


def test_without_the_files_only_options_are_looked_at(options: dict[str, Any], tmp_path: Path) -> None:
    options["checkpoint"]["hf_checkpoint"] = "/elsewhere/model"
    assert "/elsewhere/model" in texts("train", {"config": options})[0]
    assert texts("train", {"config": options}, files=False) == []
    del options["data"]["prompt_data"]
    options["algorithm"] = {"eps_clip": -1}
    wrong = "--eps-clip -1.0 (parameters): must be between 0 and 1."
    with_a_file_that_is_elsewhere = {"config": options, "config_file": "/elsewhere/run.yaml"}
    assert texts("train", with_a_file_that_is_elsewhere, files=False) == [wrong]


def test_an_evaluation_is_checked_over_the_options_of_its_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert texts("evaluate", {"run_dir": str(run), "config": {"eval": {"eval_top_p": 7}}}) == []  # no run yet
    run.mkdir()
    (run / "config.yaml").write_text(f"run: {{run_dir: {run}}}\n")
    assert run_file_of(str(run)) == f"{run}/config.yaml"
    found = texts("evaluate", {"run_dir": str(run), "config": {"eval": {"eval_top_p": 7}}})
    assert any(text.startswith("--eval-top-p 7.0 (parameters)") for text in found)


@pytest.mark.parametrize("flow", ["replay", "convert", "another"])
def test_flows_without_a_configuration_are_left_to_their_schema(flow: str) -> None:
    assert texts(flow, {"config": {"rollout": {"rollout_batch_size": 0}}}) == []
