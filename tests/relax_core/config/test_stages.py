import json
import subprocess
import sys
from typing import Any, get_args

import pytest
from configs import shown

from relax_core.algorithms.registry import estimators
from relax_core.config.options import OPTIONS, with_options
from relax_core.config.resolve import resolve
from relax_core.config.sections import RelaxConfig
from relax_core.config.stages import MATTERS_WHEN, STAGES, Stage, options_hash, stage_options

IN_STAGES = {name for names in STAGES.values() for name in names}


def test_the_table_names_every_stage_and_no_option_that_is_not_honoured() -> None:
    assert set(STAGES) == set(get_args(Stage))
    assert set(MATTERS_WHEN) <= IN_STAGES
    assert not [name for name in IN_STAGES if OPTIONS[name].unwired]


def test_an_option_of_a_policy_loss_matters_to_the_estimators_whose_loss_takes_it() -> None:
    names = {name for spec in estimators() for name in spec.loss_options}
    assert names == {"eps_clip", "eps_clip_high", "eps_clip_c", "sapo_tau_pos", "sapo_tau_neg"}
    for spec in estimators():
        config = with_options(RelaxConfig(), {"advantage_estimator": spec.name})
        assert names & set(stage_options(config, "train")) == set(spec.loss_options)


def test_a_discount_matters_to_the_estimators_that_read_it() -> None:
    names = {"gamma", "lambd"} & IN_STAGES
    for spec in estimators():
        config = with_options(RelaxConfig(), {"advantage_estimator": spec.name})
        assert names & set(stage_options(config, "advantage")) == names & set(spec.advantage_options)


def test_options_that_are_passed_through_are_part_of_the_stages_that_they_change() -> None:
    passed = {"deterministic_mode": True, "sglang_chunked_prefill_size": 512, "sglang_kv_cache_dtype": "fp8_e5m2"}
    config = with_options(RelaxConfig(), passed)
    assert stage_options(config, "train")["deterministic_mode"] is True
    assert stage_options(config, "generate")["sglang_kv_cache_dtype"] == "fp8_e5m2"
    assert "sglang_chunked_prefill_size" not in stage_options(config, "generate")  # the same up to rounding


def changed_stages(base: dict[str, Any], change: dict[str, Any]) -> set[str]:
    before, after = (resolve(with_options(RelaxConfig(), options)) for options in (base, base | change))
    return {
        stage
        for stage in STAGES
        if options_hash(stage_options(before, stage)) != options_hash(stage_options(after, stage))
    }


GROUP = {
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 4,
    "rollout_max_response_len": 64,
    "eval_prompt_data": ["set", "set.jsonl"],
}


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({"rm_type": "gsm8k"}, {"reward", "evaluate"}),
        ({"disable_rewards_normalization": True}, {"advantage"}),
        ({"lr": 1.0}, {"train"}),
        ({"eps_clip": 0.3}, {"train"}),
        ({"sapo_tau_pos": 2.0}, set()),
        ({"sapo_tau_pos": 2.0, "advantage_estimator": "sapo"}, {"advantage", "train"}),
        ({"normalize_advantages": True}, {"advantage"}),
        ({"tis_clip": 3.0, "opsm_delta": 1.0}, set()),
        ({"use_tis": True}, {"train"}),
        ({"rollout_temperature": 0.7}, {"generate", "train", "evaluate"}),
        ({"rollout_temperature": 0.7, "eval_temperature": 1.0}, {"generate", "train"}),
        ({"rollout_seed": 1}, {"generate", "evaluate"}),
        ({"seed": 1}, {"train"}),
        ({"eval_prompt_data": ["x.jsonl"]}, {"evaluate"}),
        ({"eval_interval": 3}, set()),
        ({"num_rollout": 9}, set()),
        ({"num_rollout": 9, "lr_decay_style": "cosine"}, {"train"}),
        ({"kl_loss_type": "k3"}, set()),
        ({"use_kl_loss": True}, {"train"}),
        ({"resource": {"actor": (1, 4), "rollout": (1, 2)}}, set()),
        ({"tensor_model_parallel_size": 2}, set()),
        ({"sglang_log_level": "info"}, set()),
        ({"run_dir": "elsewhere"}, set()),
        ({"bf16": True}, {"generate", "train", "evaluate"}),  # the engine's data type follows it
        ({"n_samples_per_prompt": 2}, {"generate", "train"}),  # train: the batch is half as large
        ({"n_samples_per_prompt": 1}, {"generate", "advantage", "train"}),  # no division by a deviation
    ],
    ids=shown,
)
def test_a_change_reaches_exactly_the_stages_whose_output_it_changes(change: dict[str, Any], stages: set[str]) -> None:
    assert changed_stages(GROUP, change) == stages


