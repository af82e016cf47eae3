from pathlib import Path
from typing import Any

import pytest
from configs import configs, model_folder, thorough, valid_config
from hypothesis import given

from data.errors import UserError
from relax_core.config.examine import check, prepare, validate
from relax_core.config.model_files import read_model_folder
from relax_core.config.options import OPTIONS
from relax_core.config.parser import read_config
from relax_core.config.resolve import resolve
from relax_core.config.sections import RelaxConfig


def problems_of(folder: Path, **options: Any) -> list[str]:
    return [str(problem) for problem in check(valid_config(folder, **options))]


def test_a_sensible_configuration_has_no_problem(tmp_path: Path) -> None:
    config = valid_config(tmp_path)
    assert check(config) == []
    validate(config)
    assert prepare(config).batch.global_batch_size == 32
    assert prepare(prepare(config)) == prepare(config)


def test_an_empty_configuration_lists_everything_that_is_required() -> None:
    options = [problem.option for problem in check(RelaxConfig())]
    assert options == [
        "--hf-checkpoint",
        "--prompt-data",
        "--rollout-batch-size",
        "--num-rollout",
        "--rollout-max-response-len",
        "--rm-type",
    ]
    with pytest.raises(UserError, match="6 options are wrong"):
        validate(RelaxConfig())


def test_one_problem_is_one_paragraph(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        validate(valid_config(tmp_path, rollout_temperature=0.0))
    assert str(caught.value) == "--rollout-temperature 0.0: must be above 0."
    assert caught.value.exit_code != 0


def test_alternatives_to_required_options(tmp_path: Path) -> None:
    assert problems_of(tmp_path, num_rollout=None, num_epoch=1) == []
    assert problems_of(tmp_path, rollout_max_response_len=None, rollout_max_context_len=128) == []
    assert problems_of(tmp_path, rm_type=None, custom_rm_path="relax_core.rewards.judge.group.pairwise") == []
    for instead in ({"rm_type_infer": True}, {"rm_type_fallback": "zero"}, {"use_opd": True}):
        assert not [text for text in problems_of(tmp_path, rm_type=None, **instead) if text.startswith("--rm-type:")]


def test_evaluating_needs_no_training_options(tmp_path: Path) -> None:
    config = valid_config(tmp_path)
    options = {"num_rollout": None, "rollout_batch_size": None, "prompt_data": None}
    evaluation = valid_config(tmp_path, **options, eval_prompt_data=["set", config.data.prompt_data])
    assert check(evaluation, "evaluate") == []
    assert [problem.option for problem in check(valid_config(tmp_path, **options), "evaluate")] == [
        "--eval-prompt-data"
    ]


RANGES = {name: option.range for name, option in OPTIONS.items() if option.range is not None}


def test_every_number_has_a_range() -> None:
    for name, option in OPTIONS.items():
        is_number = option.kind in ("int", "float", "bytes") or option.core_type == list[int]
        assert not is_number or name in RANGES, name


@pytest.mark.parametrize("name", sorted(RANGES))
def test_every_default_is_in_its_range(name: str) -> None:
    default = OPTIONS[name].default
    assert default is None or RANGES[name].holds(default)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rollout_temperature", 0.0),
        ("rollout_temperature", -1.0),
        ("rollout_top_p", 0.0),
        ("rollout_top_p", 1.1),
        ("rollout_top_k", 0),
        ("rollout_batch_size", 0),
        ("n_samples_per_prompt", -1),
        ("num_rollout", 0),
        ("save_interval", 0),
        ("eps_clip", -0.1),
        ("eps_clip_c", 1.0),
        ("kl_loss_coef", -0.1),
        ("adam_beta1", 1.0),
        ("lr", -1e-6),
        ("eval_temperature", -0.1),
        ("tensor_model_parallel_size", 0),
        ("rollout_num_gpus_per_engine", 0),
        ("rollout_stop_token_ids", [-1]),
        ("rollout_seed", -1),
    ],
)
def test_a_number_out_of_range_is_the_only_problem(tmp_path: Path, name: str, value: Any) -> None:
    others = {"use_kl_loss": True} if name == "kl_loss_coef" else {}
    [problem] = check(valid_config(tmp_path, **{name: value}, **others))
    assert problem.option == OPTIONS[name].flag
    assert "must be" in problem.reason


SET = {"eval_prompt_data": ["set", "memory://set.jsonl"]}

