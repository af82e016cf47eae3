from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.rules.algorithms import RULES
from relax_core.config.rules.estimators import RULES as ESTIMATORS
from relax_core.config.rules.kl import RULES as KL_RULES

OWN = [rule for rule in RULES if rule not in (*ESTIMATORS, *KL_RULES)]
TIS: dict[str, Any] = {"use_tis": True}
OWN_LOSS: dict[str, Any] = {"loss_type": "custom_loss", "custom_loss_function_path": "a.loss"}
NONE: dict[str, Any] = {**OWN_LOSS, "disable_compute_advantages_and_returns": True}

CASES: list[tuple[str, Case]] = [
    (
        "routing-replay-follows",
        Case(
            {"use_rollout_routing_replay": True},
            "--use-rollout-routing-replay: turns --use-routing-replay on.",
            {"use_rollout_routing_replay": True, "use_routing_replay": True},
            {"use_routing_replay": True},
        ),
    ),
    (
        "routing-replay-follows",
        Case(
            {"use_rollout_routing_replay": True},
            "--use-rollout-routing-replay: turns --use-routing-replay on.",
            {"use_rollout_routing_replay": True, "loss_type": "sft"},  # off there
            {"use_routing_replay": True},
        ),
    ),
    (
        "routing-replay-of-whole-responses",
        Case(
            {"use_rollout_routing_replay": True, "partial_rollout": True},
            "--use-rollout-routing-replay: cannot be used with --partial-rollout",
            {"partial_rollout": True},
        ),
    ),
    (
        "sft-loss-is-sft",
        Case(
            {"loss_type": "sft_loss"},
            "--loss-type sft_loss: is an old name of sft, which is taken.",
            {"loss_type": "sft"},
            {"loss_type": "sft"},
        ),
    ),
    (
        "custom-loss-needs-a-function",
        Case(
            {"loss_type": "custom_loss"},
            "--loss-type custom_loss: needs --custom-loss-function-path.",
            {"loss_type": "custom_loss", "custom_loss_function_path": "a.loss"},
        ),
    ),
    (
        "custom-function-needs-the-loss",
        Case(
            {"custom_loss_function_path": "a.loss"},
            "--custom-loss-function-path a.loss: is not called with --loss-type policy_loss. Add --loss-type custom",
            {"loss_type": "custom_loss", "custom_loss_function_path": "a.loss"},
        ),
    ),
    (
        "policy-loss-needs-advantages",
        Case(
            {"disable_compute_advantages_and_returns": True},
            "--disable-compute-advantages-and-returns: leaves the policy loss without the advantages",
            {"disable_compute_advantages_and_returns": True, "loss_type": "sft"},
        ),
    ),
    (
        "no-advantages-to-change",
        Case(
            {**NONE, "normalize_advantages": True},
            "--disable-compute-advantages-and-returns: leaves --normalize-advantages without the advantages that it",
            {"normalize_advantages": True},
        ),
    ),
    (
        "no-advantages-to-change",
        Case(
            {**NONE, "advantage_estimator": "ppo"},
            "--disable-compute-advantages-and-returns: leaves --advantage-estimator ppo without the advantages",
            NONE,
        ),
    ),
    (
        "parts-of-the-policy-loss",
        Case(
            {**OWN_LOSS, "use_opsm": True},
            "--use-opsm: is a part of the policy loss: it does nothing in --loss-type custom_loss. Leave it out.",
            {**OWN_LOSS, "use_tis": True},  # it makes a pass, whose log-probs the function gets
        ),
    ),
    (
        "parts-of-the-policy-loss",
        Case(
            {**OWN_LOSS, "custom_pg_loss_reducer_function_path": "a.reducer"},
            "--custom-pg-loss-reducer-function-path a.reducer: is a part of the policy loss",
            {"custom_pg_loss_reducer_function_path": "a.reducer"},
        ),
    ),
    (
        "clipping-needs-a-ratio",
        Case(
            {"advantage_estimator": "rloo", "eps_clip": 0.1},
            "--eps-clip 0.1: has no effect with --advantage-estimator rloo",
            {"advantage_estimator": "rloo", "eps_clip_high": 0.2},
        ),
    ),
    (
        "clipping-needs-a-ratio",
        Case(
            {"advantage_estimator": "sapo", "eps_clip_high": 0.3},
            "--eps-clip-high 0.3: has no effect with --advantage-estimator sapo",
            {"advantage_estimator": "cispo", "eps_clip_high": 0.3},
        ),
    ),
    (
        "dual-clip-needs-a-clip",
        Case(
            {"advantage_estimator": "cispo", "eps_clip_c": 3.0},
            "--eps-clip-c 3.0: has no effect with --advantage-estimator cispo.",
            {"eps_clip_c": 3.0},
        ),
    ),
    (
        "temperatures-of-sapo",
        Case(
            {"sapo_tau_neg": 2.0},
            "--sapo-tau-neg 2.0: has an effect only with --advantage-estimator sapo.",
            {"advantage_estimator": "sapo", "sapo_tau_neg": 2.0},
        ),
    ),
    (
        "gamma-discounts-returns",
        Case(
            {"gamma": 0.9},
            "--gamma 0.9: has an effect only with --advantage-estimator ppo or reinforce_plus_plus.",
            {"gamma": 0.9, "advantage_estimator": "reinforce_plus_plus"},
        ),
    ),
    (
        "lambda-of-gae",
        Case(
            {"lambd": 0.9},
            "--lambd 0.9: has an effect only with --advantage-estimator ppo.",
            {"lambd": 0.9, "advantage_estimator": "ppo"},
        ),
    ),
    (
        "spread-of-a-group",
        Case(
            {"disable_grpo_std_normalization": True, "advantage_estimator": "ppo"},
            "--disable-grpo-std-normalization: has no effect with --advantage-estimator ppo",
            {"advantage_estimator": "ppo", "n_samples_per_prompt": 1},  # where it is set by itself
        ),
    ),
    (
        "critic-options-need-a-critic",
        Case(
            {"critic_lr": 1e-5},
            "--critic-lr 1e-05: has no effect with --advantage-estimator grpo, which has no critic.",
            {"critic_lr": 1e-5, "advantage_estimator": "ppo"},
        ),
    ),
    (
        "actor-has-its-steps",
        Case(
            {"num_critic_only_steps": 3, "advantage_estimator": "ppo"},
            "--num-critic-only-steps 3: leaves the actor none of the 3 steps.",
            {"num_critic_only_steps": 2, "advantage_estimator": "ppo"},
        ),
    ),
    (
        "tis-needs-trainer-log-probs",
        Case(
            {**TIS, "use_rollout_logprobs": True},
            "--use-tis: cannot be used with --use-rollout-logprobs",
            {"use_rollout_logprobs": True},
        ),
    ),
    (
        "mismatch-metrics-need-a-function",
        Case(
            {"get_mismatch_metrics": True},
            "--get-mismatch-metrics: needs --custom-tis-function-path",
            {"get_mismatch_metrics": True, "custom_tis_function_path": "a.b"},
        ),
    ),
    (
        "tis-bounds-in-order",
        Case(
            {**TIS, "tis_clip": 1.0, "tis_clip_low": 2.0},
            "--tis-clip-low 2.0: is above --tis-clip 1.0.",
            {**TIS, "tis_clip": 1.0, "tis_clip_low": 1.0},
        ),
    ),
    (
        "tis-options-need-tis",
        Case({"tis_clip": 3.0}, "--tis-clip 3.0: has no effect without --use-tis.", {**TIS, "tis_clip": 3.0}),
    ),
    (
        "opsm-delta-needs-opsm",
        Case(
            {"opsm_delta": 0.1},
            "--opsm-delta 0.1: has no effect without --use-opsm. Add it, or leave this out.",
            {"opsm_delta": 0.1, "use_opsm": True},
        ),
    ),
    (
        "entropy-for-a-mask",
        Case(
            {"use_rollout_entropy": True},
            "--use-rollout-entropy: stores a column that nothing reads",
            {"use_rollout_entropy": True, "rollout_data_postprocess_path": "a.b"},
        ),
    ),
    (
        "swapped-models-need-copies",
        Case(
            {"disable_weights_backuper": True, "use_kl_loss": True, "kl_loss_coef": 0.1},
            "--disable-weights-backuper: leaves no copy of the reference",
            {"disable_weights_backuper": True, "use_kl_loss": True, "kl_loss_coef": 0.1, "fully_async": True},
        ),
    ),
    (
        "swapped-models-need-copies",
        Case(
            {"disable_weights_backuper": True, "keep_old_actor": True, "fully_async": True},
            "--disable-weights-backuper: leaves no copy",
            {"disable_weights_backuper": True},
        ),
    ),
    (
        "trained-or-frozen",
        Case(
            {"only_train_params_name_list": ["experts"], "freeze_params_name_list": ["embedding", "output_layer"]},
            "--only-train-params-name-list experts: excludes --freeze-params-name-list: each alone says what is"
            " trained. Leave one out.",
            {"only_train_params_name_list": ["experts"]},
        ),
    ),
    (
        "patterns-are-regular-expressions",
        Case(
            {"freeze_params_name_list": ["embedding", "layers.(0"]},
            "--freeze-params-name-list layers.(0: is no regular expression: missing ), unterminated subpattern at",
            {"freeze_params_name_list": ["embedding", r"layers\.[01]\."]},
        ),
    ),
    (
        "patterns-are-regular-expressions",
        Case(
            {"only_train_params_name_list": ["*"]},
            "--only-train-params-name-list *: is no regular expression: nothing to repeat at position 0. Put a",
            {"only_train_params_name_list": [".*"]},
        ),
    ),
    (
        "freeze-leaves-something",
        Case(
            {"freeze_params_name_list": ["embedding", ".*"]},
            "--freeze-params-name-list .*: is found in every name: nothing would be trained.",
            {"freeze_params_name_list": ["embedding", "["]},
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(OWN, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)
