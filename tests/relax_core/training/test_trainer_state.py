"""Compare and swap, without a model."""

import pickle

import pytest

from relax_core.training.errors import DirtyTrainer, NonFiniteUpdate, StaleDriver, VersionMismatch
from relax_core.training.state import TrainResult, VersionGate


def made(version: int, batch: str = "b", weights: str = "w") -> TrainResult:
    return TrainResult(version, batch, weights, version, {"loss": 0.5}, tokens=10, seconds={"read": 0.1})


def test_an_update_is_made_on_its_base_only() -> None:
    gate = VersionGate()
    assert gate.find(0, 1, "b", "w") is None
    with pytest.raises(VersionMismatch) as caught:
        gate.find(3, 4, "b", "w")
    assert (caught.value.wanted, caught.value.actual) == (3, 0)


def test_a_repeated_update_is_answered_with_its_result() -> None:
    gate = VersionGate()
    gate.commit(made(1))
    again = gate.find(0, 1, "b", "w")
    assert again is not None
    assert again.already_done
    assert again.metrics == {"loss": 0.5}


@pytest.mark.parametrize(("batch", "weights"), [("other", "w"), ("b", "other")])
def test_the_same_version_from_something_else_is_a_mismatch(batch: str, weights: str) -> None:
    gate = VersionGate()
    gate.commit(made(1))
    with pytest.raises(VersionMismatch, match="another batch or other options"):
        gate.find(0, 1, batch, weights)


def test_an_update_that_failed_before_it_began_leaves_the_version() -> None:
    gate = VersionGate()
    with pytest.raises(OSError), gate.updating():
        raise OSError("no such file")
    assert gate.find(0, 1, "b", "w") is None


def test_an_update_that_failed_halfway_closes_the_gate_until_it_is_reset() -> None:
    gate = VersionGate()

    def breaks() -> None:
        with gate.updating() as update:
            update.begun = True
            raise MemoryError

    with pytest.raises(MemoryError):
        breaks()
    with pytest.raises(DirtyTrainer, match="MemoryError"):
        gate.find(0, 1, "b", "w")
    with pytest.raises(DirtyTrainer):
        gate.require(0)
    gate.reset(3, 6, made(3))
    gate.require(3)
    assert gate.optimizer_step == 6


def test_updates_go_one_version_forward() -> None:
    with pytest.raises(ValueError, match="one version forward"):
        VersionGate().find(0, 2, "b", "w")


def test_a_result_survives_json() -> None:
    assert TrainResult.from_json({**made(2).to_json(), "added_later": 1}) == made(2)


@pytest.mark.parametrize(
    "error", [VersionMismatch(1, 2, "why"), DirtyTrainer("x"), StaleDriver(1, 2), NonFiniteUpdate(3, 1, 0.5, None)]
)
def test_errors_travel_between_processes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
