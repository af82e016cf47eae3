"""Losses of the user in the trainer: the same updates as the built-in ones, on one rank and on several.

A process costs seconds to start, so each launch checks many things: see custom_loss_checks.py.
"""

from typing import Any

import pytest
from ranks import run_ranks
from tiny import make_tiny
from training_batches import write_batches

pytestmark = pytest.mark.megatron

LAYOUTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "dp2": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    "tp2": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"pipeline_model_parallel_size": 2},
}
SAME = {"grpo": ["own", "own_packed"], "grpo_clipped": ["own_clipped"]}
LIKELIHOOD = ["own_likelihood", "own_likelihood_packed"]
OWN = [name for names in (*SAME.values(), LIKELIHOOD) for name in names]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Of each layout what its ranks find."""
    work = tmp_path_factory.mktemp("custom-loss")
    write_batches(str(work))
    place = {"model": str(make_tiny(work / "model", tie=True)), "work": str(work)}
    return {
        name: run_ranks(
            1 if name == "alone" else 2,
            "relax_core.training.custom_loss_checks:all_runs",
            {**place, "options": options},
        )
        for name, options in LAYOUTS.items()
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loss_of_ones_own_gives_the_update_of_the_built_in_one(
    layout: str, found: dict[str, list[dict[str, Any]]]
) -> None:
    for rank in found[layout]:
        for name in OWN:
            assert rank[name]["apart"] < 1e-6, name
            assert rank[name]["moved"] > 1e-4, name
        for built_in, others in SAME.items():
            for name in others:
                for row, wanted in zip(rank[name]["metrics"], rank[built_in]["metrics"], strict=True):
                    assert row == pytest.approx({key: wanted[key] for key in row}, rel=1e-4, abs=1e-6)
                    assert row.keys() >= {"loss", "pg_loss", "kl_loss", "pg_clipfrac", "grad_norm", "lr"}
        assert 0 < rank["own_clipped"]["metrics"][0]["pg_clipfrac"] < 1
        for name in LIKELIHOOD:
            for row, wanted in zip(rank[name]["metrics"], rank["sft"]["metrics"], strict=True):
                assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-5)


@pytest.mark.parametrize("layout", ["dp2", "tp2", "pp2"])
def test_ranks_agree_with_each_other_and_with_one_process(layout: str, found: dict[str, list[dict[str, Any]]]) -> None:
    first, second = found[layout]
    for name, alone in found["alone"][0].items():
        assert first[name]["metrics"] == second[name]["metrics"]
        for row, wanted in zip(first[name]["metrics"], alone["metrics"], strict=True):
            assert row == pytest.approx(wanted, rel=1e-4, abs=1e-5), name


def test_passes_are_made_for_what_the_options_ask(found: dict[str, list[dict[str, Any]]]) -> None:
    [rank] = found["alone"]
    assert {"old_log_probs", "ref_log_probs"} <= set(rank["own"]["phases"][0])
    assert "old_log_probs" not in rank["own_clipped"]["phases"][0]  # the engine's stand for them
    for name in ("sft", "own_likelihood"):
        assert not {"old_log_probs", "ref_log_probs"} & set(rank[name]["phases"][0])