def test_conditions_on_options_that_only_then_matter() -> None:
    cosine = {**GROUP, "lr_decay_style": "cosine", "num_rollout": 5}
    assert changed_stages(cosine, {"num_rollout": 6}) == {"train"}
    assert changed_stages(cosine, {"num_epoch": 6}) == set()  # --num-rollout wins
    assert changed_stages({**GROUP, "use_kl_loss": True}, {"kl_loss_type": "k3"}) == {"train"}
    own = {**GROUP, "custom_generate_function_path": "mine.generate"}
    assert changed_stages(own, {"custom_args": {"turns": 2}}) == {"generate", "advantage", "train", "evaluate"}
    assert changed_stages(GROUP, {"custom_args": {"turns": 2}}) == set()  # no function reads them


def test_a_loss_of_the_user_may_read_every_option_of_the_loss() -> None:
    own = {**GROUP, "loss_type": "custom_loss", "custom_loss_function_path": "mine.loss"}
    for change in ({"kl_loss_coef": 0.1}, {"sapo_tau_pos": 2.0}, {"opsm_delta": 1.0}, {"custom_args": {"beta": 2}}):
        assert "train" in changed_stages(own, change)
    assert changed_stages(own, {"custom_loss_function_path": "mine.other"}) == {"train"}


def test_without_advantages_nothing_of_them_matters() -> None:
    own = {**GROUP, "loss_type": "custom_loss", "custom_loss_function_path": "mine.loss"}
    none = {**own, "disable_compute_advantages_and_returns": True}
    assert changed_stages(own, {"disable_compute_advantages_and_returns": True}) == {"advantage", "train"}
    assert changed_stages(none, {"disable_rewards_normalization": True}) == set()
    assert changed_stages(none, {"advantage_estimator": "gspo"}) == {"train"}  # which is told its name
    assert changed_stages(none, {"custom_reward_post_process_path": "mine.process"}) == {"advantage"}


PPO = {
    **GROUP,
    "advantage_estimator": "ppo",
    "resource": {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 1), "advantages": (1, 0)},
}


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({"critic_lr": 0.5}, {"train_critic"}),
        ({"critic_lr_warmup_iters": 2}, {"train_critic"}),
        ({"value_clip": 0.5}, {"train_critic"}),
        ({"lr": 1e-4}, {"train_critic", "train"}),  # --critic-lr follows it
        ({"lr": 1e-4, "critic_lr": 1e-6}, {"train"}),
        ({"lr_warmup_iters": 2}, {"train"}),
        ({"eps_clip": 0.3}, {"train"}),
        ({"entropy_coef": 0.1}, {"train"}),
        ({"adam_beta1": 0.8}, {"train_critic", "train"}),
        ({"calculate_per_token_loss": True}, {"train_critic", "train"}),
        ({"deterministic_mode": True}, {"train_critic", "train"}),
        ({"freeze_params_name_list": ["norm"]}, {"train"}),
        ({"num_critic_only_steps": 1}, {"train"}),
        ({"critic_train_only": True}, {"train"}),
        ({"critic_load": "elsewhere"}, {"forward", "train_critic"}),
        ({"lambd": 0.5}, {"advantage"}),
        ({"critic_save": "elsewhere"}, set()),
    ],
    ids=shown,
)
def test_what_an_option_of_ppo_reaches(change: dict[str, Any], stages: set[str]) -> None:
    assert changed_stages(PPO, change) == stages


def test_nothing_of_a_critic_matters_without_one() -> None:
    for change in ({"critic_lr": 0.5}, {"value_clip": 0.5}, {"critic_load": "x"}, {"num_critic_only_steps": 1}):
        assert changed_stages(GROUP, change) == set()
    assert stage_options(RelaxConfig(), "train_critic") == {}


def test_stage_options_are_json() -> None:
    for stage in STAGES:
        json.dumps(stage_options(RelaxConfig(), stage))


def test_the_hash_is_the_same_in_every_process_and_order() -> None:
    options = stage_options(RelaxConfig(), "generate")
    assert options_hash(dict(reversed(options.items()))) == options_hash(options)
    code = (
        "from relax_core.config import RelaxConfig, options_hash, stage_options\n"
        "print(options_hash(stage_options(RelaxConfig(), 'generate')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == options_hash(options)


def test_the_hash_fits_a_key() -> None:
    assert options_hash({}).isalnum()
    assert len(options_hash({})) == 32
