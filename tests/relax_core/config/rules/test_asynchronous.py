from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names, problems_of, report_of

from relax_core.config.rules import asynchronous
from relax_core.config.rules.asynchronous import RULES
from relax_core.run.feeding import feeds

ALL = dict.fromkeys(("actor", "rollout", "advantages", "reference", "actor_fwd"), (1, 1))
# two updates a step, so that nothing is on-policy
ASYNC: dict[str, Any] = {"fully_async": True, "resource": ALL, "global_batch_size": 16}
QUEUE: dict[str, Any] = {**ASYNC, "data_transport": "transfer_queue"}
KL: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1}


def without(role: str) -> dict[str, Any]:
    return {**ASYNC, "resource": {name: devices for name, devices in ALL.items() if name != role}}


CASES: list[tuple[str, Case]] = [
    (
        "one-update-is-on-policy",
        Case(
            {**ASYNC, "global_batch_size": 32},
            "--fully-async: turns --true-on-policy-mode on: one update takes all 32 samples of a step.",
            ASYNC,
            {"true_on_policy_mode": True},
        ),
    ),
    (
        "one-update-is-on-policy",
        Case(
            {**ASYNC, "global_batch_size": 32},
            "--fully-async: turns --true-on-policy-mode on",
            {**ASYNC, "global_batch_size": 32, "max_staleness": 1},
            {"true_on_policy_mode": True},
        ),
    ),
    (
        "fetch-once-with-routing",
        Case(
            {"per_rank_fetch": True, "use_rollout_routing_replay": True},
            "--per-rank-fetch: is off: the experts that --use-rollout-routing-replay records",
            {"per_rank_fetch": True},
            {"per_rank_fetch": False},
        ),
    ),
    (
        "fetch-once-with-routing",
        Case(
            {"per_rank_fetch": True, "use_rollout_routing_replay": True},
            "--per-rank-fetch: is off",
            # supervised training has no routing to replay
            {"per_rank_fetch": True, "use_rollout_routing_replay": True, "loss_type": "sft"},
            {"per_rank_fetch": False},
        ),
    ),
    (
        "async-has-its-own-devices",
        Case({**ASYNC, "colocate": True}, "--fully-async: cannot be used with --colocate", {"colocate": True}),
    ),
    (
        "async-estimators",
        Case(
            {**ASYNC, "advantage_estimator": "ppo"},
            "--advantage-estimator ppo: cannot be used with --fully-async",
            {**ASYNC, "advantage_estimator": "gspo"},
        ),
    ),
    (
        "async-sees-no-whole-batch",
        Case(
            {**ASYNC, "normalize_advantages": True},
            "--normalize-advantages: cannot be used with --fully-async",
            {"normalize_advantages": True},
        ),
    ),
    (
        "async-teacher-is-a-server",
        Case(
            {**ASYNC, "use_opd": True, "opd_type": "megatron"},
            "--opd-type megatron: cannot be used with --fully-async",
            {**ASYNC, "use_opd": True, "opd_type": "sglang"},
        ),
    ),
    (
        "ahead-of-whom",
        Case(
            {"max_staleness": 1},
            "--max-staleness 1: has no effect without --fully-async",
            {**ASYNC, "max_staleness": 1},
        ),
    ),
    (
        "kept-weights-made-the-samples",
        Case(
            {"update_weights_interval": 2},
            "--update-weights-interval 2: lets engines generate with weights that the trainer has left behind",
            {"update_weights_interval": 2, "use_rollout_logprobs": True},
        ),
    ),
    (
        "kept-weights-made-the-samples",
        Case(
            {"update_weights_interval": 2},
            "Add --use-rollout-logprobs or --use-tis",
            {"update_weights_interval": 2, "use_tis": True},
        ),
    ),
    (
        "slices-of-an-async-batch",
        Case(
            {"num_iters_per_train_update": 2},
            "--num-iters-per-train-update 2: has no effect without --fully-async.",
            {**ASYNC, "num_iters_per_train_update": 2},
        ),
    ),
    (
        "slices-are-early",
        Case(  # 8 prompts a step
            {**ASYNC, "num_iters_per_train_update": 2, "over_sampling_batch_size": 12},
            "--num-iters-per-train-update 2: has no effect with --over-sampling-batch-size: the groups of a step are"
            " known when it ends. Leave one out.",
            {**ASYNC, "num_iters_per_train_update": 2, "over_sampling_batch_size": 8},
        ),
    ),
    (
        "slices-have-whole-groups",
        Case(  # 16 samples are 4 groups of 4
            {**ASYNC, "num_iters_per_train_update": 3},
            "--global-batch-size 16: does not divide into 3 parts of whole groups of --n-samples-per-prompt 4, in which"
            " --fully-async hands it on. Make it a multiple of 12, or give another --num-iters-per-train-update.",
            {**ASYNC, "num_iters_per_train_update": 4},
        ),
    ),
    (
        "slices-have-whole-groups",
        Case(
            {**ASYNC, "global_batch_size": 2},
            "--global-batch-size 2: does not divide into whole groups of --n-samples-per-prompt 4",
            {"global_batch_size": 2, "num_iters_per_train_update": 3},
        ),
    ),
    (
        "the-queue-is-installed",
        Case(
            QUEUE,
            "--data-transport transfer_queue: needs the package TransferQueue, which is not installed. pip install"
            " -c requirements/constraints.txt 'relax-rl[queue]', or leave this out.",
            ASYNC,
        ),
    ),
    (
        "slices-are-carried",
        Case(
            {"data_transport": "transfer_queue"},
            "--data-transport transfer_queue: has no effect without --fully-async.",
            QUEUE,
        ),
    ),
    (
        "a-queue-is-used",
        Case(
            {"num_data_storage_units": 2},
            "--num-data-storage-units 2: has no effect without --data-transport transfer_queue.",
            {**QUEUE, "num_data_storage_units": 2, "polling_mode": False},
        ),
    ),
    (
        "a-queue-is-used",
        Case(
            {"polling_mode": False},
            "--polling-mode false: has no effect without --data-transport transfer_queue.",
            {"polling_mode": True},
        ),
    ),
    (
        "fetching-from-a-queue",
        Case(
            {"per_rank_fetch": True},
            "--per-rank-fetch: has no effect without --data-transport transfer_queue: every rank reads from shared"
            " memory anyway.",
            {**QUEUE, "per_rank_fetch": True},
        ),
    ),
    (
        "fetching-has-enough-sources",
        Case(
            {
                "data_transport": "transfer_queue",
                "per_rank_fetch": True,
                "tensor_model_parallel_size": 2,
                "resource": {"actor": (1, 2), "rollout": (1, 1)},
            },
            "--num-data-storage-units 1: is fewer than the 2 tensor-parallel ranks that read at the same time with"
            " --per-rank-fetch. Make it 2 or more.",
            # in shared memory all ranks read the same place
            {"per_rank_fetch": True, "tensor_model_parallel_size": 2},
        ),
    ),
    (
        "on-policy-once-a-step",
        Case(
            {"true_on_policy_mode": True, "num_steps_per_rollout": 4},
            "--true-on-policy-mode: holds for the first of the 4 updates of a step only",
            {"true_on_policy_mode": True},
        ),
    ),
    (
        "on-policy-data-is-fresh",
        Case(
            {"true_on_policy_mode": True, "max_staleness": 1},
            "--max-staleness 1: lets samples come from older weights",
            {"max_staleness": 1},
        ),
    ),
    (
        "on-policy-takes-its-own-log-probs",
        Case(
            {"true_on_policy_mode": True, "use_rollout_logprobs": True},
            "--use-rollout-logprobs: has no effect with --true-on-policy-mode",
            {"use_rollout_logprobs": True},
        ),
    ),
]


