"""Scoring a rollout table."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from data.errors import UserError
from data.ragged import Ragged
from data.schema import REWARD, ROLLOUT, schema_id
from data.schema import table as schema_table
from relax_core.config.eval_set import EvalSet
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.calls import Call, Scorer
from relax_core.rewards.score import check_reward, score_evaluation, score_table
from relax_core.rewards.sources import evaluation_source_hash, reward_source_hash
from relax_core.rewards.types import RewardInput, RewardSpec


def rollout(*rows: dict) -> pa.Table:
    """Rows with `response`, and optionally `label`, `metadata`, `status`; two tokens each."""
    n = len(rows)
    one = Ragged.from_list([[1]] * n, np.uint8)
    return schema_table(
        ROLLOUT,
        {
            "sample_id": [f"000000-{i:04d}-000" for i in range(n)],
            "group_id": [f"000000-{i:04d}" for i in range(n)],
            "prompt_id": ["00000000"] * n,
            "group_index": list(range(n)),
            "index": list(range(n)),
            "step": [0] * n,
            "seed": [0] * n,
            "prompt": ["q"] * n,
            "tokens": Ragged.from_list([[1, 2]] * n, np.int32),
            "prompt_length": [1] * n,
            "response_length": [1] * n,
            "response": [row["response"] for row in rows],
            "label": pa.array([json.dumps(row["label"]) if "label" in row else None for row in rows], pa.string()),
            "metadata": [json.dumps(row.get("metadata", {})) for row in rows],
            "loss_mask": one,
            "rollout_log_probs": one.astype(np.float32),
            "weight_versions": one.astype(np.int32),
            "status": [row.get("status", "completed") for row in rows],
            "finish_reason": ["stop"] * n,
            "remove_sample": [False] * n,
            "abort_count": [0] * n,
        },
    )


def settings(**reward) -> RelaxConfig:
    return RelaxConfig.model_validate({"reward": reward})


@pytest.fixture
def custom(tmp_path):
    """Path of a reward module with this text."""

    def write(text: str) -> str:
        path = tmp_path / "user_reward.py"
        path.write_text(text)
        return f"{path}:reward"

    return write


def test_every_row_gets_a_reward_row_with_its_id():
    table = rollout({"response": "4", "label": 4}, {"response": "5", "label": 4}, {"response": "4", "label": "4.0"})
    rewards = score_table(table, settings(rm_type="exact_number"))
    assert schema_id(rewards.schema) == schema_id(REWARD)
    assert rewards["sample_id"].to_pylist() == table["sample_id"].to_pylist()
    assert rewards["group_id"].to_pylist() == table["group_id"].to_pylist()
    assert rewards["reward"].to_pylist() == rewards["raw_reward"].to_pylist() == [1.0, 0.0, 1.0]
    assert rewards["rm_type"].to_pylist() == ["exact_number"] * 3
    assert rewards["error"].null_count == 3


def test_the_rows_own_reward_wins():
    table = rollout(
        {"response": "4", "label": 4, "metadata": {"rm_type": "gsm8k"}},  # no mark: 0
        {"response": "4", "label": 4},
    )
    rewards = score_table(table, settings(rm_type="exact_number"))
    assert rewards["reward"].to_pylist() == [0.0, 1.0]
    assert rewards["rm_type"].to_pylist() == ["gsm8k", "exact_number"]


def test_aborted_and_failed_samples_have_no_score_and_truncated_ones_have(custom):
    table = rollout(*({"response": "4", "status": s} for s in ("completed", "truncated", "aborted", "failed")))
    path = custom("def reward(sample):\n    assert sample.status in ('completed', 'truncated')\n    return 1\n")
    rewards = score_table(table, settings(custom_rm_path=path))
    assert rewards["reward"].to_pylist() == [1.0, 1.0, None, None]
    assert rewards["error"].to_pylist() == [None, None, "the sample was aborted", "the sample was failed"]


def test_all_aborted_without_any_reward_named_is_no_error():
    rewards = score_table(rollout({"response": "", "status": "aborted"}), settings())
    assert rewards["reward"].to_pylist() == [None]


def test_an_empty_rollout_gives_an_empty_table():
    assert score_table(rollout(), settings(rm_type="dummy")).num_rows == 0


def test_no_score_nan_and_zero_are_three_things(custom):
    path = custom("def reward(sample):\n    return {'none': None, 'nan': float('nan'), 'zero': 0}[sample.response]\n")
    table = rollout({"response": "none"}, {"response": "nan"}, {"response": "zero"})
    scored = score_table(table, settings(custom_rm_path=path))
    assert scored["outcome"].to_pylist() == ["no_score", "nan", "scored"]
    assert scored["error"].to_pylist() == ["the reward returned no score", "the reward returned NaN", None]
    column = scored["reward"]
    assert column.null_count == 1
    assert column[0].as_py() is None
    assert np.isnan(column[1].as_py())
    assert column[2].as_py() == 0.0


def test_a_custom_function_sees_the_sample(custom):
    path = custom(
        "def reward(s):\n"
        "    assert (s.sample_id, s.prompt, s.response, s.label, s.metadata, s.response_length, s.status) == "
        "('000000-0000-000', 'q', 'r', {'a': [1]}, {'k': 2}, 1, 'truncated'), s\n    return True\n"
    )
    row = {"response": "r", "label": {"a": [1]}, "metadata": {"k": 2}, "status": "truncated"}
    rewards = score_table(rollout(row), settings(custom_rm_path=path))
    assert rewards["reward"].to_pylist() == [1.0]
    assert rewards["rm_type"].to_pylist() == [path]


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_dict_reward_with_its_key(custom, keyword):
    text = "{'score': 0.5, 'acc': 1, 'pred': 'x', 'bad': float('inf')}"
    path = custom(f"{keyword} reward(sample):\n    return {text}\n")
    rewards = score_table(rollout({"response": "r"}), settings(custom_rm_path=path, reward_key="score"))
    assert rewards["reward"].to_pylist() == rewards["raw_reward"].to_pylist() == [0.5]
    assert json.loads(rewards["components"][0].as_py()) == {"acc": 1.0, "pred": "x", "bad": None}


@pytest.mark.parametrize("keyword", ["def", "async def"])
@pytest.mark.parametrize(
    ("body", "key", "message"),
    [
        ("return {'acc': 1}", "score", r"without the --reward-key 'score' for sample 000000-0000-000.*'acc'"),
        ("return {'acc': 1}", None, "a dict for sample 000000-0000-000.*--reward-key"),
        ("return 0.5", "score", "a float for sample 000000-0000-000.*'score' expects a dict"),
        ("return 'good'", None, r"'good', a str, for sample 000000-0000-000.*Expected a number"),
        ("return [1]", None, "a list, for sample 000000-0000-000"),
        ("return {'score': 'x'}", "score", "a str, for sample 000000-0000-000"),
        ("return float('inf')", None, "inf for sample 000000-0000-000"),
        ("return -1e39", None, "float32 cannot hold"),
        ("return 10 ** 400", None, "float32 cannot hold"),
        ("raise KeyError('k')", None, "user_reward.py:reward failed on sample 000000-0000-000: KeyError: 'k'"),
        ("sample.metadata['raw_reward'] = 'x'; return 1", None, "set metadata.raw_reward to 'x'"),
    ],
)
def test_a_wrong_reward_stops_with_function_and_sample(custom, keyword, body, key, message):
    path = custom(f"{keyword} reward(sample):\n    {body}\n")
    with pytest.raises(UserError, match=message) as error:
        score_table(rollout({"response": "r"}), settings(custom_rm_path=path, reward_key=key))
    assert "user_reward.py:reward" in str(error.value)


def test_an_exception_shows_the_users_line(custom):
    path = custom("def reward(sample):\n    return 1 / len(sample.response)\n")
    with pytest.raises(UserError) as error:
        score_table(rollout({"response": ""}), settings(custom_rm_path=path))
    assert "return 1 / len(sample.response)" in error.value.details


def test_numpy_and_zero_dimensional_values_are_numbers(custom):
    path = custom("import numpy as np\ndef reward(s):\n    return np.float32(0.5) if s.response else np.array(2)\n")
    rewards = score_table(rollout({"response": "r"}, {"response": ""}), settings(custom_rm_path=path))
    assert rewards["reward"].to_pylist() == [0.5, 2.0]


def test_a_function_may_report_another_raw_reward(custom):
    path = custom("def reward(s):\n    s.metadata['raw_reward'] = 7\n    return 0.5\n")
    rewards = score_table(rollout({"response": "r"}), settings(custom_rm_path=path))
    assert rewards["reward"].to_pylist() == [0.5]
    assert rewards["raw_reward"].to_pylist() == [7.0]


def test_rows_of_several_builtin_rewards_need_no_key_or_one_that_some_of_them_have():
    """dapo has score and acc, code score and passed, math is a number."""
    rows = rollout(
        {"response": "Answer: 4", "label": "4", "metadata": {"rm_type": "dapo"}},
        {"response": "4", "label": "4", "metadata": {"rm_type": "exact_number"}},
        {"response": "no program", "label": [{"input": "1", "output": "2"}], "metadata": {"rm_type": "code"}},
    )
    for key in (None, "acc", "score"):
        rewards = score_table(rows, settings(rm_type=None, reward_key=key))
        assert rewards["reward"].to_pylist() == [1, 1, 0], key
        assert set(rewards["outcome"].to_pylist()) == {"scored"}


def test_a_builtin_number_needs_no_reward_key():
    rewards = score_table(rollout({"response": "4", "label": 4}), settings(rm_type="exact_number", reward_key="score"))
    assert rewards["reward"].to_pylist() == [1.0]


def test_a_sample_without_any_reward_is_an_error():
    with pytest.raises(UserError, match=r"000000-0000-000 has no reward.*--rm-type"):
        score_table(rollout({"response": "r"}), settings())


def test_a_coroutine_behind_a_plain_function_is_awaited(custom):
    path = custom("async def inner(s):\n    return 0.75\ndef reward(s):\n    return inner(s)\n")
    assert score_table(rollout({"response": "r"}), settings(custom_rm_path=path))["reward"].to_pylist() == [0.75]


def test_async_rewards_overlap_within_the_limit_and_keep_their_order():
    running, most = 0, 0

    async def reward(sample: RewardInput) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (20 - int(sample.sample_id)))  # the last ones finish first
        running -= 1
        return float(sample.sample_id)

    spec = RewardSpec("judge", reward, True, "", "")
    outcomes = Scorer(concurrency=3)([Call(spec, (RewardInput(str(i), "", ""),)) for i in range(20)])
    assert [outcome.score for [outcome] in outcomes] == list(range(20))
    assert most == 3


def test_the_first_async_error_cancels_the_rest(custom):
    cancelled = []

    async def reward(sample: RewardInput) -> float:
        if sample.sample_id == "1":
            raise ValueError("no")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(sample.sample_id)
            raise
        return 1.0

    spec = RewardSpec("judge", reward, True, "", "")
    with pytest.raises(UserError, match="judge failed on sample 1"):
        Scorer()([Call(spec, (RewardInput(str(i), "", ""),)) for i in range(3)])
    assert sorted(cancelled) == ["0", "2"]


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_scores_are_the_same_from_threads_and_inside_a_running_loop(custom, keyword):
    path = custom(f"import asyncio\n{keyword} reward(sample):\n    return int(sample.response)\n")
    table, config = rollout(*({"response": str(i)} for i in range(10))), settings(custom_rm_path=path)
    expected = list(range(10))
    assert threading.current_thread() is threading.main_thread()
    with ThreadPoolExecutor(2) as threads:
        for rewards in threads.map(lambda _: score_table(table, config), range(4)):
            assert rewards["reward"].to_pylist() == expected

    async def in_loop() -> pa.Table:
        return score_table(table, config)

    assert asyncio.run(in_loop())["reward"].to_pylist() == expected


def test_the_source_hash_follows_the_users_file(custom):
    first = reward_source_hash(settings(custom_rm_path=custom("def reward(s):\n    return 1\n")))
    second = reward_source_hash(settings(custom_rm_path=custom("def reward(s):\n    return 2\n")))
    builtin = reward_source_hash(settings(rm_type="gsm8k"))
    assert len({first, second, builtin}) == 3
    assert builtin == reward_source_hash(settings())


@pytest.mark.parametrize("options", [{"rm_type": "gsm8"}, {"custom_rm_path": "no_such_module.f"}])
def test_mistakes_are_found_before_the_run(options):
    with pytest.raises(UserError):
        check_reward(settings(**options))


def test_no_reward_at_all_may_be_right_as_rows_can_name_their_own():
    check_reward(settings())


def eval_set(**fields) -> EvalSet:
    return EvalSet(name="a", path="a.jsonl", **fields)


def test_a_set_is_scored_by_its_function_else_by_the_rows_reward_else_by_its_default(custom):
    table = rollout({"response": "4", "label": 4, "metadata": {"rm_type": "exact_number"}}, {"response": "4"})
    chosen = score_evaluation(table, eval_set(default_rm_type="dummy"), RelaxConfig())
    assert chosen["rm_type"].to_pylist() == ["exact_number", "dummy"]
    path = custom("def reward(s):\n    return {'a': 1, 'b': 2}\n")
    by_key = score_evaluation(table, eval_set(custom_rm_path=path, reward_key="b"), RelaxConfig())
    assert by_key["reward"].to_pylist() == [2.0, 2.0]


def test_an_empty_text_stands_for_no_function_and_no_key(custom):
    table = rollout({"response": "4", "label": 4})
    by_name = eval_set(custom_rm_path="", default_rm_type="exact_number")
    assert score_evaluation(table, by_name, RelaxConfig())["reward"].to_pylist() == [1.0]
    number = eval_set(custom_rm_path=custom("def reward(s):\n    return 3\n"), reward_key="")
    assert score_evaluation(table, number, RelaxConfig())["reward"].to_pylist() == [3.0]


def test_the_source_hash_of_an_evaluation_follows_the_function_of_each_set(custom):
    def hashed(text):
        other = EvalSet(name="b", path="b.jsonl", default_rm_type="gsm8k")
        return evaluation_source_hash([other, eval_set(custom_rm_path=custom(text))], RelaxConfig())

    one, two = (f"def reward(s):\n    return {number}\n" for number in (1, 2))
    assert hashed(one) == hashed(one) != hashed(two)


@pytest.mark.parametrize(
    "fields",
    [
        {"rm_type": "gsm8"},
        {"default_rm_type": "gsm8"},
        {"metadata_overrides": {"rm_type": "gsm8"}},
        {"custom_rm_path": "no_such_module.f"},
    ],
)
def test_mistakes_in_the_reward_of_a_set_are_found_before_the_run(fields):
    config = RelaxConfig.model_validate(
        {"reward": {"rm_type": "gsm8k"}, "eval": {"eval_datasets": [eval_set(**fields)]}}
    )
    with pytest.raises(UserError, match="Evaluation set a: "):
        check_reward(config)


def test_reward_max_concurrency_bounds_what_is_in_flight(custom, tmp_path):
    path = custom(
        "import asyncio\nrunning, most = 0, 0\nasync def reward(sample):\n    global running, most\n    running += 1\n"
        "    most = max(most, running)\n    await asyncio.sleep(0.002)\n    running -= 1\n    return most\n"
    )
    table = rollout(*({"response": str(i)} for i in range(30)))
    for limit in (1, 7):
        scores = score_table(table, settings(custom_rm_path=path, reward_max_concurrency=limit))["reward"].to_pylist()
        assert max(scores) == limit
        path = path.replace("user_reward.py", "other_reward.py")
        (tmp_path / "other_reward.py").write_text((tmp_path / "user_reward.py").read_text())


def grouped(groups: list[str], statuses: list[str] | None = None) -> pa.Table:
    """A sample for each entry, in the group of that name; its response is its place."""
    rows = [{"response": str(i), "status": (statuses or ["completed"] * len(groups))[i]} for i in range(len(groups))]
    table = rollout(*rows)
    return table.set_column(1, table.schema.field("group_id"), pa.array(groups))


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_group_rm_gives_the_function_whole_groups_once_each(custom, keyword):
    # Each sample's score is its rank in its group, and 10 times the size: samples of a group need not be neighbours.
    path = custom(
        f"{keyword} reward(samples):\n    order = sorted(int(s.response) for s in samples)\n"
        "    return [order.index(int(s.response)) + 10 * len(samples) for s in samples]\n"
    )
    table = grouped(["a", "b", "a", "b", "a"])
    rewards = score_table(table, settings(custom_rm_path=path, group_rm=True))
    assert rewards["sample_id"].to_pylist() == table["sample_id"].to_pylist()
    assert rewards["reward"].to_pylist() == [30, 20, 31, 21, 32]
    evaluated = score_evaluation(table, eval_set(custom_rm_path=path), settings(group_rm=True))
    assert evaluated["reward"].to_pylist() == [30, 20, 31, 21, 32]


def test_samples_of_a_group_that_are_never_scored_are_not_given_to_its_function(custom):
    path = custom("def reward(samples):\n    return [len(samples)] * len(samples)\n")
    table = grouped(["a", "a", "a", "b"], ["completed", "aborted", "truncated", "failed"])
    rewards = score_table(table, settings(custom_rm_path=path, group_rm=True))
    assert rewards["reward"].to_pylist() == [2, None, 2, None]  # b: not called at all


def test_the_call_of_a_group_counts_as_one(custom):
    path = custom(
        "import asyncio\nrunning, most = 0, 0\nasync def reward(samples):\n    global running, most\n"
        "    running += 1\n    most = max(most, running)\n    await asyncio.sleep(0.002)\n    running -= 1\n"
        "    return [most] * len(samples)\n"
    )
    table = grouped([f"g{i % 6}" for i in range(24)])
    options = settings(custom_rm_path=path, group_rm=True, reward_max_concurrency=2)
    assert max(score_table(table, options)["reward"].to_pylist()) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1.0]", "returned 1 results for the 2 samples of group a"),
        ("return 1.0", "returned a float, not a list, for the 2 samples of group a"),
        ("return {'a': 1, 'b': 2}", "returned a dict, not a list"),
        ("return ['good', 1]", "returned 'good', a str, for sample 000000-0000-000"),
        ("return 1 / 0", "failed on the 2 samples of group a: ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_for_a_group_names_function_and_group(custom, body, message):
    path = custom(f"def reward(samples):\n    {body}\n")
    with pytest.raises(UserError, match=message) as error:
        score_table(grouped(["a", "a"]), settings(custom_rm_path=path, group_rm=True))
    assert path in error.value.problem


def test_built_in_rewards_score_each_sample_with_group_rm_too():
    table = rollout({"response": "4", "label": 4}, {"response": "5", "label": 4})
    assert score_table(table, settings(rm_type="exact_number", group_rm=True))["reward"].to_pylist() == [1.0, 0.0]


def test_reward_functions_see_the_proxy_of_requests_to_the_outside(custom):
    path = custom("import os\ndef reward(sample):\n    return float(os.environ.get('https_proxy') == 'http://p:1')\n")
    config = RelaxConfig.model_validate({"reward": {"custom_rm_path": path}, "debug": {"http_proxy": "http://p:1"}})
    assert score_table(rollout({"response": "r"}), config)["reward"].to_pylist() == [1.0]
    config.debug.http_proxy = None
    assert score_table(rollout({"response": "r"}), config)["reward"].to_pylist() == [0.0]
