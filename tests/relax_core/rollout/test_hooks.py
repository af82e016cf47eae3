"""Functions of the user around the rollout: what they get, what is taken over, and what is told of mistakes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data.errors import UserError
from data.ragged import Ragged
from data.schema import EVAL, REWARD, ROLLOUT, conform
from data.schema import table as schema_table
from relax_core.algorithms.batch import training_batch
from relax_core.config.eval_set import EvalSet
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rollout.hooks import (
    advantage_sources,
    check_functions,
    log_evaluation,
    log_rollout,
    post_processed,
    processed_scores,
    prompt_converter,
)
from relax_core.rollout.sample import Sample, samples_of

LENGTHS = [2, 1, 3, 0]
SCORES = [1.0, 0.0, None, 2.0]
IDS = [f"000000-000{i // 2}-00{i % 2}" for i in range(4)]


def tables() -> tuple[pa.Table, pa.Table]:
    """Two groups of two samples; the scores in another order than the samples."""
    tokens = Ragged.from_list([[7, *range(length)] for length in LENGTHS], np.int32)
    ones = Ragged.from_lengths(np.ones(sum(LENGTHS), np.uint8), LENGTHS)
    rollout = schema_table(
        ROLLOUT,
        {
            "sample_id": IDS,
            "group_id": [name[:11] for name in IDS],
            "prompt_id": ["00000000"] * 4,
            "group_index": [0, 0, 1, 1],
            "index": [0, 1, 2, 3],
            "step": [0] * 4,
            "seed": [0] * 4,
            "prompt": ["q"] * 4,
            "tokens": tokens,
            "prompt_length": [1] * 4,
            "response_length": LENGTHS,
            "response": [str(length) for length in LENGTHS],
            "label": pa.array(['{"a": 1}', None, None, None], pa.string()),
            "metadata": ['{"m": 1}'] * 4,
            "loss_mask": ones,
            "rollout_log_probs": Ragged(np.linspace(-1, 0, sum(LENGTHS), dtype=np.float32), ones.offsets),
            "weight_versions": [[0]] * 4,
            "status": ["completed", "truncated", "completed", "completed"],
            "finish_reason": ["stop"] * 4,
            "remove_sample": [False] * 4,
            "abort_count": [0] * 4,
        },
    )
    order = [3, 1, 0, 2]
    reward = schema_table(
        REWARD,
        {
            "sample_id": [IDS[i] for i in order],
            "group_id": [IDS[i][:11] for i in order],
            "reward": pa.array([SCORES[i] for i in order], pa.float32()),
            "raw_reward": pa.array([SCORES[i] for i in order], pa.float32()),
            "rm_type": ["x"] * 4,
        },
    )
    return rollout, reward


@pytest.fixture
def given(tmp_path: Path) -> Any:
    """A configuration in which an option names the function ``f`` of this text."""

    def make(option: str, text: str, **options: Any) -> RelaxConfig:
        (tmp_path / "mine.py").write_text(text)
        return with_options(RelaxConfig(), {option: f"{tmp_path}/mine.py:f", "n_samples_per_prompt": 2, **options})

    return make


def test_samples_have_the_values_of_their_rows_and_their_scores() -> None:
    samples = samples_of(*tables())
    assert [sample.reward for sample in samples] == SCORES
    first = samples[0]
    assert (first.sample_id, first.tokens, first.response_length, first.prompt_length) == (IDS[0], [7, 0, 1], 2, 1)
    assert (first.label, first.metadata, first.loss_mask) == ({"a": 1}, {"m": 1}, [1, 1])
    assert first.rollout_log_probs == pytest.approx([-1.0, -0.8])
    assert samples[1].status is Sample.Status.TRUNCATED
    rollout, reward = tables()
    assert samples_of(rollout.drop_columns("token_versions"), reward) == samples  # of a file of version 1
    versions = pa.array([[3, -1], [3], [3, 4, 4], []], pa.list_(pa.int32()))
    rollout = rollout.set_column(ROLLOUT.get_field_index("token_versions"), "token_versions", versions)
    assert [sample.token_versions for sample in samples_of(rollout, reward)] == versions.to_pylist()


# --rollout-data-postprocess-path


def test_without_a_function_the_rollout_is_the_same() -> None:
    rollout, reward = tables()
    assert post_processed(rollout, reward, RelaxConfig()) is rollout
    assert processed_scores(rollout, reward, RelaxConfig()) is None
    assert advantage_sources(RelaxConfig()) == {}


POSTPROCESS = """
def f(args, samples):
    for sample in samples:
        sample.loss_mask = [int(value < args.limit) for value in sample.rollout_log_probs]
        sample.remove_sample = sample.reward == args.removed
