from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.rules.genrm import RULES

JUDGE: dict[str, Any] = {"genrm_model_path": "judge"}


def together(actor: int, rollout: int, judge: int, **options: Any) -> dict[str, Any]:
    """Actor, engines and judge on the actor's devices."""
    resource = {"actor": (1, actor), "rollout": (1, rollout)}
    return {**JUDGE, "colocate": True, "resource": resource, "genrm_num_gpus": judge, **options}


def fractions(engine: float, judge: float) -> dict[str, Any]:
    return {"sglang_mem_fraction_static": engine, "genrm_engine_config": {"mem_fraction_static": judge}}


CASES: list[tuple[str, Case]] = [
    (
        "judge-options-need-a-judge",
        Case(
            {"genrm_num_gpus": 2},
            "--genrm-num-gpus 2: has no effect without --genrm-model-path. Add it, or leave this out.",
            {**JUDGE, "genrm_num_gpus": 2},
        ),
    ),
    (
        "judge-keys-are-known",
        Case(
            {**JUDGE, "genrm_sampling_config": {"temprature": 0.1}},
            "--genrm-sampling-config temprature: is no key of it. Did you mean temperature?",
            {**JUDGE, "genrm_sampling_config": {"temperature": 0.1}},
        ),
    ),
    (
        "judge-keys-are-known",
        Case(
            {**JUDGE, "genrm_engine_config": {"tokens": 1}},
            "--genrm-engine-config tokens: is no key of it. ",
            {**JUDGE, "genrm_engine_config": {"dp_size": 1, "pp_size": 1, "ep_size": 1, "max_total_tokens": 8192}},
        ),
    ),
    (
        "judge-keys-are-known",
        Case(
            {**JUDGE, "genrm_engine_config": {"disable_cuda_grap": True}},
            "--genrm-engine-config disable_cuda_grap: is no key of it. Did you mean disable_cuda_graph",
            {**JUDGE, "genrm_engine_config": {"disable_cuda_graph": True, "attention_backend": "triton"}},
        ),
    ),
    (
        "judge-keys-are-known",
        Case(
            {**JUDGE, "genrm_engine_config": {"tp_size": 2}},
            "--genrm-engine-config tp_size: is set by Relax itself. Leave it out.",
            {**JUDGE, "genrm_num_gpus_per_engine": 2},
        ),
    ),
    (
        "judge-keys-are-known",
        Case(
            {**JUDGE, "genrm_sampling_config": {"context_length": 100}},
            "--genrm-sampling-config context_length: is no key of it. Keys: temperature, top_p, top_k, max_response",
            {**JUDGE, "genrm_engine_config": {"context_length": 10240}},
        ),
    ),
    (
        "judge-values-are-possible",
        Case(
            {**JUDGE, "genrm_engine_config": {"dp_size": 0}},
            "--genrm-engine-config dp_size 0: must be 1 or more.",
            {**JUDGE, "genrm_sampling_config": {"temperature": 0, "top_p": 1, "top_k": -1, "max_response_len": 1}},
        ),
    ),
    (
        "judge-values-are-possible",
        Case(
            {**JUDGE, "genrm_sampling_config": {"max_response_len": 1.5}},
            "--genrm-sampling-config max_response_len 1.5: expects a whole number.",
            {**JUDGE, "genrm_sampling_config": {"temperature": 1.5}},
        ),
    ),
    (
        "judge-values-are-possible",
        Case(
            {**JUDGE, "genrm_sampling_config": {"temperature": "hot"}},
            "--genrm-sampling-config temperature hot: expects a number.",
            JUDGE,
        ),
    ),
    (
        "judge-values-are-possible",
        Case(
            {**JUDGE, "genrm_engine_config": {"context_length": "long"}},
            "--genrm-engine-config context_length long: expects a whole number.",
            {**JUDGE, "genrm_engine_config": {"context_length": 10240}},
        ),
    ),
    (
        "judge-context-holds-its-answer",
        Case(
            {**JUDGE, "genrm_engine_config": {"context_length": 4096}},
            "--genrm-sampling-config max_response_len 4096: leaves no room",
            {**JUDGE, "genrm_engine_config": {"context_length": 4096, "max_context_len": 4097}},
        ),
    ),
    (
        "judge-context-holds-its-answer",
        Case(
            {**JUDGE, "genrm_engine_config": {"max_context_len": 4096}},  # an answer has 4096 where nothing is given
            "--genrm-sampling-config max_response_len 4096: leaves no room for a question in the judge's context",
            {**JUDGE, "genrm_engine_config": {"max_context_len": 4097}},
        ),
    ),
    (
        "judge-engines-share-out-devices",
        Case(
            {**JUDGE, "genrm_num_gpus": 3, "genrm_num_gpus_per_engine": 2},
            "--genrm-num-gpus-per-engine 2: does not divide the 3 devices of the judge.",
            {**JUDGE, "genrm_num_gpus": 4, "genrm_num_gpus_per_engine": 2},
        ),
    ),
    (
        "judge-parallel-sizes-fit-an-engine",
        Case(
            {**JUDGE, "genrm_num_gpus": 2, "genrm_num_gpus_per_engine": 2, "genrm_engine_config": {"dp_size": 3}},
            "--genrm-num-gpus-per-engine 2: is not divided by the 3 of pp_size times dp_size in --genrm-engine-config.",
            {**JUDGE, "genrm_num_gpus": 2, "genrm_num_gpus_per_engine": 2, "genrm_engine_config": {"pp_size": 2}},
        ),
    ),
    (
        "judge-parallel-sizes-fit-an-engine",
        Case(
            {**JUDGE, "genrm_engine_config": {"dp_size": 2}},
            "--genrm-num-gpus-per-engine 1: is not divided by the 2",
            {**JUDGE, "genrm_engine_config": {"dp_size": 2, "enable_dp_attention": True}},
        ),
    ),
    (
        "judge-devices-agree",
        Case(
            {**JUDGE, "genrm_num_gpus": 2, "resource": {"actor": (1, 1), "rollout": (1, 1), "genrm": (1, 4)}},
            "--genrm-num-gpus 2: does not agree with the 4 devices of the role genrm in --resource.",
            {**JUDGE, "resource": {"actor": (1, 1), "rollout": (1, 1), "genrm": (1, 4)}},
        ),
    ),
    (
        "judge-fits-beside-the-engines",
        Case(
            together(8, 4, 2),
            "--genrm-num-gpus 2: does not fit beside the 4 devices of the role rollout on the actor's 8",
            together(8, 6, 2),
        ),
    ),
    (
        "judge-fits-beside-the-engines",
        Case(
            together(8, 8, 4),
            "--genrm-num-gpus 4: does not fit beside the 8 devices of the role rollout on the actor's 8",
            together(8, 8, 8, **fractions(0.5, 0.4)),
        ),
    ),
    (
        "judge-and-engines-share-memory",
        Case(
            together(8, 8, 8, **fractions(0.6, 0.4)),
            "--genrm-num-gpus: shares the engines' devices: 0.6 of --sglang-mem-fraction-static and 0.4 of the judge",
            together(8, 8, 8, **fractions(0.5, 0.4)),
        ),
    ),
    (
        "judge-and-engines-share-memory",
        Case(
            together(8, 8, 8),
            "--genrm-num-gpus: shares the engines' devices: it needs --sglang-mem-fraction-static and",
            together(8, 4, 4),
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)
