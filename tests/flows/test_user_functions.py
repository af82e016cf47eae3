"""A run with functions of the user in every place: what they leave in the run directory, and what an edit repeats.

Fake engine and trainer, real flow and files.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeBackend

from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.config.eval_set import EvalSet
from relax_core.config.options import with_options

pytestmark = pytest.mark.usefixtures("prefect_server")

FUNCTIONS = """
from relax_core.rollout.custom import engine

def prompt(prompt, row):
    return prompt + " " + row["label"] + "?"

async def generate(args, sample, sampling_params, evaluation=False):
    sample.append(await engine().generate(sample.tokens, sampling_params))
    sample.append_context(engine().tokenizer.encode(args.between, add_special_tokens=False))
    sample.append(await engine().generate(sample.tokens, sampling_params))
    sample.metadata["evaluation"] = evaluation
    return sample

def reward(samples):
    return [float(place) for place, _ in enumerate(samples)]

def postprocess(args, samples):
    for sample in samples:
        sample.loss_mask = [0] * sample.response_length if sample.reward == 0 else sample.loss_mask

def process(args, samples):
    return [s.reward + 10 for s in samples], [s.reward - 0.5 for s in samples]

def log(rollout_id, args, samples, extra, time):
    extra["mine/turns"] = 2
    extra["mine/seconds"] = float(time > 0)
    return args.replace

def log_evaluation(rollout_id, args, data, extra):
    extra["mine/evaluated"] = sum(len(one["samples"]) for one in data.values())
