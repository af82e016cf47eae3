"""What single options change in training: see option_checks.py, and the trainer of several ranks against one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from safetensors.numpy import load_file
from tiny import make_tiny
from training_batches import write_batches

pytestmark = pytest.mark.megatron
CHECKS = "relax_core.training.option_checks"

BEHAVIOUR = {
    "passed_through": "options that are passed through reach Megatron",
    "schedules": "learning rate and weight decay follow their schedules",
    "reset": "moments are cleared before a rollout step",
    "on_policy": "the policy itself is the old policy",
    "recompute_loss": "nothing of the logits is kept",
    "starts": "the actor starts where the options say",
    "reference_follows": "the reference takes the actor's weights",
    "frozen": "what is frozen keeps its weights",
    "float16": "an overflow lowers the loss scale and costs a step",
    "background": "a checkpoint is written while training goes on",
    "ways": "weights go where the engines are",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    work = tmp_path_factory.mktemp("options")
    write_batches(str(work))
    return {"model": str(make_tiny(work / "model", tie=True)), "work": str(work)}


@pytest.fixture(scope="module")
def found(place: dict[str, str]) -> dict[str, str]:
    """The errors of the checks of one process, which takes seconds to start."""
    errors: dict[str, str] = run_ranks(1, f"{CHECKS}:one_process", place)[0]
    assert errors.keys() == BEHAVIOUR.keys()
    return errors


@pytest.mark.parametrize("check", BEHAVIOUR, ids=list(BEHAVIOUR.values()))
def test_that(check: str, found: dict[str, str]) -> None:
    assert not found[check], found[check]


def test_overlapping_exchanges_change_nothing(place: dict[str, str]) -> None:
    model = str(make_tiny(Path(place["work"], "untied"), tie=False))  # its output weight is in no module's forward pass
    run_ranks(2, f"{CHECKS}:overlapped", {"model": model, "work": place["work"]})


FROZEN = {"only_train_params_name_list": [r"layers\.1\..*(linear|norm)", "final"]}
"""With two pipeline stages the first one trains nothing."""
KINDS: dict[str, dict[str, Any]] = {
    "frozen": FROZEN,
    "frozen-bf16": {**FROZEN, "bf16": True},
    "reference": {"ref_update_interval": 2},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"use_distributed_optimizer": True},
    "tp2-sp": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"pipeline_model_parallel_size": 2},
    "pp2-sharded": {"pipeline_model_parallel_size": 2, "use_distributed_optimizer": True},
}


@pytest.fixture(scope="module")
def alone(place: dict[str, str]) -> dict[str, Any]:
    """What one process does, by kind; checkpoints of both optimisers after step 1."""
    results: dict[str, Any] = run_ranks(1, f"{CHECKS}:kinds_alone", {**place, "kinds": KINDS})[0]
    return results


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("frozen", "dp2"),
        ("frozen", "tp2-sp"),
        ("frozen", "pp2"),
        ("frozen", "pp2-sharded"),
        ("frozen-bf16", "pp2"),
        ("reference", "tp2-sp"),
        ("reference", "pp2"),
    ],
)
def test_two_processes_train_as_one_and_take_over_its_checkpoint(
    place: dict[str, str], alone: dict[str, Any], kind: str, layout: str
) -> None:
    options = {**KINDS[kind], **LAYOUTS[layout]}
    optimizer = "sharded" if "use_distributed_optimizer" in options else "whole"
    name = f"{kind}-{layout}"
    arguments = {
        **place,
        "name": name,
        "options": options,
        "load": [f"{place['work']}/{kind}-{optimizer}", 1],
        "save": [f"{place['work']}/{name}-saved", 2],
    }
    ranks = run_ranks(2, "trainers:fresh_and_loaded", arguments)
    assert ranks[0] == ranks[1]
    tolerance = 3e-2 if "bf16" in kind else 1e-4
    for result, steps in zip(ranks[0], (slice(None), slice(2, None)), strict=True):
        for row, wanted in zip(result["metrics"], alone[kind][steps], strict=True):
            assert row == pytest.approx(wanted, rel=tolerance, abs=tolerance)
    if "bf16" in kind:
        return
    expected = load_file(Path(place["work"], kind, "model.safetensors"))
    for folder in (name, f"{name}-loaded"):
        weights = load_file(Path(place["work"], folder, "model.safetensors"))
        assert max(float(np.abs(weights[key] - expected[key]).max()) for key in expected) < 1e-4