"""


def test_loss_masks_and_removed_samples_are_taken_over_into_the_batch(given: Any) -> None:
    rollout, reward = tables()
    config = given("rollout_data_postprocess_path", POSTPROCESS, custom_args={"limit": -0.5, "removed": 0.0})
    changed = post_processed(rollout, reward, config)
    # log-probs -1, -0.8 | -0.6 | -0.4, -0.2, 0 | nothing
    assert changed["loss_mask"].to_pylist() == [[1, 1], [1], [0, 0, 0], []]
    assert changed["remove_sample"].to_pylist() == [False, True, False, False]
    same = [name for name in ROLLOUT.names if name not in ("loss_mask", "remove_sample")]
    assert changed.select(same).equals(rollout.select(same))
    old = rollout.drop_columns("token_versions")  # as a file of version 1 is read
    assert post_processed(old, reward, config).equals(changed)
    batch, _ = training_batch(changed, reward, config)
    assert batch["loss_mask"].to_pylist() == [[1, 1], [0], [0, 0, 0], []]  # removed: not trained on
    # and it counts in its group: scores 1 and 0, mean 0.5
    assert batch["advantages"].to_pylist()[0][0] > 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return samples", "returned a list. Change the samples in place"),
        ("samples[0].loss_mask = [1]", "a loss_mask of sample 000000-0000-000 that is not 2 times 0 or 1"),
        ("samples[0].loss_mask = [1, 2]", "that is not 2 times 0 or 1"),
        ("samples[9]", "failed on the samples of a step: IndexError"),
    ],
)
def test_what_a_postprocessing_function_may_not_do(given: Any, body: str, message: str) -> None:
    config = given("rollout_data_postprocess_path", f"def f(args, samples):\n    {body}\n")
    with pytest.raises(UserError, match=message) as error:
        post_processed(*tables(), config)
    assert "--rollout-data-postprocess-path" in error.value.problem


# --custom-reward-post-process-path


def test_processed_scores_stand_for_the_normalisation(given: Any) -> None:
    text = (
        "def f(args, samples):\n    raw = [s.reward for s in samples]\n"
        "    return raw, [None if r is None else 10 * r + s.group_index for r, s in zip(raw, samples)]\n"
    )
    config = given("custom_reward_post_process_path", text)
    rollout, reward = tables()
    processed = processed_scores(rollout, reward, config)
    assert processed is not None
    np.testing.assert_array_equal(processed[0], [1.0, 0.0, np.nan, 2.0])
    np.testing.assert_array_equal(processed[1], [10.0, 0.0, np.nan, 21.0])
    batch, _ = training_batch(rollout, reward, config, processed)
    assert batch["advantages"].to_pylist()[:2] == [[10.0, 10.0], [0.0]]
    assert batch["loss_mask"].to_pylist() == [[1, 1], [1], [0, 0, 0], []]  # no score: not trained on
    assert batch["reward"].to_pylist() == SCORES


def test_a_function_may_score_what_the_reward_did_not_and_groups_need_no_size(given: Any) -> None:
    text = "import numpy as np\ndef f(args, samples):\n    return np.zeros(len(samples)), np.ones(len(samples))\n"
    config = given("custom_reward_post_process_path", text, n_samples_per_prompt=3)
    rollout, reward = tables()
    batch, _ = training_batch(rollout, reward, config, processed_scores(rollout, reward, config))
    assert batch["loss_mask"].to_pylist()[2] == [1, 1, 1]
    assert batch["reward"].to_pylist() == [0.0] * 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1] * 4", "returned a list, not a pair"),
        ("return None", "returned a NoneType, not a pair"),
        ("return [1] * 4, [1] * 3", "returned 3 processed scores for 4 samples"),
        ("return [1] * 3, [1] * 4", "returned 3 raw scores for 4 samples"),
        ("return ['x'] * 4, [1] * 4", "returned raw scores that are no numbers"),
        ("return [1] * 4, [0, float('inf'), 0, 0]", "infinite score for sample 000000-0000-001"),
        ("return 1 / 0", "ZeroDivisionError"),
    ],
)
def test_wrong_processed_scores_are_told(given: Any, body: str, message: str) -> None:
    config = given("custom_reward_post_process_path", f"def f(args, samples):\n    {body}\n")
    with pytest.raises(UserError, match=message) as error:
        processed_scores(*tables(), config)
    assert "--custom-reward-post-process-path" in error.value.problem


def test_the_sources_of_what_decides_the_batch_follow_their_files(given: Any) -> None:
    option, text = "rollout_data_postprocess_path", "def f(args, samples):\n    pass\n"
    first, second = (advantage_sources(given(option, text + more)) for more in ("", "# more\n"))
    assert first.keys() == second.keys() == {"--rollout-data-postprocess-path"}
    assert first != second


# Logs


def test_a_log_function_sees_the_rollout_and_may_add_to_or_replace_the_metrics(given: Any, tmp_path: Path) -> None:
    text = """
