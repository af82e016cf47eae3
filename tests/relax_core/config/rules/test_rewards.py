from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.eval_sets import EvalSet
from relax_core.config.rules.genrm import RULES as GENRM
from relax_core.config.rules.mix import RULES as MIX
from relax_core.config.rules.named import KEYS, REWARDS, has_key
from relax_core.config.rules.rewards import RULES
from relax_core.rewards.registry import builtin_rewards
from relax_core.rewards.types import RewardInput

OWN = [rule for rule in RULES if rule not in (*GENRM, *MIX)]
SERVER: dict[str, Any] = {"rm_url": "http://teacher:8000/generate"}
OPD: dict[str, Any] = {"use_opd": True, "opd_type": "sglang", **SERVER}
REMOTE = [EvalSet(name="a", path="memory://set/a.jsonl", rm_type="remote_rm")]
DAPO = [EvalSet(name="a", path="memory://set/a.jsonl", rm_type="dapo")]

CASES: list[tuple[str, Case]] = [
    (
        "fallback-is-known",
        Case(
            {"rm_type_fallback": "gpqaa"},
            "--rm-type-fallback gpqaa: is no reward. Did you mean gpqa?",
            {"rm_type_fallback": "boxed_math"},
        ),
    ),
    (
        "fallback-is-known",
        Case({"rm_type_fallback": "none"}, "--rm-type-fallback none: is no reward. ", {"rm_type_fallback": "zero"}),
    ),
    (
        "reward-is-there",
        Case(
            {"rm_type": "gsm8"},
            "--rm-type gsm8: is no reward of this version. Did you mean ",
            {"rm_type": "gsm8", "rm_type_fallback": "zero"},
        ),
    ),
    (
        "reward-is-there",
        Case(
            {"rm_type": "?"},
            "--rm-type ?: is no reward of this version. Choose one of ",
            {"rm_type": "?", "custom_rm_path": "a.b"},
        ),
    ),
    (
        "reward-is-there",
        Case(
            {"eval_datasets": [EvalSet(name="a", path="memory://set/a.jsonl", rm_type="gsm")]},
            "--eval-datasets gsm: is no reward of this version. ",
            {"eval_datasets": [EvalSet(name="a", path="memory://set/a.jsonl", rm_type="gsm8k")]},
        ),
    ),
    (
        "remote-reward-has-a-service",
        Case(
            {"rm_type": "remote_rm"},
            "--rm-type remote_rm: needs --rm-url, the address of its service.",
            {"rm_type": "remote_rm", **SERVER},
        ),
    ),
    (
        "remote-reward-has-a-service",
        Case(
            {"eval_datasets": REMOTE},
            "--eval-datasets remote_rm: needs --rm-url",
            {"rm_type": "remote_rm", "custom_rm_path": "a.b"},
        ),
    ),
    (
        "service-is-on-the-web",
        Case(
            {"rm_url": "localhost:8000"},
            "--rm-url localhost:8000: is no address of a service. Write http://host:port/path.",
            {"rm_url": "https://[::1]:8000"},
        ),
    ),
    ("service-is-on-the-web", Case({"rm_url": "http://["}, "--rm-url http://[: is no address of a service.", SERVER)),
    (
        "judged-reward-has-a-judge",
        Case(
            {"rm_type": "dapo-genrm", "reward_key": "score"},
            "--rm-type dapo-genrm: needs --genrm-model-path, the model that judges.",
            {"rm_type": "dapo-genrm", "genrm_model_path": "judge"},
        ),
    ),
    (
        "judged-reward-has-a-judge",
        Case(
            {"rm_type_fallback": "boxed_judge"},
            "--rm-type-fallback judge: needs --genrm-model-path, the model that judges.",
            {"rm_type_fallback": "judge", "genrm_model_path": "judge"},
        ),
    ),
    (
        "key-is-of-the-reward",
        Case(
            {"rm_type": "boxed_dapo", "reward_key": "scores"},
            "--reward-key scores: is no key of what the reward boxed_dapo returns. Did you mean score?",
            {"rm_type": "dapo", "reward_key": "acc"},
        ),
    ),
    (
        "key-is-of-the-reward",
        Case(
            {"rm_type": "mix", "reward_mix": {"math": 1, "dapo": 2}, "reward_key": "gsm8k"},
            "--reward-key gsm8k: is no key of what the reward mix returns. Its keys are score, math, dapo, ",
            {"rm_type": "mix", "reward_mix": {"math": 1, "dapo": 2}, "reward_key": "dapo/acc"},
        ),
    ),
    (
        "key-is-of-the-reward",
        Case(
            {"rm_type": "ifbench", "reward_key": "strict"},
            "--reward-key strict: is no key of what the reward ifbench returns. Its keys are score, followed, *:*.",
            {"rm_type": "ifbench", "reward_key": "keywords:existence"},
        ),
    ),
    (
        "key-is-of-the-reward",
        Case(
            {"eval_datasets": DAPO, "eval_reward_key": "right"},
            "--eval-reward-key right: is no key of what the reward dapo returns.",
            {"rm_type": "math", "reward_key": "any"},  # a number has none
        ),
    ),
    (
        "own-reward-wins",
        Case(
            {"custom_rm_path": "a.b"},
            "--rm-type exact_number: is not used: --custom-rm-path scores every sample. Leave one out.",
            {"custom_rm_path": "a.b", "rm_type": None},
        ),
    ),
    (
        "own-reward-needs-no-routing",
        Case(
            {"custom_rm_path": "a.b", "rm_type_infer": True},
            "--rm-type-infer: has no effect: --custom-rm-path scores every sample.",
            {"rm_type_infer": True},
        ),
    ),
    (
        "own-reward-needs-no-routing",
        Case(
            {"custom_rm_path": "a.b", "code_sandbox": "limits"},
            "--code-sandbox limits: has no effect: --custom-rm-path scores every sample.",
            {"code_sandbox": "limits"},
        ),
    ),
    (
        "own-scores-follow-no-policy",
        Case(
            {"custom_reward_post_process_path": "a.b", "truncated_reward_policy": "zero"},
            "--truncated-reward-policy zero: has no effect: --custom-reward-post-process-path makes the scores.",
            {"no_score_policy": "zero", "truncated_reward_policy": "exclude"},
        ),
    ),
    (
        "signature-is-of-a-function",
        Case(
            {"custom_rm_signature": "verl"},
            "--custom-rm-signature verl: has no effect without --custom-rm-path.",
            {"custom_rm_signature": "verl", "custom_rm_path": "a.b"},
        ),
    ),
    (
        "functions-of-trl-return-numbers",
        Case(
            {"custom_rm_signature": "trl", "custom_rm_path": "a.b", "reward_key": "score"},
            "--reward-key score: finds no key: functions of TRL's convention return numbers.",
            {"custom_rm_signature": "verl", "custom_rm_path": "a.b", "reward_key": "score"},
        ),
    ),
    (
        "score-of-dapo",
        Case(
            {"rm_type": "dapo"},
            "--rm-type dapo: returns several values, and no --reward-key says which is the score.",
            {"rm_type": "dapo", "reward_key": "score"},
        ),
    ),
    (
        "categories-of-a-reward",
        Case(
            {"log_reward_category": "error", "rm_type": "math"},
            "--log-reward-category error: finds nothing to count: the reward math returns a number",
            {"log_reward_category": "error", "custom_rm_path": "a.b"},
        ),
    ),
    (
        "group-of-several",
        Case(
            {"group_rm": True, "n_samples_per_prompt": 1},
            "--group-rm: scores groups of one response.",
            {"group_rm": True},
        ),
    ),
    (
        "group-has-a-function",
        Case(
            {"group_rm": True},
            "--group-rm: has no effect on built-in rewards, which score one response at a time.",
            {"group_rm": True, "custom_rm_path": "my_reward.group"},
        ),
    ),
    (
        "own-scores-win",
        Case(
            {"disable_rewards_normalization": True, "custom_reward_post_process_path": "a.b"},
            "--disable-rewards-normalization: has no effect: --custom-reward-post-process-path makes the scores.",
            {"custom_reward_post_process_path": "a.b"},
        ),
    ),
    (
        "mix-has-parts",
        Case(
            {"rm_type": "mix"},
            "--rm-type mix: is the sum of what each row's metadata.reward_mix says",
            {"rm_type": "mix", "reward_mix": {"gsm8k": 1}},
        ),
    ),
    (
        "mix-is-asked-for",
        Case(
            {"reward_mix": {"gsm8k": 1}},
            "counts for rows with a metadata.rm_type of mix alone. Give --rm-type mix",
            {"rm_type": "mix", "reward_mix": {"gsm8k": 1}},
        ),
    ),
    ("distillation-has-a-type", Case({"use_opd": True}, "--use-opd: needs --opd-type sglang or megatron", OPD)),
    (
        "teacher-in-the-trainer-is-loaded",
        Case(
            {"use_opd": True, "opd_type": "megatron"},
            "--opd-type megatron: needs --opd-teacher-load, the teacher's weights.",
            {"use_opd": True, "opd_type": "megatron", "opd_teacher_load": "teacher"},
        ),
    ),
    (
        "teacher-on-a-server-is-not-loaded",
        Case(
            {**OPD, "opd_teacher_load": "teacher"},
            "--opd-teacher-load teacher: cannot be used with --opd-type sglang",
            OPD,
        ),
    ),
    (
        "teacher-has-a-server",
        Case(
            {"use_opd": True, "opd_type": "sglang"},
            "--opd-type sglang: needs --rm-url, the address of the teacher's server.",
            OPD,
        ),
    ),
    (
        "teacher-has-a-server",
        Case(
            {"use_opd": True, "opd_type": "sglang"},
            "--opd-type sglang: needs --rm-url",
            {"use_opd": True, "opd_type": "sglang", "custom_generate_function_path": "mine.generate"},  # it may ask
        ),
    ),
    (
        "service-is-asked",
        Case({**SERVER}, "--rm-url http://teacher:8000/generate: is asked by nothing", OPD),
    ),
    (
        "service-is-asked",
        Case(
            {**SERVER, "rm_type": "mix", "reward_mix": {"math": 1}},
            "--rm-url http://teacher:8000/generate: is asked by nothing",
            {**SERVER, "rm_type": "mix", "reward_mix": {"remote_rm": 1}},
        ),
    ),
    (
        "service-is-asked",
        Case(
            {**OPD, "opd_type": "megatron", "opd_teacher_load": "{folder}/model"},
            "--rm-url http://teacher:8000/generate: is asked by nothing",
            {**SERVER, "rm_type": "remote_rm"},
        ),
    ),
    (
        "teacher-on-a-server-is-not-scaled",
        Case(
            {**OPD, "rollout_temperature": 0.8},
            "--rollout-temperature 0.8: may be refused at the start: SGLang up to 0.5.23 scores",
            {**OPD, "opd_type": "megatron", "opd_teacher_load": "{folder}/model", "rollout_temperature": 0.8},
        ),
    ),
    (
        "one-service-one-address",
        Case({**OPD, "rm_type": "remote_rm"}, "--rm-url http://teacher:8000/generate: cannot be both the service", OPD),
    ),
    (
        "distillation-has-a-weight",
        Case({**OPD, "opd_kl_coef": 0.0}, "--opd-kl-coef 0.0: leaves the teacher without influence.", OPD),
    ),
    (
        "distillation-is-on",
        Case(
            {"opd_kl_coef": 0.5},
            "--opd-kl-coef 0.5: has no effect without --use-opd. Add it, or leave this out.",
            {**OPD, "opd_kl_coef": 0.5},
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(OWN, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_every_reward_that_there_is_can_be_the_fallback() -> None:
    assert set(builtin_rewards()) <= set(REWARDS)


def test_the_keys_are_those_that_the_rewards_return() -> None:
    """Of the rewards that need no engine; `pred` of dapo and `error` of code are texts, no scores."""
    answer = RewardInput("s", "p", "Answer: 5", "5", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]})
    for name in ("dapo", "ifbench"):
        spec = builtin_rewards()[name]
        returned = (spec.quick or spec.function)(answer)
        numbers = [key for key, value in returned.items() if isinstance(value, float)]
        assert all(has_key(KEYS[name], key) for key in numbers)
        assert {key for key in KEYS[name] if "*" not in key} <= set(returned)
    without = RewardInput("s", "p", "no program", None, {"tests": ["assert x == 1"]})
    returned = builtin_rewards()["code"].function(without, code_sandbox="full", reward_timeout=10.0)
    assert set(returned) == {*KEYS["code"], "error"}
    assert {spec.name for spec in builtin_rewards().values() if spec.key} <= set(KEYS)
