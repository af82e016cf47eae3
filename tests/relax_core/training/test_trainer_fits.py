"""Which options a trainer is made with: with other ones it is made anew, so that no change is without effect."""

import ast
from pathlib import Path
from typing import Any

import pytest
from configs import shown

import relax_core.training
from relax_core.config.options import OPTIONS, with_options
from relax_core.config.sections import RelaxConfig
from relax_core.training.actor import trainer_environment, trainer_options
from relax_core.training.roles import Role

OTHER_THINGS = {"async_save", "context_parallel_size", "debug", "offload_train", "run_dir", "save", "split"}
"""Names of options that are also those of methods, of sections and of Megatron's own settings; where a log goes;
whether host memory is taken at the start, which it is in any case when it is wanted."""


def test_every_option_that_the_trainer_reads_is_among_them() -> None:
    folder = Path(next(iter(relax_core.training.__path__)))
    read = {
        node.attr
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in OPTIONS
    }
    made = trainer_options(RelaxConfig()).keys() | trainer_options(RelaxConfig(), role="critic").keys()
    assert read - OTHER_THINGS - made == set()


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"lr": 1.0}, True),
        ({"freeze_params_name_list": ["norm"]}, True),
        ({"overlap_grad_reduce": True}, True),
        ({"train_env_vars": {"A": "1"}}, True),
        ({"batch_p2p_sync": False}, True),  # passed through
        ({"rollout_num_gpus_per_engine": 2}, True),
        ({"resource": {"actor": (1, 2), "rollout": (1, 1)}}, True),
        ({"use_tensorboard": True}, False),
        ({"tb_project_name": "x"}, False),
        ({"sglang_log_level": "debug"}, False),
        ({"save_interval": 7}, False),
        ({"eval_interval": 7}, False),
    ],
    ids=shown,
)
def test_a_trainer_is_made_anew_for_what_it_honours_only(change: dict[str, Any], anew: bool) -> None:
    before, after = (trainer_options(with_options(RelaxConfig(), options)) for options in ({}, change))
    assert (before != after) is anew


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"critic_lr": 1.0}, {"critic"}),
        ({"value_clip": 1.0}, {"critic"}),
        ({"critic_load": "x"}, {"critic"}),
        ({"lr": 1.0}, {"actor"}),
        ({"eps_clip": 0.3}, {"actor"}),
        ({"num_critic_only_steps": 1}, {"actor"}),
        ({"freeze_params_name_list": ["norm"]}, {"actor"}),
        ({"adam_beta1": 0.5}, {"actor", "critic"}),
        ({"tensor_model_parallel_size": 2}, {"actor", "critic"}),
        ({"critic_save": "x"}, set()),
    ],
    ids=shown,
)
def test_an_option_of_one_role_leaves_the_others_trainer_alone(change: dict[str, Any], anew: set[str]) -> None:
    configs = [with_options(RelaxConfig(), {"critic_lr": 0.1, **options}) for options in ({}, change)]
    roles: tuple[Role, ...] = ("actor", "critic")
    found = {role for role in roles if trainer_options(configs[0], role=role) != trainer_options(configs[1], role=role)}
    assert found == anew


def test_the_given_environment_wins() -> None:
    config = with_options(RelaxConfig(), {"train_env_vars": {"OMP_NUM_THREADS": "3", "MINE": "yes"}})
    found = trainer_environment(config)
    assert (found["OMP_NUM_THREADS"], found["MINE"]) == ("3", "yes")
    assert found["GLOO_SOCKET_IFNAME"] == "lo"
