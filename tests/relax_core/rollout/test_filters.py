"""Which groups are trained on, and which of the buffer's go on."""

from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.rollout.filters import (
    buffer_filter,
    check_reward_nonzero_std,
    choose,
    dynamic_filter,
    filter_sources,
    verdict,
)
from relax_core.rollout.sample import Sample


def group(*rewards: float | None, name: str = "g") -> list[Sample]:
    return [Sample(f"{name}-{k}", name, k, 0, "p", [1], reward=reward) for k, reward in enumerate(rewards)]


def test_equal_rewards_have_no_spread_whatever_rounding_makes_of_them() -> None:
    """T25: the float32 standard deviation of seven times 0.1 is 8.0e-9."""
    assert check_reward_nonzero_std(None, group(*[0.1] * 7)) == (False, "zero_std_0.1")


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ((0.0, 1.0), (True, None)),
        ((1.0, 1.0), (False, "zero_std_1.0")),
        ((0.0, 1e-6), (False, "zero_std_0.0")),  # unbiased: 1e-6 / sqrt(2) is not above 1e-6
        ((0.0, 2e-6), (True, None)),  # 1.4e-6
        ((0.26,), (False, "zero_std_0.3")),
        ((None, 1.0, 0.0), (True, None)),
        ((None, 1.0), (False, "zero_std_1.0")),
        ((None, float("nan")), (False, "zero_std_none")),
    ],
)
def test_a_group_is_kept_when_the_scores_that_it_has_differ(rewards: Any, said: Any) -> None:
    assert check_reward_nonzero_std(None, group(*rewards)) == said


def test_parts_of_a_sample_count_once() -> None:
    first, second = group(1.0, 1.0)
    third = group(0.0)[0]
    assert check_reward_nonzero_std(None, [[first, second], third]).keep


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


def config(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), options)


def judged(file: Path, body: str, rewards: Any = (0.0, 1.0)) -> Any:
    file.write_text(f"from types import SimpleNamespace\ndef mine(args, group, **kwargs):\n    {body}\n")
    settings = config(dynamic_sampling_filter_path=f"{file}:mine")
    function = dynamic_filter(settings)
    assert function is not None
    return verdict(function, settings, group(*rewards))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return True", (True, None)),
        ("return False", (False, None)),
        ("return sum(one.reward for one in group) > 2, 'low'", (False, "low")),
        ("return SimpleNamespace(keep=0, reason=None)", (False, None)),
        ("return SimpleNamespace(keep=True, reason='whole')", (True, "whole")),
        ("import numpy; return numpy.bool_(True)", (True, None)),
        ("return args.n_samples_per_prompt == 1", (True, None)),
        ("return max(one.get_reward_value(args) for one in group) > 1", (False, None)),  # as slime's filters ask
    ],
)
def test_a_filter_says_whether_a_group_is_kept_in_any_of_three_ways(file: Path, body: str, said: Any) -> None:
    assert judged(file, body) == said


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return None", "returned a NoneType on group g"),
        ("return [True]", "returned a list on group g"),
        ("raise KeyError('x')", "failed on group g: KeyError: 'x'"),
    ],
)
def test_a_filter_that_fails_is_told_with_the_group(file: Path, body: str, problem: str) -> None:
    with pytest.raises(UserError, match=r"--dynamic-sampling-filter-path .*mine.py:mine " + problem):
        judged(file, body)


@pytest.mark.parametrize(
    "path",
    [
        "relax_core.rollout.filters.check_reward_nonzero_std",
        "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
        "relax.engine.filters.dynamic_sampling_filters.check_reward_nonzero_std",
    ],
)
def test_the_built_in_filter_is_reached_under_our_path_and_the_ones_that_it_stands_for(path: str) -> None:
    settings = config(dynamic_sampling_filter_path=path)
    function = dynamic_filter(settings)
    assert function is not None
    assert verdict(function, settings, group(0.1, 0.1)) == (False, "zero_std_0.1")


BUFFER = {name: group(None, None, name=name) for name in ("a", "b", "c")}


def chosen(file: Path, text: str, count: int = 2) -> Any:
    file.write_text(text)
    settings = config(buffer_filter_path=f"{file}:mine")
    return choose(buffer_filter(settings), settings, 4, BUFFER, count)


def test_without_a_function_the_oldest_groups_go_on() -> None:
    assert choose(None, config(), 4, BUFFER, 2) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def mine(args, rollout_id, buffer, num_samples):\n    return buffer[::-1][:num_samples]", (["c", "b"], [])),
        ("def mine(buffer):\n    return [buffer[1]]", (["b"], [])),
        ("def mine(buffer):\n    return buffer[::-1]", (["c", "b"], [])),  # no more than are wanted
        # slime's take what they choose out of the list
        (
            "def mine(args, rollout_id, buffer, num_samples):\n    return [buffer.pop() for _ in range(2)]",
            (["c", "b"], []),
        ),
        ("def mine(args, rollout_id, buffer, num_samples):\n    del buffer[0]\n    return [buffer[0]]", (["b"], ["a"])),
        (
            "def mine(args, rollout_id, buffer, num_samples):\n    return map(buffer.pop, [0, 0])",  # an iterator
            (["a", "b"], []),
        ),
        ("def mine(args, rollout_id, buffer, num_samples):\n    return [] if rollout_id == 4 else buffer", ([], [])),
    ],
)
def test_a_function_chooses_which_groups_go_on_and_which_nobody_wants(file: Path, text: str, found: Any) -> None:
    assert chosen(file, text) == found


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return [buffer[0], buffer[0]]", "returned a group twice, in step 4"),
        ("return 3", "returned a int in step 4 that is no list of groups"),
        ("buffer[0][0].group_id = 'x'\n    return buffer", "returned the group x, which the buffer does not have"),
        ("raise ValueError('no')", "failed on the buffer of step 4: ValueError: no"),
    ],
)
def test_a_buffer_filter_that_fails_is_told(file: Path, body: str, problem: str) -> None:
    BUFFER["a"][0].group_id = "a"
    try:
        with pytest.raises(UserError, match=problem):
            chosen(file, f"def mine(buffer):\n    {body}\n")
    finally:
        BUFFER["a"][0].group_id = "a"


def test_functions_that_cannot_be_called_so_are_refused(file: Path) -> None:
    file.write_text("def mine(a, b):\n    pass\nasync def wait(args, group):\n    pass\n")
    with pytest.raises(UserError, match=r"--buffer-filter-path .* cannot be called with 4 arguments"):
        buffer_filter(config(buffer_filter_path=f"{file}:mine"))
    with pytest.raises(UserError, match="is a coroutine function"):
        dynamic_filter(config(dynamic_sampling_filter_path=f"{file}:wait"))


def test_another_source_is_another_identity(file: Path) -> None:
    settings = config(dynamic_sampling_filter_path=f"{file}:mine")
    file.write_text("def mine(args, group):\n    return True\n")
    first = filter_sources(settings)
    file.write_text("def mine(args, group):\n    return False\n")
    assert first.keys() == {"--dynamic-sampling-filter-path"}
    assert filter_sources(settings) != first
    assert filter_sources(config()) == {}
