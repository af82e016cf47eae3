"""Gradients of slices that come ahead of their batch, in real trainers: see slice_checks.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from safetensors.numpy import load_file
from tiny import make_tiny

pytestmark = pytest.mark.megatron
CHECKS = "relax_core.training.slice_checks"

KINDS = ("plain", "everything", "per_token", "packed", "sharded", "overlapped", "sequences", "reducer", "half")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    work = tmp_path_factory.mktemp("slices")
    return {"model": str(make_tiny(work / "model", tie=True)), "work": str(work)}


@pytest.fixture(scope="module")
def alone(place: dict[str, str]) -> dict[str, Any]:
    """The errors of the checks of one process."""
    return run_ranks(1, f"{CHECKS}:every_kind", place)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_slices_ahead_of_their_batch_give_the_bits_of_the_stored_ones(alone: dict[str, str], kind: str) -> None:
    assert alone[kind] == ""


BEHAVIOUR = {
    "what_lies_between": "what uses the model between two slices harms nothing",
    "what_drops_them": "gradients that are not wanted any more leave nothing behind",
    "whole_batches": "options that need whole batches take no slice",
}


@pytest.mark.parametrize("check", BEHAVIOUR, ids=BEHAVIOUR.values())
def test_slices_of_one_process(alone: dict[str, str], check: str) -> None:
    assert alone[check] == ""


@pytest.fixture(scope="module")
def one_rank(place: dict[str, str]) -> list[dict[str, float]]:
    return run_ranks(1, f"{CHECKS}:layout", {**place, "name": "one"})[0]["metrics"]


@pytest.mark.parametrize("layout", ["dp2", "dp2-sharded", "tp2-sp", "pp2"])
def test_slices_over_two_ranks_train_as_over_one(
    place: dict[str, str], one_rank: list[dict[str, float]], layout: str
) -> None:
    ranks = run_ranks(2, f"{CHECKS}:layout", {**place, "name": layout})
    assert ranks[0] == ranks[1]
    for row, wanted in zip(ranks[0]["metrics"], one_rank, strict=True):
        assert row == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    left, right = (load_file(Path(place["work"], name, "model.safetensors")) for name in (layout, "one"))
    assert max(float(np.abs(left[name] - right[name]).max()) for name in right) < 1e-4