def f(rollout_id, args, samples, extra, time):
    extra["seen"] = rollout_id + len(samples) + time
    extra["best"] = max(s.reward for s in samples if s.reward is not None)
    return args.replace
"""
    for replace in (True, False):
        config = given("custom_rollout_log_function_path", text, custom_args={"replace": replace})
        assert log_rollout(*tables(), config, step=3, seconds=0.5) == (replace, {"seen": 7.5, "best": 2.0})
    assert log_rollout(*tables(), RelaxConfig(), step=3, seconds=0.5) == (False, {})


def test_an_evaluation_log_function_sees_every_set(given: Any) -> None:
    text = """
def f(rollout_id, args, data, extra):
    for name, one in data.items():
        extra[f"{name}/sum"] = sum(score or 0 for score in one["rewards"])
        extra[f"{name}/truncated"] = sum(one["truncated"])
        extra[f"{name}/samples"] = len(one["samples"]) + rollout_id
"""
    rollout, reward = tables()
    table = rollout.replace_schema_metadata(None)
    for column in ("reward", "raw_reward", "rm_type", "components", "error"):
        ordered = reward.take([2, 1, 3, 0])
        table = table.append_column(column, ordered[column])
    config = given("custom_eval_rollout_log_function_path", text)
    replaced, extra = log_evaluation({"a": conform(table, EVAL)}, config, step=2)
    assert not replaced
    assert extra == {"a/sum": 3.0, "a/truncated": 1.0, "a/samples": 6.0}
    assert log_evaluation({"a": table}, RelaxConfig(), step=2) == (False, {})


def test_metrics_that_are_no_numbers_are_told(given: Any) -> None:
    text = "def f(rollout_id, args, samples, extra, time):\n    extra['x'] = 'much'\n"
    with pytest.raises(UserError, match="put something else than numbers into `extra`"):
        log_rollout(*tables(), given("custom_rollout_log_function_path", text), step=0, seconds=0.0)


# --custom-prompt-path


def test_a_prompt_function_gets_prompt_and_row_and_its_failure_names_the_row(given: Any) -> None:
    convert = prompt_converter(given("custom_prompt_path", "def f(prompt, data):\n    return prompt + data['b']\n"))
    assert convert is not None
    assert convert("a", {"b": "c"}, "x.jsonl, line 1") == "ac"
    with pytest.raises(UserError, match=r"--custom-prompt-path .* failed on x.jsonl, line 2: KeyError: 'b'"):
        convert("a", {}, "x.jsonl, line 2")
    assert prompt_converter(RelaxConfig()) is None


# Before a run

OPTIONS = [
    ("custom_prompt_path", "def f(prompt):\n    pass\n", r"convert\(prompt, row\)"),
    ("rollout_data_postprocess_path", "def f(samples):\n    pass\n", r"postprocess\(args, samples\)"),
    ("custom_reward_post_process_path", "async def f(args, samples):\n    pass\n", r"`def process\(args, samples\)`"),
    ("custom_rollout_log_function_path", "def f(a, b):\n    pass\n", r"log\(rollout_id, args, samples, extra, time\)"),
    ("custom_eval_rollout_log_function_path", "def f(a):\n    pass\n", r"log\(rollout_id, args, data, extra\)"),
    ("custom_generate_function_path", "def f(a, b, c):\n    pass\n", r"async def generate\(args, sample, sampl"),
]


@pytest.mark.parametrize(("option", "text", "message"), OPTIONS, ids=[option for option, _, _ in OPTIONS])
def test_mistakes_in_functions_are_found_before_a_run(given: Any, option: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        check_functions(given(option, text))
    assert f"--{option.replace('_', '-')}" in error.value.problem
    check_functions(RelaxConfig())


def test_mistakes_in_the_function_of_an_evaluation_set_are_found_before_a_run() -> None:
    one = EvalSet(name="a", path="a.jsonl", custom_generate_function_path="no_such_module.f")
    with pytest.raises(UserError, match="no_such_module"):
        check_functions(with_options(RelaxConfig(), {"eval_datasets": [one]}))
