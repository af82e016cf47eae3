"""A user's reward function as a reward (how functions are loaded: ``tests/relax_core/test_functions.py``)."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from data.errors import UserError
from relax_core.rewards.custom import load_custom
from relax_core.rewards.types import RewardInput

SAMPLE = RewardInput("s", "p", "r")


def write(folder: Path, text: str) -> str:
    path = folder / "my_reward.py"
    path.write_text(text)
    return str(path)


def test_a_users_function_is_a_reward_like_the_built_in_ones(tmp_path: Path) -> None:
    file = write(tmp_path, "async def reward(sample):\n    '''One for all.'''\n    return 1.0\n")
    spec = load_custom(f"{file}:reward")
    assert asyncio.run(spec.function(SAMPLE)) == 1.0
    assert (spec.name, spec.custom, spec.is_async, spec.doc) == (f"{file}:reward", True, True, "One for all.")
    assert spec.source_hash == hashlib.sha256(Path(file).read_bytes()).hexdigest()


def test_mistakes_name_the_option_and_the_expected_function(tmp_path: Path) -> None:
    file = write(tmp_path, "def reward(args, sample):\n    return 1\n")
    with pytest.raises(UserError, match=r"--custom-rm-path .*Define it as `def reward\(sample\)`"):
        load_custom(f"{file}:reward")
    with pytest.raises(UserError, match=r"Define it as `def reward\(samples\)`"):
        load_custom(f"{file}:reward", of_group=True)
