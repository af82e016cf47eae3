import json
import subprocess
import sys
from typing import Any, get_args

import pytest

from relax_core.algorithms.registry import estimators
from relax_core.config.options import OPTIONS, with_options
from relax_core.config.resolve import resolve
from relax_core.config.sections import RelaxConfig
from relax_core.config.stages import CLIPS, LOSS_OPTIONS, MATTERS_WHEN, STAGES, Stage, options_hash, stage_options

IN_STAGES = {name for names in STAGES.values() for name in names}


def test_the_table_names_every_stage_and_no_option_that_is_not_honoured() -> None:
    assert set(STAGES) == set(get_args(Stage))
    assert set(MATTERS_WHEN) <= IN_STAGES
    assert not [name for name in IN_STAGES if OPTIONS[name].unwired]


def test_the_losses_take_what_the_registry_says() -> None:
    assert {spec.name: LOSS_OPTIONS.get(spec.name, CLIPS) for spec in estimators()} == {
        spec.name: spec.loss_options for spec in estimators()
    }


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
    ids=str,
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
