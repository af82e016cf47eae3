"""Steps whose advantages need passes of other models: the trainer against a plain loop, and several ranks against one.

A process costs seconds to start, so each launch checks many things: see forward_checks.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from safetensors.numpy import load_file
from tiny import make_tiny
from training_batches import write_batches

pytestmark = pytest.mark.megatron

CASES = (
    "reinforce_plus_plus",
    "reinforce_plus_plus_twice",
    "engines_log_probs",
    "distilled",
    "distilled_and_shaped",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("forward")
    write_batches(str(work))
    models = {name: str(make_tiny(work / name, tie=True, seed=i)) for i, name in enumerate(("model", "other", "third"))}
    models["wide"] = str(make_tiny(work / "wide", tie=True, layers=4))
    return {"models": models, "work": str(work)}


@pytest.fixture(scope="module")
def steps(place: dict[str, Any]) -> dict[str, Any]:
    """What one process finds."""
    found: dict[str, Any] = run_ranks(1, "relax_core.training.forward_checks:all_cases", place)[0]
    return found


def test_every_case_is_looked_at(steps: dict[str, Any]) -> None:
    assert set(steps) == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_whole_step_is_that_of_a_plain_loop(case: str, steps: dict[str, Any]) -> None:
    """And no pass is made a second time: the update would have raised."""
    step = steps[case]
    metrics = {name: step["metrics"][name] for name in step["wanted"]["metrics"]}
    assert metrics == pytest.approx(step["wanted"]["metrics"], rel=2e-5, abs=5e-6)
    assert step["weights"] < 2e-5  # of steps of 1e-3 or 1e-2
    assert (step["metrics"]["pg_clipfrac"] > 0) == (case in ("reinforce_plus_plus_twice", "engines_log_probs"))


@pytest.mark.parametrize("case", CASES)
def test_the_passes_are_those_of_transformers_at_the_rollout_temperature(case: str, steps: dict[str, Any]) -> None:
    step = steps[case]
    for name, wanted in step["wanted"]["columns"].items():
        for found, row in zip(step["columns"][name], wanted, strict=True):
            assert found == pytest.approx(row, abs=1e-4)
    names = {"old_log_probs", "ref_log_probs", "teacher_log_probs", "values"}
    assert set(step["absent"]) == names - set(step["wanted"]["columns"])


def test_the_distance_to_reference_and_teacher_is_told(steps: dict[str, Any]) -> None:
    assert "opd_reverse_kl" not in steps["reinforce_plus_plus"]["metrics"]
    assert "reward_kl" not in steps["distilled"]["metrics"]
    both = steps["distilled_and_shaped"]["metrics"]
    assert {"reward_kl", "opd_reverse_kl"} <= both.keys()
    assert both["reward_kl"] != both["opd_reverse_kl"]


def test_ranks_do_as_one_process(place: dict[str, Any]) -> None:
    layouts: dict[str, dict[str, Any]] = {
        "alone": {},
        "dp2": {"use_distributed_optimizer": True},
        "tp2": {"tensor_model_parallel_size": 2},
    }
    found, folders = {}, {}
    for name, layout in layouts.items():
        work = Path(place["work"], name)
        work.mkdir()
        arguments = {**place, "work": str(work), "options": layout}
        found[name] = run_ranks(1 if name == "alone" else 2, "relax_core.training.forward_checks:on_ranks", arguments)
        folders[name] = load_file(work / "distilled_and_shaped" / "model.safetensors")
    alone = found["alone"][0]
    for name in ("dp2", "tp2"):
        assert found[name][0] == found[name][1]
        assert found[name][0]["metrics"] == pytest.approx(alone["metrics"], rel=1e-4, abs=1e-4)
        for column in ("old_log_probs", "ref_log_probs", "teacher_log_probs"):
            for row, wanted in zip(found[name][0]["forward"][column], alone["forward"][column], strict=True):
                assert row == pytest.approx(wanted, abs=1e-4)
        worst = max(float(np.abs(folders[name][key] - value).max()) for key, value in folders["alone"].items())
        assert worst < 1e-4


def test_a_teacher_is_a_folder_or_a_checkpoint_of_the_same_shape(place: dict[str, Any]) -> None:
    found = run_ranks(1, "relax_core.training.forward_checks:teachers", place)[0]
    assert found["checkpoint"]["teacher"] == found["folder"]["teacher"]
    assert found["itself"]["teacher"] == found["itself"]["policy"]
    for name in ("checkpoint", "folder", "itself"):
        assert found[name]["after"] == found[name]["policy"] == found["itself"]["policy"]
    assert found["folder"]["teacher"] != found["folder"]["policy"]
    for name in ("wide", "wide_checkpoint"):
        assert "--opd-teacher-load" in found[name]
        assert "has another shape than --hf-checkpoint: layers." in found[name]
    assert "iter_0000000 does not fit the model of --hf-checkpoint: Global shape mismatch" in found["wide_alone"]
