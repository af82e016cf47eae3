"""Rules about how the model is split over ranks, and what overlaps."""

from pathlib import Path

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.rules.parallel import RULES

FOUR = {"actor": (1, 4), "rollout": (1, 1)}
IMAGES = {"multimodal_keys": {"image": "images"}}

CASES: list[tuple[str, Case]] = [
    (
        "world-holds-whole-models",
        Case(
            {"resource": {"actor": (1, 3), "rollout": (1, 1)}, "tensor_model_parallel_size": 2},
            "--tensor-model-parallel-size 2: tensor 2 x pipeline 1 = 2 does not divide the 3 devices of the role actor."
            " Change the parallel sizes, or --resource.",
            {"resource": FOUR, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
        ),
    ),
    (
        "world-holds-whole-models",
        Case(
            {"resource": FOUR, "tensor_model_parallel_size": 4, "context_parallel_size": 2},
            "tensor 4 x pipeline 1 x context 2 = 8 does not divide the 4 devices",
            {"resource": FOUR, "tensor_model_parallel_size": 2, "context_parallel_size": 2},
        ),
    ),
    (
        "critic-holds-whole-models",
        Case(
            {
                "resource": {**FOUR, "critic": (1, 3)},
                "pipeline_model_parallel_size": 2,
                "advantage_estimator": "ppo",
            },
            "--resource critic 3: is no multiple of 2 = tensor 1 x pipeline 2: the critic is split as the actor is.",
            {
                "resource": {**FOUR, "critic": (1, 2)},
                "pipeline_model_parallel_size": 2,
                "advantage_estimator": "ppo",
            },
        ),
    ),
    (
        "sequence-parallel-has-ranks",
        Case(
            {"sequence_parallel": True},
            "--sequence-parallel: needs --tensor-model-parallel-size above 1.",
            {"sequence_parallel": True, "tensor_model_parallel_size": 2},
        ),
    ),
    (
        "full-recomputation-says-which-layers",
        Case(
            {"recompute_granularity": "full", "recompute_method": "block"},
            "--recompute-num-layers: is required with --recompute-granularity full.",
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
        ),
    ),
    (
        "full-recomputation-says-which-layers",
        Case(
            {"recompute_granularity": "full", "recompute_num_layers": 1},
            "--recompute-method: is required with",
            {"recompute_granularity": "selective"},
        ),
    ),
    (
        "only-full-recomputation-chooses-layers",
        Case(
            {"recompute_granularity": "selective", "recompute_num_layers": 1},
            "--recompute-num-layers 1: has an effect only with --recompute-granularity full.",
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        ),
    ),
    (
        "only-full-recomputation-chooses-layers",
        Case({"recompute_method": "block"}, "--recompute-method block: has an effect only with", {}),
    ),
    (
        "spread-experts-are-there",
        Case(
            {"expert_model_parallel_size": 2},
            "--expert-model-parallel-size 2: splits experts, and the model has none (config.json). Leave it out.",
            {"expert_model_parallel_size": 2, "num_moe_experts": 8},
        ),
    ),
    (
        "spread-experts-are-there",
        Case({"expert_tensor_parallel_size": 2}, "--expert-tensor-parallel-size 2: splits experts", {}),
    ),
    (
        "experts-are-shared-out",
        Case(
            {"expert_model_parallel_size": 3, "num_moe_experts": 8},
            "--expert-model-parallel-size 3: does not divide the 8 experts of a layer.",
            {"expert_model_parallel_size": 4, "num_moe_experts": 8},
        ),
    ),
    (
        "world-holds-whole-mixtures",
        Case(
            {
                "resource": FOUR,
                "expert_model_parallel_size": 2,
                "expert_tensor_parallel_size": 2,
                "pipeline_model_parallel_size": 2,
            },
            "--expert-model-parallel-size 2: expert 2 x expert tensor 2 x pipeline 2 = 8 does not divide the 4 devices",
            {"resource": FOUR, "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 2},
        ),
    ),
    (
        "expert-and-tensor-parallel-split-tokens",
        Case(
            {"expert_model_parallel_size": 2, "tensor_model_parallel_size": 2},
            "--expert-model-parallel-size 2: needs --sequence-parallel where --tensor-model-parallel-size is above 1.",
            {"expert_model_parallel_size": 2, "tensor_model_parallel_size": 2, "sequence_parallel": True},
        ),
    ),
    (
        "gathering-ahead-needs-reducing-ahead",
        Case(
            {"overlap_param_gather": True, "use_distributed_optimizer": True},
            "--overlap-param-gather: needs --overlap-grad-reduce.",
            {"overlap_param_gather": True, "overlap_grad_reduce": True},
        ),
    ),
    (
        "gathering-ahead-needs-the-distributed-optimizer",
        Case(
            {"overlap_param_gather": True, "overlap_grad_reduce": True},
            "--overlap-param-gather: needs --use-distributed-optimizer: without it there is nothing to gather.",
            {"overlap_param_gather": True, "use_distributed_optimizer": True},
        ),
    ),
    (
        "mixtures-do-not-overlap",
        Case(
            {"overlap_grad_reduce": True, "num_moe_experts": 8},
            "--overlap-grad-reduce: cannot be used with a mixture of experts (--num-experts 8).",
            {"use_distributed_optimizer": True, "num_moe_experts": 8},
        ),
    ),
    (
        "mixtures-do-not-overlap",
        Case(
            {"overlap_grad_reduce": True, "overlap_param_gather": True, "num_moe_experts": 8},
            "--overlap-param-gather: cannot be used with a mixture of experts (--num-experts 8).",
            {"overlap_grad_reduce": True, "overlap_param_gather": True},
        ),
    ),
    (
        "split-images-do-not-overlap",
        Case(
            {"overlap_grad_reduce": True, "context_parallel_size": 2, **IMAGES},
            "--overlap-grad-reduce: cannot be used with --multimodal-keys where --context-parallel-size is above 1.",
            {"overlap_grad_reduce": True, **IMAGES},
        ),
    ),
    (
        "split-images-do-not-overlap",
        Case(
            {"overlap_param_gather": True, "context_parallel_size": 2, **IMAGES},
            "--overlap-param-gather: cannot be used with --multimodal-keys",
            {"use_distributed_optimizer": True, "context_parallel_size": 2, **IMAGES},
        ),
    ),
    (
        "gathered-context-is-split",
        Case(
            {"allgather_cp": True},
            "--allgather-cp: has no effect without --context-parallel-size above 1.",
            {"allgather_cp": True, "context_parallel_size": 2},
        ),
    ),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_rules(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)
