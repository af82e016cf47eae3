"""A user's reward function as a reward (how functions are loaded: ``tests/relax_core/test_functions.py``; by which
convention they are called: ``test_adapters``)."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from effect_probes import rollout_table

from data.errors import UserError
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.custom import load_custom
from relax_core.rewards.messages import FunctionName
from relax_core.rewards.score import score_table
from relax_core.rewards.sources import reward_source_hash
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
    file = write(tmp_path, "def reward(a, b):\n    return 1\n")
    with pytest.raises(UserError, match=r"--custom-rm-path .*define it as `def reward\(sample\)`"):
        load_custom(f"{file}:reward")
    with pytest.raises(UserError, match=r"Define it as `def reward\(samples\)`"):
        load_custom(f"{file}:reward", of_group=True, adapter="relax")
    with pytest.raises(UserError, match=r"has no 'rewrd'. Did you mean 'reward'\?"):
        load_custom(f"{file}:rewrd")


@pytest.mark.parametrize("adapter", ["auto", "slime"])
def test_another_process_finds_the_same_function(tmp_path: Path, adapter: str) -> None:
    file = write(tmp_path, "def reward(args, sample):\n    return args.lr\n")
    spec = load_custom(f"{file}:reward", adapter=adapter, settings=lambda convention: json.dumps({"lr": 0.5}))
    name = FunctionName.of(spec)
    assert hash(name) == hash(FunctionName.of(spec))
    assert name.load().function(SAMPLE) == spec.function(SAMPLE) == 0.5


def test_slimes_arguments_are_the_options_and_the_free_values(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "def reward(args, sample):\n    assert args.rollout_stop == ['END'] and args.resource['actor'] == [1, 2]\n"
        "    return args.mine['a'] + args.n_samples_per_prompt\n",
    )
    options = {"rollout_stop": ["END"], "resource": {"actor": (1, 2)}, "custom_args": {"mine": {"a": 1}}}
    config = with_options(RelaxConfig(), {"custom_rm_path": f"{file}:reward", "n_samples_per_prompt": 4, **options})
    assert score_table(rollout_table(), config)["reward"].to_pylist() == [5] * 4


def test_the_identity_of_a_function_that_gets_free_values_covers_them(tmp_path: Path) -> None:
    def hashed(text: str, value: int) -> str:
        path = f"{write(tmp_path, text)}:reward"
        return reward_source_hash(with_options(RelaxConfig(), {"custom_rm_path": path, "custom_args": {"a": value}}))

    slime, relax = "def reward(args, sample):\n    return 1\n", "def reward(sample):\n    return 1\n"
    assert hashed(slime, 1) != hashed(slime, 2)
    assert hashed(relax, 1) == hashed(relax, 2)
