"""Functions that people already have: every convention, plain and asynchronous, of samples and of groups."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data.errors import UserError
from data.ragged import Ragged
from data.schema import ROLLOUT
from data.schema import table as schema_table
from relax_core.config.eval_set import EvalSet
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.custom import load_custom
from relax_core.rewards.pools import Pools
from relax_core.rewards.score import check_reward, score_evaluation, score_table
from relax_core.rewards.signatures import SHAPES, Parameters, recognised

KINDS = ("def", "async def")

Write = Callable[[str], str]
Scored = Callable[..., pa.Table]


def rollout() -> pa.Table:
    """Two groups of two samples; a sample's response is its place, its label 10 times that."""
    count = 4
    return schema_table(
        ROLLOUT,
        {
            "sample_id": [f"000000-000{i // 2}-00{i % 2}" for i in range(count)],
            "group_id": [f"000000-000{i // 2}" for i in range(count)],
            "prompt_id": ["00000000"] * count,
            "group_index": [i // 2 for i in range(count)],
            "index": list(range(count)),
            "step": [0] * count,
            "seed": [0] * count,
            "prompt": [f"q{i}" for i in range(count)],
            "tokens": Ragged.from_list([[7, i] for i in range(count)], np.int32),
            "prompt_length": [1] * count,
            "response_length": [1] * count,
            "response": [str(i) for i in range(count)],
            "label": pa.array([json.dumps(str(10 * i)) for i in range(count)], pa.string()),
            "metadata": [json.dumps({"level": i, "data_source": "sums"}) for i in range(count)],
            "loss_mask": Ragged.from_list([[1]] * count, np.uint8),
            "rollout_log_probs": Ragged.from_list([[-1.0]] * count, np.float32),
            "weight_versions": Ragged.from_list([[0]] * count, np.int32),
            "status": ["completed"] * 3 + ["truncated"],
            "finish_reason": ["stop"] * count,
            "remove_sample": [False] * count,
            "abort_count": [0] * count,
        },
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Path of a reward function, from its text."""
    count = iter(range(100))

    def write(text: str) -> str:
        path = tmp_path / f"mine_{next(count)}.py"
        path.write_text(text)
        return f"{path}:reward"

    return write


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Processes for all tests."""
    with Pools(with_options(RelaxConfig(), {"reward_num_workers": 2})) as pools:
        yield pools


@pytest.fixture
def scored(pools: Pools) -> Scored:
    """Reward table of ``rollout`` by a function of the user."""
    return lambda path, **options: score_table(rollout(), settings(path, **options), pools)


def settings(path: str, **options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), {"custom_rm_path": path, **options})


def rewards(table: pa.Table) -> list[float | None]:
    return table["reward"].to_pylist()


# Each function asserts what it gets, and returns what its system allows; a plain one is called apart from an
# asynchronous one, hence both.
SINGLE = {
    "relax": "reward(sample):\n    assert sample.label == f'{10 * int(sample.response)}'\n    return sample.index\n",
    "slime": (
        "reward(args, sample, **kwargs):\n    assert args.lr == 1e-6 and args.mine == [1] and not kwargs\n"
        "    assert sample.tokens == [7, int(sample.response)] and sample.response_length == 1\n"
        "    assert sample.prompt == f'q{sample.index}' and sample.group_index == sample.index // 2\n"
        "    late = sample.status == sample.Status.TRUNCATED\n    assert late == (sample.index == 3)\n"
        "    return float(sample.label) / 10 + 0.5 * late\n"
    ),
    "verl": (
        "reward(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert data_source == 'sums' and ground_truth == f'{10 * int(solution_str)}'\n"
        "    return {'score': extra_info['level'], 'acc': 1}\n"
    ),
    "verifiers": (
        "reward(prompt, completion, answer, info, state, task):\n"
        "    assert completion == state['completion'] and answer == f'{10 * int(completion)}' and task == 'default'\n"
        "    assert state['is_truncated'] == (completion == '3') and prompt == f'q{completion}'\n"
        "    return info['level']\n"
    ),
}
GROUP = {
    "relax": "reward(samples):\n    return [s.index for s in samples]\n",
    "slime": "reward(args, samples, **kwargs):\n    return [s.index + 10 * len(samples) for s in samples]\n",
    "verl": (
        "reward(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):\n"
        "    return [{'score': int(s) + 10 * len(solution_strs)} for s in solution_strs]\n"
    ),
    "trl": (
        "reward(completions, prompts, answer, level, label, **kwargs):\n    assert answer == label\n"
        "    assert kwargs == {'data_source': ['sums'] * 2} and prompts == [f'q{i}' for i in level]\n"
        "    return [None if c == '1' else int(c) + 10 * len(completions) for c in completions]\n"
    ),
    "verifiers": (
        "reward(completions, states, **kwargs):\n    assert sorted(kwargs) == 'answers infos prompts tasks'.split()\n"
        "    return [int(c) + 10 * len(states) for c in completions]\n"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("convention", SINGLE)
def test_a_function_of_samples_gets_what_its_system_gives(
    write: Write, scored: Scored, convention: str, kind: str
) -> None:
    path = write(f"{kind} {SINGLE[convention]}")
    expected = [0, 1, 2, 3.5 if convention == "slime" else 3]
    for said in ("auto", convention):
        assert rewards(scored(path, custom_rm_signature=said, custom_args={"mine": [1]})) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("convention", GROUP)
def test_a_function_of_groups_gets_a_group_at_a_time(write: Write, scored: Scored, convention: str, kind: str) -> None:
    path = write(f"{kind} {GROUP[convention]}")
    own_way = convention in ("trl", "verl", "verifiers")  # their names say that they take groups
    expected: list[float | None] = [0, 1, 2, 3] if convention == "relax" else [20, 21, 22, 23]
    if convention == "trl":
        expected[1] = None  # no score
    for group_rm in (True, False) if own_way else (True,):
        assert rewards(scored(path, group_rm=group_rm, label_key="answer")) == expected


def test_an_evaluation_has_the_columns_of_its_own_set(write: Write) -> None:
    path = write("def reward(completions, gold, **kwargs):\n    return [float(g) for g in gold]\n")
    eval_set = EvalSet(name="a", path="a.jsonl", custom_rm_path=path, label_key="gold")
    evaluated = score_evaluation(rollout(), eval_set, settings(path, label_key="answer"))
    assert evaluated["reward"].to_pylist() == [0, 10, 20, 30]


@pytest.mark.parametrize(
    "text",
    [
        "def reward(completions, prompts, **kwargs):\n"
        "    assert prompts[0] == [{'role': 'user', 'content': f\"q{completions[0][0]['content']}\"}]\n"
        "    return [int(c[0]['content']) for c in completions]\n",
        "def reward(completion, prompt):\n    assert prompt[0]['role'] == 'user'\n"
        "    return int(completion[-1]['content'])\n",
    ],
)
def test_where_prompts_are_conversations_texts_are_messages(write: Write, scored: Scored, text: str) -> None:
    assert rewards(scored(write(text), apply_chat_template=True)) == [0, 1, 2, 3]


def test_verls_label_may_stand_where_its_data_sets_have_it(write: Write) -> None:
    path = write("def reward(data_source, solution_str, ground_truth, extra_info):\n    return float(ground_truth)\n")
    table = rollout()
    labels = pa.array([json.dumps({"style": "rule", "ground_truth": "5"})] * 2 + [None] * 2, pa.string())
    metadata = pa.array([json.dumps({"reward_model": {"ground_truth": 6}, "extra_info": {"a": 1}})] * 4)
    for name, column in (("label", labels), ("metadata", metadata)):
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    assert score_table(table, settings(path))["reward"].to_pylist() == [5, 5, 6, 6]


def test_a_reward_key_wins_over_verls_own(write: Write, scored: Scored) -> None:
    path = write("def reward(data_source, solution_str, ground_truth):\n    return {'score': 1, 'acc': 2}\n")
    assert rewards(scored(path)) == [1] * 4
    assert rewards(scored(path, reward_key="acc")) == [2] * 4
    number = write("def reward(data_source, solution_str, ground_truth):\n    return 0.25\n")
    assert rewards(scored(number)) == [0.25] * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reward(completions, **kw):\n    return [1.0]\n", "returned 1 results for the 2 samples of group 000000-0000"),
        ("reward(completions, **kw):\n    return 1.0\n", "returned a float, not a list, .*TRL's gets the completions"),
        ("reward(completions, **kw):\n    return ['a', 'b']\n", "returned 'a', a str, for sample 000000-0000-000"),
        ("reward(completions, **kw):\n    return 1 / 0\n", "failed on the 2 samples of group .*ZeroDivisionError"),
        (
            "reward(completions, gold):\n    pass\n",
            r"needs gold, .* beside 000000-000\d-000 .*data_source, label, level",
        ),
        (
            "reward(data_source, solution_str, ground_truth):\n    return {'acc': 1}\n",
            "a dict without the key 'score' for sample 000000-0000-000; its keys are 'acc'",
        ),
        (
            "reward(args, sample):\n    return args.no_such\n",
            "failed on sample 000000-0000-000: AttributeError: .*no_such",
        ),
        ("reward(completion):\n    return completion\n", "returned '0', a str, for sample 000000-0000-000"),
    ],
)
def test_a_wrong_answer_names_function_sample_and_what_was_expected(
    write: Write, scored: Scored, kind: str, text: str, message: str
) -> None:
    path = write(f"{kind} {text}")
    with pytest.raises(UserError, match=message) as error:
        rewards(scored(path, reward_max_concurrency=1))
    assert path in str(error.value)
    assert error.value.fix


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("policy", "score"), [("zero", 0.0), ("no_score", None)])
@pytest.mark.parametrize(
    "text",
    [
        "reward(completions, **kw):\n    return [1] * (len(completions) - ('0' in completions))\n",
        "reward(args, samples):\n    return [1] * (2 - (samples[0].index == 0))\n",
        "reward(data_source, solution_str, ground_truth):\n"
        "    return 1 if solution_str > '1' else {'no': 'score'} if solution_str else None\n",
        "reward(completion, answer):\n    return {'0': 'x', '1': 1e39}.get(completion, 1)\n",
    ],
)
def test_the_policy_holds_for_every_convention(
    write: Write, scored: Scored, kind: str, policy: str, score: float | None, text: str
) -> None:
    path = write(f"{kind} {text}")
    table = scored(path, reward_error_policy=policy, group_rm="samples" in text)
    assert table["reward"].to_pylist() == [score, score, 1, 1]
    assert table["outcome"].to_pylist() == ["failed", "failed", "scored", "scored"]
    assert table["error"].null_count == 2


