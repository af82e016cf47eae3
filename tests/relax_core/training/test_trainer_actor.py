"""Two ranks as Ray actors behind one call: driving, taking over, a rank that dies, other options."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from training_batches import batches, write_batches

from data.errors import UserError
from data.store import RunStore, TableRef
from relax_core.cluster.actors import NAMESPACE, kill, result
from relax_core.config.sections import RelaxConfig
from relax_core.run.transport.ray_objects import RayTransport
from relax_core.training.actor import start_trainer
from relax_core.training.errors import SliceRefused, StaleDriver, VersionMismatch

pytestmark = [pytest.mark.ray, pytest.mark.megatron, pytest.mark.usefixtures("ray_head")]
NAME = "actor-test.trainer"


@pytest.fixture(scope="module")
def config(tiny_model: Path) -> Iterator[RelaxConfig]:
    config = RelaxConfig()
    config.checkpoint.hf_checkpoint = str(tiny_model)
    config.cluster.resource = {"actor": (1, 2), "rollout": (1, 1)}
    config.cluster.distributed_timeout_minutes = 1
    config.rollout.num_rollout = 4
    config.batch.global_batch_size = 8
    config.training.train_env_vars = {"RELAX_TEST_TRAINER": "yes"}
    yield config
    for rank in range(2):
        kill(f"{NAME}-rank-{rank}")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, list[TableRef]]:
    work = str(tmp_path_factory.mktemp("batches"))
    write_batches(work)
    return batches(work)


def call(handle: Any, method: str, *arguments: Any) -> Any:
    return result(getattr(handle, method).remote(*arguments), 120, "the trainer")


def test_one_call_drives_all_ranks_through_their_lives(
    config: RelaxConfig, stored: tuple[RunStore, list[TableRef]], tmp_path: Path
) -> None:
    store, refs = stored
    trainer = start_trainer(config, NAME, timeout=120)
    status = call(trainer, "status")
    assert (status["version"], status["world_size"], status["dirty"]) == (0, 2, False)

    variable = trainer.__ray_call__.remote(lambda actor: os.environ["RELAX_TEST_TRAINER"])
    assert ray.get(variable) == "yes"

    # Driving: one call, a repeated one, one that does not fit.
    first = call(trainer, "attach")
    trained = call(trainer, "train", first, 0, 1, refs[0], store.url, "w1")
    assert trained["optimizer_step"] == 1
    assert not trained["already_done"]
    assert call(trainer, "train", first, 0, 1, refs[0], store.url, "w1")["already_done"]
    with pytest.raises(VersionMismatch) as caught:
        call(trainer, "train", first, 5, 6, refs[1], store.url, "w6")
    assert caught.value.actual == 1
    call(trainer, "save", first, str(tmp_path), 0)
    assert call(trainer, "finish_save", first) == {}  # it was written at once

    # Another driver takes over; the former one is refused.
    again = start_trainer(config, NAME, timeout=120)
    assert again == trainer
    second = call(again, "attach")
    assert second > first
    with pytest.raises(StaleDriver):
        call(trainer, "train", first, 1, 2, refs[1], store.url, "w2")
    with pytest.raises(StaleDriver):
        call(trainer, "attach", first)
    assert call(trainer, "status")["version"] == 1

    # Slices ahead of their batch, as rows and as what every rank opens itself.
    rows = store.read_table(refs[1])
    place, transport = rows.schema.get_field_index("slice"), RayTransport()
    numbered = rows.set_column(place, rows.schema.field(place), pa.array([0] * 4 + [1] * 4, pa.int32()))
    slices = [rows[:4], transport.put(1, 1, rows[4:])]
    with pytest.raises(StaleDriver):
        call(again, "accumulate", first, 1, slices[0], 0, "w1")
    with pytest.raises(VersionMismatch):
        call(again, "accumulate", second, 0, slices[0], 0, "w1")
    for number, part in enumerate(slices):
        assert call(again, "accumulate", second, 1, part, number, "w1")["accumulated"] == number + 1
    with pytest.raises(SliceRefused):
        call(again, "accumulate", second, 1, slices[0], 5, "w1")
    assert not call(again, "status")["dirty"]
    sliced = store.write_table("sliced.parquet", numbered)
    assert call(again, "train", second, 1, 2, sliced, store.url, "w2")["streamed"] == 2

    # A rank dies: the call that needs it ends, and the next start replaces the group.
    ray.kill(ray.get_actor(f"{NAME}-rank-1", namespace=NAMESPACE))
    with pytest.raises(UserError):
        call(again, "train", second, 2, 3, refs[2], store.url, "w3")
    assert call(again, "status")["dirty"]
    replaced = start_trainer(config, NAME, timeout=120)
    assert replaced != trainer
    call(replaced, "load", second, str(tmp_path), 0)
    assert call(replaced, "status")["version"] == 1
    assert call(replaced, "train", second, 0, 1, refs[0], store.url, "w1")["metrics"] == trained["metrics"]

    # Other options need another group, here a smaller one.
    other = config.model_copy(deep=True)
    other.optimizer.lr, other.cluster.resource = 1e-4, {"actor": (1, 1), "rollout": (1, 1)}
    smaller = start_trainer(other, NAME, timeout=120)
    assert call(smaller, "status")["world_size"] == 1
    with pytest.raises(ValueError, match="Failed to look up actor"):
        ray.get_actor(f"{NAME}-rank-1", namespace=NAMESPACE)


def test_a_trainer_that_cannot_start_says_why(config: RelaxConfig, tmp_path: Path) -> None:
    broken = config.model_copy(deep=True)
    broken.cluster.resource = {"actor": (1, 1), "rollout": (1, 1)}
    broken.checkpoint.hf_checkpoint = str(tmp_path)
    with pytest.raises(UserError, match=r"has no config\.json"):
        start_trainer(broken, f"{NAME}-broken", timeout=120)
    with pytest.raises(ValueError, match="Failed to look up actor"):
        ray.get_actor(f"{NAME}-broken-rank-0", namespace=NAMESPACE)
