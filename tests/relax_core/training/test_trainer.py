"""The trainer under every layout against one process, and one process against transformers.

A process costs seconds to start, so each launch checks many things: see trainer_checks.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from safetensors.numpy import load_file
from tiny import make_tiny
from training_batches import write_batches

from relax_core.training.checkpoint_index import complete_iterations
from relax_core.weights.convert import convert, find_checkpoints

pytestmark = pytest.mark.megatron
CHECKS = "relax_core.training.trainer_checks"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    work = tmp_path_factory.mktemp("trainer")
    write_batches(str(work))
    return {"model": str(make_tiny(work / "model", tie=True)), "work": str(work)}


@pytest.fixture(scope="module")
def alone(place: dict[str, str]) -> dict[str, Any]:
    """The results of one process."""
    return run_ranks(1, f"{CHECKS}:one_process", place)[0]


def weights_of(place: dict[str, str], name: str) -> dict[str, np.ndarray]:
    return load_file(Path(place["work"], name, "model.safetensors"))


def worst_difference(place: dict[str, str], left: str, right: str) -> float:
    a, b = weights_of(place, left), weights_of(place, right)
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def assert_close(rows: list[dict[str, float]], expected: list[dict[str, float]], tolerance: float) -> None:
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name in wanted:
            assert row[name] == pytest.approx(wanted[name], rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize("kind", ["reference", "decided by the device"])
def test_one_process_trains_as_transformers_does(alone: dict[str, Any], kind: str) -> None:
    reference = alone[kind]
    assert reference["loss"][0] == pytest.approx(reference["loss"][1], rel=1e-5)
    assert reference["norm"][0] == pytest.approx(reference["norm"][1], rel=1e-5)
    assert reference["weights"] < 1e-5  # of a step of 1e-3


def test_packing_does_not_change_the_update(place: dict[str, str], alone: dict[str, Any]) -> None:
    assert_close(alone["packed"], alone["metrics"], 1e-5)
    assert_close(alone["single"], alone["metrics"], 1e-5)
    assert worst_difference(place, "packed", "plain") < 1e-5


def test_the_same_run_gives_the_same_bits(place: dict[str, str], alone: dict[str, Any]) -> None:
    assert alone["whole"] == alone["metrics"]
    assert worst_difference(place, "whole", "plain") == 0


@pytest.mark.parametrize("optimizer", ["whole", "sharded"])
def test_a_new_process_resumes_bit_by_bit(place: dict[str, str], alone: dict[str, Any], optimizer: str) -> None:
    options = {"use_distributed_optimizer": optimizer == "sharded"}
    folder = f"{place['work']}/checkpoints-{optimizer}"
    resumed = run_ranks(
        1, "trainers:follow", {**place, "name": f"{optimizer}-resumed", "options": options, "load": [folder, 1]}
    )[0]
    assert resumed["metrics"] == alone[optimizer][2:]
    assert worst_difference(place, f"{optimizer}-resumed", optimizer) == 0
    assert resumed["status"]["optimizer_step"] == 6


LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"use_distributed_optimizer": True, "balance_data": True},
    "tp2": {"tensor_model_parallel_size": 2},
    "tp2-sp": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"pipeline_model_parallel_size": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_processes_train_as_one_and_take_over_its_checkpoint(
    place: dict[str, str], alone: dict[str, Any], layout: str
) -> None:
    load = [f"{place['work']}/checkpoints-{'sharded' if layout == 'dp2' else 'whole'}", 1]
    saved = f"{place['work']}/checkpoints-{layout}"
    arguments = {**place, "name": layout, "options": LAYOUTS[layout], "load": load, "save": [saved, 2]}
    ranks = run_ranks(2, "trainers:fresh_and_loaded", arguments)
    assert ranks[0] == ranks[1]
    fresh, loaded = ranks[0]
    assert_close(fresh["metrics"], alone["metrics"], 1e-4)
    assert worst_difference(place, layout, "plain") < 1e-4
    np.testing.assert_allclose(fresh["scores"], alone["scores"], atol=1e-4)
    assert_close(loaded["metrics"], alone["metrics"][2:], 1e-4)
    assert worst_difference(place, f"{layout}-loaded", "plain") < 1e-4
    assert complete_iterations(saved) == [(2, "w3")]
    convert(find_checkpoints(saved), f"{place['work']}/{layout}-converted")  # without the trainer: the same bits
    assert worst_difference(place, f"{layout}-converted", f"{layout}-loaded") == 0
