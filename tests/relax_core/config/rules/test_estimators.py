from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names, problems_of

from relax_core.config.rules.estimators import RULES

RLOO: dict[str, Any] = {"advantage_estimator": "rloo", "calculate_per_token_loss": True}
PLUS: dict[str, Any] = {"advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True, "kl_coef": 0.1}
BASELINE: dict[str, Any] = {
    "advantage_estimator": "reinforce_plus_plus_baseline",
    "normalize_advantages": True,
    "use_kl_loss": True,
    "kl_loss_coef": 0.1,
    "kl_loss_type": "k2",
}
ROLES = {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 1), "advantages": (1, 0)}
PPO: dict[str, Any] = {"advantage_estimator": "ppo", "resource": ROLES}
TOGETHER: dict[str, Any] = {**PPO, "colocate": True, "use_rollout_logprobs": True}


def without(role: str) -> dict[str, Any]:
    return {**PPO, "resource": {name: devices for name, devices in ROLES.items() if name != role}}


TAUGHT = {"use_opd": True, "opd_type": "sglang", "rm_url": "http://teacher:8000"}

CASES: list[tuple[str, Case]] = [
    (
        "no-reference-beside-a-critic",
        Case(
            {**PPO, "kl_coef": 0.1},
            "--advantage-estimator ppo: has no reference model: --kl-coef",
            {**PPO, "kl_coef": 0.1, "fully_async": True},  # refused for another reason
            {"kl_coef": 0.0},
        ),
    ),
    (
        "no-reference-beside-a-critic",
        Case(
            {**TOGETHER, "use_kl_loss": True, "kl_loss_coef": 0.1, "use_unbiased_kl": True},
            "--advantage-estimator ppo: has no reference model",
            TOGETHER,
            {"use_kl_loss": False, "kl_loss_coef": 0.0, "use_unbiased_kl": False},
        ),
    ),
    (
        "no-reference-beside-a-critic",
        Case(  # nobody is sent to --use-kl-loss, which would be switched off
            {**TOGETHER, "kl_loss_coef": 0.1},
            "--advantage-estimator ppo: has no reference model",
            {**PLUS, "kl_loss_coef": 0.1},
            {"kl_loss_coef": 0.0},
        ),
    ),
    (
        "estimator-roles",
        Case(
            without("critic"),
            '--resource: has no role critic, which --advantage-estimator ppo needs. Add "critic":[1,1].',
            PPO,
        ),
    ),
    (
        "estimator-roles",
        Case(without("advantages"), "--resource: has no role advantages, which --advantage-estimator ppo needs.", PPO),
    ),
    (
        "ppo-use-rollout-logprobs-with-colocate",
        Case(
            {**TOGETHER, "use_rollout_logprobs": False},
            "--use-rollout-logprobs: is required with --advantage-estimator ppo under --colocate.",
            TOGETHER,
        ),
    ),
    (
        "ppo-max-staleness-with-colocate",
        Case({**TOGETHER, "max_staleness": 1}, "--max-staleness 1: must be 0 with --advantage-estimator ppo", TOGETHER),
    ),
    (
        "rloo-and-others-n-samples-per-prompt",
        Case(
            {**RLOO, "n_samples_per_prompt": 1},
            "--n-samples-per-prompt 1: leaves --advantage-estimator rloo no other response to compare with. Make it 2",
            {**RLOO, "n_samples_per_prompt": 2},
        ),
    ),
    (
        "rloo-and-others-n-samples-per-prompt",
        Case(
            {**BASELINE, "n_samples_per_prompt": 1},
            "leaves --advantage-estimator reinforce_plus_plus_baseline no other response",
            BASELINE,
        ),
    ),
    (
        "rloo-and-others-disable-rewards-normalization",
        Case(
            {**RLOO, "disable_rewards_normalization": True},
            "--disable-rewards-normalization: takes the baseline away from --advantage-estimator rloo. Leave it out.",
            {"disable_rewards_normalization": True},
        ),
    ),
    (
        "rloo-normalize-advantages",
        Case({**RLOO, "normalize_advantages": True}, "--normalize-advantages: divides by a spread", PLUS),
    ),
    (
        "rloo-calculate-per-token-loss",
        Case(
            {"advantage_estimator": "rloo"},
            "--calculate-per-token-loss: is required with --advantage-estimator rloo",
            RLOO,
        ),
    ),
    ("rloo-max-staleness", Case({**RLOO, "max_staleness": 2}, "--max-staleness 2: must be 0 with --adv", RLOO)),
    (
        "rloo-num-steps-per-rollout",
        Case(
            {**RLOO, "global_batch_size": 16},
            "--num-steps-per-rollout 2: must be 1 with --advantage-estimator rloo",
            {**RLOO, "global_batch_size": 32},
        ),
    ),
    (
        "rloo-partial-rollout",
        Case({**RLOO, "partial_rollout": True}, "--partial-rollout: cannot be used with --advantage-estimator", RLOO),
    ),
    (
        "grpo-and-others-kl-coef",
        Case(
            {"kl_coef": 0.1},
            "--kl-coef 0.1: has no effect with --advantage-estimator grpo: no KL is part of its rewards. Use --use-kl",
            PLUS,
        ),
    ),
    ("grpo-and-others-kl-coef", Case({**RLOO, "kl_coef": 0.1}, "--kl-coef 0.1: has no effect with", RLOO)),
    (
        "reinforce-plus-plus-and-others-normalize-advantages",
        Case(
            {**PLUS, "normalize_advantages": False},
            "--normalize-advantages: is required with --advantage-estimator reinforce_plus_plus.",
            PLUS,
        ),
    ),
    (
        "reinforce-plus-plus-and-others-context-parallel-size",
        Case({**PLUS, "context_parallel_size": 2}, "--context-parallel-size 2: must be 1 with --adv", PLUS),
    ),
    (
        "reinforce-plus-plus-and-others-calculate-per-token-loss",
        Case({**BASELINE, "calculate_per_token_loss": True}, "--calculate-per-token-loss: cannot be used", BASELINE),
    ),
    (
        "reinforce-plus-plus-kl-coef",
        Case({**PLUS, "kl_coef": 0.0}, "--kl-coef 0.0: must be above 0 with --advantage", PLUS),
    ),
    (
        "reinforce-plus-plus-kl-loss-type",
        Case({**PLUS, "kl_loss_type": "k3"}, "--kl-loss-type k3: must be k1 with --adv", PLUS),
    ),
    (
        "reinforce-plus-plus-use-kl-loss",
        Case({**PLUS, "use_kl_loss": True}, "--use-kl-loss: cannot be used with --advantage-estimator", BASELINE),
    ),
    (
        "reinforce-plus-plus-baseline-use-kl-loss",
        Case(
            {**BASELINE, "use_kl_loss": False, "kl_loss_coef": 0.0},
            "--use-kl-loss: is required with --advantage-estimator reinforce_plus_plus_baseline.",
            BASELINE,
        ),
    ),
    (
        "reinforce-plus-plus-baseline-kl-loss-type-with-use-kl-loss",
        Case({**BASELINE, "kl_loss_type": "k1"}, "--kl-loss-type k1: must be k2 with --advantage", BASELINE),
    ),
    (
        "reinforce-plus-plus-baseline-kl-loss-coef-with-use-kl-loss",
        Case({**BASELINE, "kl_loss_coef": 0.0}, "--kl-loss-coef 0.0: must be above 0 with --advantage", BASELINE),
    ),
    (
        "reinforce-plus-plus-baseline-use-unbiased-kl",
        Case({**BASELINE, "use_unbiased_kl": True}, "--use-unbiased-kl: cannot be used with --advantage", BASELINE),
    ),
    (
        "reinforce-plus-plus-baseline-custom-reward-post-process-path",
        Case(
            {**BASELINE, "custom_reward_post_process_path": "a.b"},
            "--custom-reward-post-process-path a.b: replaces the baseline of --advantage-estimator",
            BASELINE,
        ),
    ),
    (
        "grpo-and-others-kl-coef",
        Case(  # beside the other weight that is told once
            {**RLOO, "kl_coef": 0.1},
            "--kl-coef 0.1: has no effect with",
            {**RLOO, "kl_coef": 0.1, "use_kl_loss": True, "kl_loss_coef": 0.1},
        ),
    ),
    (
        "a-group-has-several",
        Case(
            {"n_samples_per_prompt": 1},
            "--n-samples-per-prompt 1: makes every advantage of --advantage-estimator grpo 0",
            {"n_samples_per_prompt": 1, "disable_rewards_normalization": True},
        ),
    ),
    (
        "a-group-has-several",
        Case(
            {"n_samples_per_prompt": 1, **TAUGHT},
            "--n-samples-per-prompt 1: makes what the rewards add to each advantage, beside the teacher, 0",
            {"n_samples_per_prompt": 1, **TAUGHT, "rm_type": None},  # the teacher is all that it learns from
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


@pytest.mark.parametrize("options", [RLOO, PLUS, BASELINE, PPO, TOGETHER])
def test_what_an_estimator_needs_is_enough_for_it(tmp_path: Path, options: dict[str, Any]) -> None:
    for rule in RULES:
        assert problems_of(tmp_path, rule, options) == []


@pytest.mark.parametrize("options", [RLOO, PLUS, BASELINE, PPO])
def test_nothing_is_asked_of_an_estimator_in_supervised_fine_tuning(tmp_path: Path, options: dict[str, Any]) -> None:
    per_token = not options.get("calculate_per_token_loss", False)
    changes = {"loss_type": "sft", "calculate_per_token_loss": per_token, "max_staleness": 1}
    for rule in RULES:
        assert problems_of(tmp_path, rule, {**options, **changes}) == []
