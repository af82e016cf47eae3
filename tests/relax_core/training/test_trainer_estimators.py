"""Every policy loss in the trainer: one update against a plain loop on the logits, and several ranks against one.

A process costs seconds to start, so each launch checks many things: see estimator_checks.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from safetensors.numpy import load_file
from tiny import make_tiny
from training_batches import write_batches

from relax_core.config.options import OPTIONS

pytestmark = pytest.mark.megatron

CASES = (
    "gspo",
    "sapo",
    "cispo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "ppo",
    "opsm",
    "tis",
    "own_correction",
    "own_reducer",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    work = tmp_path_factory.mktemp("estimators")
    write_batches(str(work))
    return {"model": str(make_tiny(work / "model", tie=True)), "work": str(work)}


@pytest.fixture(scope="module")
def updates(place: dict[str, str]) -> dict[str, Any]:
    """What one process finds."""
    found: dict[str, Any] = run_ranks(1, "relax_core.training.estimator_checks:all_cases", place)[0]
    return found


def test_every_estimator_that_is_honoured_has_a_case(updates: dict[str, Any]) -> None:
    elsewhere = {"grpo"}  # test_trainer.py
    option = OPTIONS["advantage_estimator"]
    assert set(option.details.honours or option.choices) <= {*elsewhere, *CASES}
    assert set(updates) == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_that_of_a_plain_loop(case: str, updates: dict[str, Any]) -> None:
    update = updates[case]
    assert update["found"] == pytest.approx(update["wanted"], rel=2e-5, abs=1e-7)
    assert update["weights"] < 1e-5  # of a step of 1e-3


def test_corrections_tell_what_they_did(updates: dict[str, Any]) -> None:
    assert 0 < updates["opsm"]["metrics"]["opsm_clipfrac"] < 1
    for case in ("tis", "own_correction"):
        metrics = updates[case]["metrics"]
        assert 0 < metrics["tis_clipfrac"] < 1
        assert metrics["ois"] == pytest.approx(1)  # nothing has moved yet
        assert metrics["mismatch_k3_kl"] > 0
    assert not {"tis", "ois", "opsm_clipfrac"} & updates["gspo"]["metrics"].keys()


EVERYTHING = {
    "advantage_estimator": "gspo",
    "use_opsm": True,
    "opsm_delta": 0.0,
    "use_tis": True,
    "custom_tis_function_path": "relax_core.algorithms.corrections.rejection_function",
    "calculate_per_token_loss": True,
}


def test_ranks_train_as_one_process(place: dict[str, str]) -> None:
    """Also where a rank's micro-batch has no sample, and where a pipeline's first stage computes no loss."""
    layouts: dict[str, dict[str, Any]] = {
        "alone": {},
        "dp2": {"use_distributed_optimizer": True},
        "pp2": {"pipeline_model_parallel_size": 2},
    }
    found = {
        name: run_ranks(
            1 if name == "alone" else 2,
            "trainers:follow",
            {**place, "name": f"ranks-{name}", "options": {**EVERYTHING, **layout}, "stop": 2},
        )
        for name, layout in layouts.items()
    }
    folders = {name: load_file(Path(place["work"], f"ranks-{name}", "model.safetensors")) for name in layouts}
    for name in ("dp2", "pp2"):
        assert found[name][0]["metrics"] == found[name][1]["metrics"]
        for row, wanted in zip(found[name][0]["metrics"], found["alone"][0]["metrics"], strict=True):
            assert row == pytest.approx(wanted, rel=1e-4, abs=1e-4)
        worst = max(float(np.abs(folders[name][key] - value).max()) for key, value in folders["alone"].items())
        assert worst < 1e-4
