"""The policy on Megatron against transformers' models, in processes of their own."""

import pytest
from ranks import run_ranks

CHECKS = "relax_core.training.model_checks"
CASES = [f"{family}, tied {tie}" for family in ("llama", "qwen2", "qwen3") for tie in (False, True)]
CASES += [f"{case}, as on a GPU" for case in ("llama", "qwen2", "qwen3", "recompute full")]
CASES += ["llama3 scaling", "recompute full", "recompute selective"]


@pytest.fixture(scope="module")
def single() -> dict:
    return run_ranks(1, f"{CHECKS}:families")[0]


@pytest.fixture(scope="module")
def two() -> list[dict]:
    return run_ranks(2, f"{CHECKS}:parallel")


@pytest.mark.megatron
@pytest.mark.parametrize("case", CASES)
def test_packed_logits_and_gradients_equal_those_of_transformers_on_each_sequence_alone(single: dict, case: str):
    assert single[case]["logits"] <= 1e-5
    assert single[case]["gradients"] <= 1e-4  # of each tensor's largest element


@pytest.mark.megatron
@pytest.mark.parametrize("case", CASES)
def test_export_after_load_has_every_tensor_bit_for_bit(single: dict, case: str):
    assert single[case]["weights"] is True


@pytest.mark.megatron
def test_an_exported_folder_loads_in_transformers_and_again_here(single: dict):
    assert single["export"] == {
        "equal": True,
        "shards": 3,
        "tokenizer": True,
        "left over": False,
        "siblings": [],
        "reloads": True,
        "scaling": 32.0,
    }


@pytest.mark.megatron
@pytest.mark.parametrize("case", ["tp", "tp, tied", "sp", "sp, recompute", "pp", "pp, tied", "dp"])
def test_two_processes_have_the_logits_gradients_and_weights_of_one(two: list[dict], case: str):
    assert all(rank[case]["logits"] <= 1e-5 for rank in two if "logits" in rank[case])
    assert any("logits" in rank[case] for rank in two)
    assert two[0][case]["gradients"] <= 1e-4
    assert two[0][case].get("weights", True) is True


@pytest.mark.megatron
def test_bf16_weights_are_the_rounded_ones(two: list[dict]):
    assert two[0]["bf16 export"] is True