"""


def config(folder: Path, model: Path, prompts: Path, file: Path, **options: Any) -> RelaxConfig:
    values = {
        "run_dir": str(folder),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": 2,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 12,
        "rollout_max_context_len": 64,
        "eval_interval": 2,
        "skip_eval_before_train": True,
        "eval_datasets": [EvalSet(name="sums", path=f"{prompts}@[0:3]")],
        "custom_prompt_path": f"{file}:prompt",
        "custom_generate_function_path": f"{file}:generate",
        "custom_rm_path": f"{file}:reward",
        "group_rm": True,
        "rollout_data_postprocess_path": f"{file}:postprocess",
        "custom_reward_post_process_path": f"{file}:process",
        "custom_rollout_log_function_path": f"{file}:log",
        "custom_eval_rollout_log_function_path": f"{file}:log_evaluation",
        "custom_args": {"between": "and", "replace": False},
    }
    return with_options(RelaxConfig(), {**values, **options})


def train(settings: RelaxConfig, backend: FakeBackend) -> dict[str, Any]:
    from flows.train import train

    return train(settings, backend=backend)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return path


def test_every_function_leaves_its_mark(tmp_path: Path, tiny_model: Path, sums: Path, file: Path) -> None:
    backend = FakeBackend()
    train(config(tmp_path / "run", tiny_model, sums, file), backend)
    store = RunStore(str(tmp_path / "run"))
    manifest = store.read_manifest(1)
    assert manifest is not None
    rollout, reward, batch = (
        store.read_table(store.step_path(1, f"{name}.parquet")) for name in ("rollout", "reward", "batch")
    )
    # prompts: rows 2 and 3 of the file, "2 + 2 =" with the label 4
    assert rollout["prompt"].to_pylist() == ["2 + 2 = 4?"] * 2 + ["3 + 2 = 5?"] * 2
    # generation: two turns with what is between them left out
    for mask, log_probs in zip(rollout["loss_mask"].to_pylist(), rollout["rollout_log_probs"].to_pylist(), strict=True):
        turns = "".join(map(str, mask)).strip("0").split("0")
        assert len([turn for turn in turns if turn]) == 2
        assert all((value == 0) == (taken == 0) for value, taken in zip(log_probs, mask, strict=True))
    assert {json.loads(text)["evaluation"] for text in rollout["metadata"].to_pylist()} == {False}
    # rewards: a group's samples get their places
    assert reward["reward"].to_pylist() == [0.0, 1.0, 0.0, 1.0]
    # training: reward 0 is masked out, and advantages are the processed scores
    assert [sum(mask) > 0 for mask in batch["loss_mask"].to_pylist()] == [False, True, False, True]
    assert {value for values in batch["advantages"].to_pylist()[1::2] for value in values if value} == {0.5}
    # metrics: the raw scores are the function's, its own numbers are there beside the usual ones
    metrics = manifest["metrics"]
    assert metrics["raw_reward"] == np.mean([10, 11, 10, 11])
    assert (metrics["mine/turns"], metrics["mine/seconds"], metrics["reward/mean"]) == (2.0, 1.0, 0.5)
    # evaluation: the same function, told that it evaluates
    assert metrics["mine/evaluated"] == 3
    evaluated = store.read_table(store.step_path(1, "eval/sums.parquet"))
    assert {json.loads(text)["evaluation"] for text in evaluated["metadata"].to_pylist()} == {True}
    assert evaluated["prompt"].to_pylist()[0] == "0 + 2 = 2?"


def test_a_true_result_of_the_log_function_leaves_out_the_usual_metrics(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path
) -> None:
    settings = config(
        tmp_path / "run", tiny_model, sums, file, num_rollout=1, custom_args={"between": "and", "replace": True}
    )
    train(settings, FakeBackend())
    manifest = RunStore(str(tmp_path / "run")).read_manifest(0)
    assert manifest is not None
    assert manifest["metrics"]["mine/turns"] == 2.0
    assert not [name for name in manifest["metrics"] if name.startswith(("reward", "raw_reward", "response_len"))]
    assert "loss" in manifest["metrics"]  # that of training stays


def stop_before_training(backend: FakeBackend) -> None:
    def refuse(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    backend.trainer.train = refuse  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("other_file", "repeated"),
    [(False, {"generate", "reward", "advantage"}), (True, {"advantage"})],
    ids=["one file", "another file"],
)
def test_an_edit_repeats_the_stages_that_the_file_decides(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path, other_file: bool, repeated: set[str]
) -> None:
    """The run is stopped before its first update; then the postprocessing is edited, in the one file of all functions
    or in a file of its own."""
    edited = file
    options: dict[str, Any] = {}
    if other_file:
        edited = tmp_path / "other.py"
        edited.write_text(FUNCTIONS)
        options["rollout_data_postprocess_path"] = f"{edited}:postprocess"
    settings = config(tmp_path / "run", tiny_model, sums, file, num_rollout=1, **options)
    store, backend = RunStore(str(tmp_path / "run")), FakeBackend()
    stop_before_training(backend)
    with pytest.raises(KeyboardInterrupt):
        train(settings, backend)
    names = ("generate", "reward", "advantage")

    def keys() -> dict[str, Any]:
        return {name: store.read_json(f"{store.step_path(0, 'stages')}/{name}.json") for name in names}

    before, asked = keys(), backend.engine.generate_calls
    edited.write_text(FUNCTIONS.replace("sample.reward == 0", "sample.reward == 1"))
    with pytest.raises(KeyboardInterrupt):
        train(settings, backend)
    after = keys()
    assert {name for name in names if before[name] != after[name]} == repeated
    assert backend.engine.generate_calls == (2 * asked if "generate" in repeated else asked)
    masks = store.read_table(store.step_path(0, "batch.parquet"))["loss_mask"].to_pylist()
    assert [sum(mask) > 0 for mask in masks] == [True, False, True, False]


def test_a_function_that_cannot_be_used_stops_the_run_before_an_engine_starts(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path
) -> None:
    backend = FakeBackend()
    settings = config(tmp_path / "run", tiny_model, sums, file, rollout_data_postprocess_path=f"{file}:prompts")
    with pytest.raises(UserError, match=r"has no 'prompts'\. Did you mean prompt"):
        train(settings, backend)
    assert backend.ensured == 0


def test_the_chosen_steps_are_profiled(
    tmp_path: Path, tiny_model: Path, sums: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fake engine has no profiler: each attempt is a warning, and the run goes on."""
    settings = config(
        tmp_path / "run", tiny_model, sums, file, sglang_profile=True, sglang_profile_steps=[1], num_rollout=2
    )
    train(settings, FakeBackend())
    assert [record.message.split(":")[0] for record in caplog.records if "profiled" in record.message] == [
        "engine 0 is not profiled"
    ]
