"""The critic in the trainer: one update against transformers in float64, several ranks against one, its first weights,
its checkpoints, and the actor that rests meanwhile.

A process costs seconds to start, so each launch checks many things: see critic_checks.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from safetensors.numpy import load_file
from tiny import make_tiny
from training_batches import value_batch

from data.store import RunStore

pytestmark = pytest.mark.megatron
CHECKS = "relax_core.training.critic_checks"

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor_model_parallel_size": 2},
    "sp2": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"pipeline_model_parallel_size": 2},
    "dp2": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
}


def _place(folder: Path, tie: bool) -> dict[str, str]:
    store = RunStore(str(folder))
    store.write_json("value-refs.json", [value_batch(store, f"v{i}", seed=i).to_json() for i in range(3)])
    return {"model": str(make_tiny(folder / "model", tie=tie)), "work": str(folder)}


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process finds, with a model whose policy has tied weights."""
    found: dict[str, Any] = run_ranks(1, f"{CHECKS}:one_process", _place(tmp_path_factory.mktemp("tied"), True))[0]
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _place(tmp_path_factory.mktemp("untied"), False)


@pytest.fixture(scope="module")
def alone(place: dict[str, str]) -> dict[str, Any]:
    """Three rollout steps of one rank."""
    found: dict[str, Any] = run_ranks(1, f"{CHECKS}:follow", {**place, "name": "alone", "options": {}})[0]
    return found


@pytest.mark.parametrize("case", ["over samples", "over tokens"])
def test_an_update_is_that_of_transformers_and_torch(case: str, checks: dict[str, Any]) -> None:
    update = checks[case]
    assert update["values"] < 1e-5
    assert update["found"] == pytest.approx(update["wanted"], rel=2e-5, abs=1e-7)
    assert 0.2 < update["found"]["value_clipfrac"] < 1
    assert update["weights"] < 2e-5  # of a step of 2e-3


def test_packing_changes_nothing(checks: dict[str, Any]) -> None:
    for row, wanted in zip(checks["packed"]["metrics"], checks["plain"]["metrics"], strict=True):
        assert row == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_the_critic_learns_what_it_is_told(checks: dict[str, Any]) -> None:
    before, after = checks["plain"]["values"]
    assert before != after
    assert checks["plain"]["metrics"][0]["lr"] == pytest.approx(2e-3)  # after its own warm-up


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_train_as_one_process(layout: str, place: dict[str, str], alone: dict[str, Any]) -> None:
    found = run_ranks(2, f"{CHECKS}:follow", {**place, "name": layout, "options": LAYOUTS[layout]})
    assert found[0]["metrics"] == found[1]["metrics"]
    for row, wanted in zip(found[0]["metrics"], alone["metrics"], strict=True):
        assert row == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    for mine, theirs in zip(found[0]["values"], alone["values"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    folders = {name: load_file(Path(place["work"], name, "model.safetensors")) for name in (layout, "alone")}
    assert folders[layout].keys() == folders["alone"].keys()
    worst = max(float(np.abs(folders[layout][key] - value).max()) for key, value in folders["alone"].items())
    assert worst < 1e-4


def test_a_checkpoint_loads_under_other_sizes(place: dict[str, str]) -> None:
    wanted = run_ranks(1, f"{CHECKS}:save_for_others", place)[0]
    for options in (LAYOUTS["sp2"], LAYOUTS["pp2"]):
        found = run_ranks(2, f"{CHECKS}:loaded", {**place, "options": options})
        np.testing.assert_allclose(found[0], wanted, atol=1e-5)