@pytest.fixture(autouse=True)
def _package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """TransferQueue is installed but where that is asked."""
    there = None if "the-queue-is-installed" in request.node.name else object()
    monkeypatch.setattr(asynchronous, "find_spec", lambda name: there)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_the_estimators_that_standardise_are_told_once_that_they_cannot_be_asynchronous(tmp_path: Path) -> None:
    options = {**ASYNC, "advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True, "kl_coef": 0.1}
    told = [problem for rule in RULES for problem in problems_of(tmp_path, rule, options)]
    assert len(told) == 1
    assert told[0].startswith("--advantage-estimator reinforce_plus_plus: cannot be used with --fully-async")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"over_sampling_batch_size": 12},
        {"dynamic_sampling_filter_path": "mine.keep"},
        {"use_opd": True, "opd_type": "sglang"},
        {"offload_train": True},
        {"loss_type": "custom_loss", "custom_loss_function_path": "mine.loss"},
        {"custom_loss_function_path": "mine.loss"},
        {"use_tis": True, "custom_tis_function_path": "mine.tis"},
        {"custom_tis_function_path": "mine.tis"},
        {"rollout_data_postprocess_path": "mine.post"},
        {"custom_reward_post_process_path": "mine.post"},
        {"custom_convert_samples_to_train_data_path": "mine.convert"},
        {"fully_async": False},
    ],
    ids=str,
)
def test_slices_are_said_to_be_late_just_where_they_are(options: dict[str, Any], tmp_path: Path) -> None:
    given = {**ASYNC, "num_iters_per_train_update": 2, **options}
    rules = [rule for rule in RULES if rule.name in ("slices-are-early", "slices-of-an-async-batch")]
    told = [problem for rule in rules for problem in problems_of(tmp_path, rule, given)]
    assert feeds(report_of(tmp_path, given).config) == (told == [])