@pytest.mark.parametrize(
    ("shape", "convention"),
    [
        ("sample", "relax"),
        ("s, weight=1", "relax"),
        ("samples", "relax"),
        ("args, sample", "slime"),
        ("args, samples, **kwargs", "slime"),
        ("_, sample", "slime"),
        ("data_source, solution_str, ground_truth, extra_info=None", "verl"),
        ("solution_str, ground_truth, **kwargs", "verl"),
        ("data_sources, solution_strs, ground_truths, extra_infos", "verl"),
        ("completions, **kwargs", "trl"),
        ("prompts, completions, ground_truth", "trl"),
        ("completion, answer", "verifiers"),
        ("state", "verifiers"),
        ("prompt, completion, answer, state, **kwargs", "verifiers"),
        ("states", "verifiers"),
        ("completions, answers, states", "verifiers"),
    ],
)
def test_the_names_of_the_arguments_tell_the_convention(shape: str, convention: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def reward({shape}): pass", namespace)
    assert recognised(Parameters.of(namespace["reward"]), "f") == convention


@pytest.mark.parametrize(
    ("shape", "seen"),
    [
        ("a, b", "fit no convention"),
        ("*args, **kwargs", "fit no convention"),
        ("args, sample=None", "look like those of slime and relax"),
        ("completions, answers", "look like those of trl and verifiers"),
        ("solution_str, completions", "look like those of verl and trl"),
    ],
)
def test_arguments_that_tell_nothing_or_several_are_listed_with_the_ways_to_say_it(
    write: Write, shape: str, seen: str
) -> None:
    path = write(f"def reward({shape}):\n    return 1\n")
    with pytest.raises(UserError) as error:
        check_reward(settings(path))
    text = str(error.value)
    assert f"({shape}) {seen}" in text
    assert all(name in text for name in ("--custom-rm-path", "--custom-rm-signature", *SHAPES))


@pytest.mark.parametrize(
    ("shape", "convention", "message"),
    [
        ("a, b", "relax", r"cannot be called with one argument: .*`def reward\(sample\)`"),
        ("sample", "slime", "cannot be called with two arguments"),
        ("solution_str, tokenizer", "verl", "needs tokenizer, which Relax does not have .*verl's convention"),
        ("prompts", "trl", "has no argument completions"),
        ("completion, parser", "verifiers", "needs parser, which Relax does not have"),
    ],
)
def test_a_convention_that_is_said_is_held_to(write: Write, shape: str, convention: str, message: str) -> None:
    path = write(f"def reward({shape}):\n    return 1\n")
    with pytest.raises(UserError, match=message):
        load_custom(path, adapter=convention)


def test_a_function_of_one_sample_is_no_function_of_groups(write: Write) -> None:
    for shape in ("data_source, solution_str, ground_truth", "completion, answer"):
        with pytest.raises(UserError, match="scores one sample at a time"):
            load_custom(write(f"def reward({shape}):\n    return 1\n"), of_group=True)


def test_a_convention_that_is_said_settles_what_the_names_leave_open(write: Write, scored: Scored) -> None:
    path = write("def reward(*args, **kwargs):\n    return float(args[0].response)\n")
    assert rewards(scored(path, custom_rm_signature="relax")) == [0, 1, 2, 3]
    path = write("def reward(completions, answers=None, **kwargs):\n    return [float(c) for c in completions]\n")
    assert (
        rewards(scored(path, custom_rm_signature="trl"))
        == rewards(scored(path, custom_rm_signature="verifiers"))
        == [0, 1, 2, 3]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_slimes_metadata_can_set_the_raw_reward(write: Write, scored: Scored, kind: str) -> None:
    path = write(f"{kind} reward(args, sample):\n    sample.metadata['raw_reward'] = 7\n    return 1\n")
    assert scored(path)["raw_reward"].to_pylist() == [7] * 4


@pytest.mark.parametrize(
    ("name", "convention"),
    [
        ("slime_reward", "slime"),
        ("compute_score", "verl"),
        ("trl_reward", "trl"),
        ("rubric_reward", "verifiers"),
        ("reward", "relax"),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_the_examples_of_the_documentation_score(
    write: Write, pools: Pools, name: str, convention: str, chat: bool
) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/reward.md").read_text()
    [block] = [text for text in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if f"def {name}(" in text]
    path = write(block).replace(":reward", f":{name}")
    assert load_custom(path).convention == convention
    table = rollout()
    labels = pa.array(['"0"', '"0"', '"2"', '"2"'], pa.string())  # of the responses 0, 1, 2, 3
    table = table.set_column(table.schema.get_field_index("label"), table.schema.field("label"), labels)
    scored = score_table(table, settings(path, apply_chat_template=chat), pools)
    assert scored["reward"].to_pylist() == [1, 0, 1, 0]