RIGHT: list[dict[str, Any]] = [
    {"global_batch_size": 16, "num_steps_per_rollout": 2},
    {"global_batch_size": 8},
    {"resource": {"actor": (1, 4), "rollout": (1, 2)}, "tensor_model_parallel_size": 2},
    {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 128},  # the context is the model's: longer ones go alone
    {"use_kl_loss": True, "kl_loss_coef": 0.1},
    {"use_kl_loss": True, "kl_loss_coef": 0.0},  # measured, not weighted
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    {"recompute_granularity": "selective"},
    {"eval_interval": 2, **SET},
    {"eval_prompt_data": ["memory://set.jsonl"]},
    {"eval_temperature": 0.0, **SET},
    {"save_hf": "out/{rollout_id}"},
    {"n_samples_per_prompt": 1},
    {"lr": 0.0},
    {"prompt_data": "s3://bucket/prompts.parquet@[0:10]"},
]


@pytest.mark.parametrize("options", RIGHT, ids=str)
def test_right_combinations_pass(tmp_path: Path, options: dict[str, Any]) -> None:
    assert problems_of(tmp_path, **options) == []


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"global_batch_size": 12},
        "--global-batch-size 12: does not divide --rollout-batch-size 8 x --n-samples-per-prompt 4 = 32",
    ),
    ({"global_batch_size": 64}, "--global-batch-size 64: does not divide"),
    ({"num_steps_per_rollout": 3}, "--num-steps-per-rollout 3: does not divide"),
    ({"num_steps_per_rollout": 33}, "--num-steps-per-rollout 33: is more than there are samples"),
    (
        {"global_batch_size": 16, "num_steps_per_rollout": 4},
        "--global-batch-size 16: does not agree with --num-steps-per-rollout 4: --rollout-batch-size 8 x"
        " --n-samples-per-prompt 4 = 32 samples a step, which is 2 steps.",
    ),
    (
        {"resource": {"actor": (1, 3), "rollout": (1, 1)}},
        "--global-batch-size 32: cannot be shared out evenly over 3 data-parallel replicas. Make it a multiple of 3.",
    ),
    (
        {"resource": {"actor": (1, 3), "rollout": (1, 1)}, "tensor_model_parallel_size": 2},
        "tensor 2 x pipeline 1 = 2 does not divide the 3 devices of the role actor.",
    ),
    (
        {"resource": {"actor": (1, 1), "rollout": (1, 3)}, "rollout_num_gpus_per_engine": 2},
        "does not divide the 3 devices",
    ),
    ({"resource": {"actor": (2, 1), "rollout": (1, 1)}}, "--resource actor 2: replicas must be 1."),
    ({"resource": {"actor": (1, 0), "rollout": (1, 1)}}, "--resource actor 0: devices must be 1 or more."),
    ({"resource": {"actor": (1, 1)}}, "--resource: gives no devices to the role rollout."),
    (
        {"resource": {"actor": (1, 1), "rollout": (1, 1), "rolout": (1, 1)}},
        "--resource rolout: is no role of this loop. Did you mean rollout?",
    ),
    ({"use_dynamic_batch_size": True}, "--use-dynamic-batch-size: needs --max-tokens-per-gpu"),
    ({"max_tokens_per_gpu": 512}, "--max-tokens-per-gpu 512: has no effect without --use-dynamic-batch-size."),
    (
        {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 100, "rollout_max_context_len": 128},
        "--max-tokens-per-gpu 100: is less than the 128 tokens that a prompt and its response may have.",
    ),
    (
        {"qkv_format": "bshd", "micro_batch_size": 1},
        "--qkv-format bshd: is not supported by this version, only thd is.",
    ),
    (
        {"rollout_max_context_len": 64},
        "--rollout-max-response-len 64: leaves no room for a prompt in a context of 64 tokens.",
    ),
    (
        {"rollout_max_context_len": 128, "rollout_max_prompt_len": 128},
        "--rollout-max-prompt-len 128: leaves no room for a response in a context of 128 tokens. It can be",
    ),
    (
        {"rollout_max_context_len": 128, "sglang_context_length": 100},
        "--sglang-context-length 100: is below --rollout-max-context-len 128",
    ),
    ({"rollout_max_context_len": 4096}, "--rollout-max-context-len 4096: is more than the model's 2048 positions"),
    ({"lr_decay_style": "cosine", "min_lr": 1.0}, "--min-lr 1.0: is above --lr 1e-06."),
    ({"sequence_parallel": True}, "--sequence-parallel: needs --tensor-model-parallel-size above 1."),
    ({"recompute_granularity": "full", "recompute_method": "block"}, "--recompute-num-layers: is required with"),
    (
        {"recompute_granularity": "selective", "recompute_num_layers": 1},
        "--recompute-num-layers 1: has an effect only with",
    ),
    ({"recompute_method": "block"}, "--recompute-method block: has an effect only with"),
    (
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 9},
        "--recompute-num-layers 9: is more than the 4 layers of a pipeline stage.",
    ),
    ({"kl_loss_coef": 0.1}, "--kl-loss-coef 0.1: has no effect without --use-kl-loss."),
    ({"use_kl_loss": True}, "--use-kl-loss: needs --kl-loss-coef, the weight of the KL."),
    ({"use_unbiased_kl": True}, "--use-unbiased-kl: has no effect without --use-kl-loss."),
    ({"eval_interval": 2}, "--eval-interval 2: needs --eval-prompt-data NAME PATH."),
    (
        {"eval_prompt_data": ["a", "x", "b"]},
        "--eval-prompt-data a x b: expects pairs of name and path, and got 3 words.",
    ),
    ({"eval_prompt_data": ["a", "memory://x", "a", "memory://y"]}, "--eval-prompt-data a: names two sets."),
    ({"eval_prompt_data": ["a/b", "memory://x"]}, "--eval-prompt-data a/b: is no name of an evaluation set"),
    ({"save_hf": "out/{step}"}, "--save-hf out/{step}: the only placeholder that it may contain is {rollout_id}."),
    ({"save_hf": "out/{"}, "--save-hf out/{: the only placeholder"),
    (
        {"rollout_stop_token_ids": [512]},
        "--rollout-stop-token-ids 512: is outside the model's vocabulary of 512 entries.",
    ),
    ({"prompt_data": "no/such.jsonl@[0:5]"}, "--prompt-data no/such.jsonl@[0:5]: does not exist (looked in "),
    (
        {"eval_prompt_data": ["a", "no/such.jsonl"]},
        "--eval-prompt-data no/such.jsonl (evaluation set a): does not exist",
    ),
    ({"eval_prompt_data": ["no/such.jsonl"]}, "--eval-prompt-data no/such.jsonl (evaluation set aime): does not exist"),
    ({"hf_checkpoint": "no/such"}, "--hf-checkpoint: There is no model folder no/such."),
    ({"load": "no/such"}, "--load no/such: is no folder. Leave it out for a first run"),
    ({"prompt_data": "x" * 300}, "cannot be read: File name too long."),
    ({"prompt_data": "."}, "--prompt-data .: is a folder, not a file."),
    ({"load": "x" * 300}, "cannot be read: File name too long."),
    ({"hf_checkpoint": "x" * 300}, "cannot be read: File name too long."),
    ({"ref_load": "no/such"}, "--ref-load: There is no model folder no/such."),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=lambda value: str(value)[:60])
def test_wrong_combinations_say_why(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    problems = problems_of(tmp_path, **options)
    assert len(problems) == 1
    assert text in problems[0]


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        # SmolLM2-135M: 9 heads, 3 of them key-value heads, 30 layers
        (
            {"num_attention_heads": 9, "num_key_value_heads": 3},
            {"tensor_model_parallel_size": 2},
            "the model's 9 attention heads",
        ),
        ({"num_key_value_heads": 1}, {"tensor_model_parallel_size": 2}, "the model's 1 key-value heads"),
        ({"vocab_size": 513}, {"tensor_model_parallel_size": 2}, "the model's 513 vocabulary entries"),
        ({"num_hidden_layers": 3}, {"pipeline_model_parallel_size": 2}, "the model's 3 layers"),
    ],
)
def test_the_model_must_allow_the_split(
    tmp_path: Path, model: dict[str, int], options: dict[str, int], text: str
) -> None:
    folder = model_folder(tmp_path / "other", **model)
    resource = {"actor": (1, 2), "rollout": (1, 1)}
    assert any(
        text in problem for problem in problems_of(tmp_path, hf_checkpoint=str(folder), resource=resource, **options)
    )


def test_the_reference_has_the_actors_shape(tmp_path: Path) -> None:
    reference = model_folder(tmp_path / "ref", num_hidden_layers=2)
    (reference / "tokenizer.json").unlink()  # a reference needs none
    [problem] = problems_of(tmp_path, ref_load=str(reference))
    assert "has another shape than --hf-checkpoint: layers 2 instead of 4." in problem


def test_what_can_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    assert "is no checkpoint" in problems_of(tmp_path, load=str(folder))[0]
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    assert problems_of(tmp_path, load=str(folder)) == []


def test_a_reread_configuration_may_weight_the_kl_with_nothing(tmp_path: Path) -> None:
    config = read_config(["--use-kl-loss", "--kl-loss-coef", "0"]).config
    assert not any("kl" in problem.option for problem in check(config))


@thorough
@given(config=configs)
def test_the_check_itself_never_fails(config: RelaxConfig, tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "model"))
    config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"hf_checkpoint": folder})})
    shape = read_model_folder(folder)
    for purpose in ("train", "evaluate"):
        assert check(config, purpose) == check(resolve(config, shape), purpose)  # type: ignore[arg-type]
        for problem in check(config, purpose):  # type: ignore[arg-type]
            assert str(problem).startswith("--")
