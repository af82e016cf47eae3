"""Rows through TransferQueue: every bit, once a task, whatever dies; and a real trainer that is told them by it."""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from odd_tables import bits, odd_table, start_reader
from safetensors.numpy import load_file
from training_batches import make_batch

pytest.importorskip("transfer_queue", reason="the package TransferQueue is not installed: the extra `queue`")

from data.errors import UserError
from data.store import RunStore
from relax_core.cluster.actors import NAMESPACE, kill, named, result
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.run.transport import transfer_queue
from relax_core.run.transport.base import RowsTicket, Transport, TransportLost
from relax_core.run.transport.ray_objects import RayTransport
from relax_core.run.transport.select import open_transport
from relax_core.run.transport.transfer_queue import QueueTicket, QueueTransport
from relax_core.training.actor import start_trainer

pytestmark = [pytest.mark.ray, pytest.mark.megatron, pytest.mark.usefixtures("ray_head")]
NAME = "queue-test.trainer"


@pytest.fixture(scope="module")
def queue(ray_head: str) -> Iterator[QueueTransport]:
    """Two units of 24 rows each: what has an odd number is in one, the rest in the other."""
    made = QueueTransport("queue-test", 2, 48)
    yield made
    made.close()
    assert named("queue-test.queue", NAMESPACE) == []


def read_by(queue: QueueTransport, step: int, task: str) -> list[int]:
    """Of each row of a step, in the order of putting, whether a task has read it."""
    client = queue._connection
    known, read = client.ask(
        lambda: client._client.async_get_consumption_status(task_name=task, partition_id=f"train_{step}"), "tell"
    )
    assert known.tolist() == sorted(known.tolist())
    return [int(value) for value in read]


def test_every_bit_arrives_in_this_process_and_another_whatever_the_order(queue: QueueTransport) -> None:
    table = odd_table()
    parts = [table, table.slice(1, 1), pa.concat_tables([table.slice(2), table]), table.slice(0, 2)]
    tickets = [queue.put(0, number, rows) for number, rows in enumerate(parts)]
    assert all(isinstance(ticket, QueueTicket) for ticket in tickets)
    assert [ticket.rows for ticket in tickets] == [3, 1, 4, 2]
    sent = pickle.loads(pickle.dumps(tickets))
    for number in (2, 0, 3, 1, 2):
        assert bits(sent[number].open()) == bits(parts[number])
    reader = start_reader()
    assert ray.get(reader.read.remote(tickets[2])) == bits(parts[2])
    ray.kill(reader)
    queue.clear(0)


def test_a_row_is_booked_once_for_each_task_that_reads_it(
    queue: QueueTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (queue.put(1, number, odd_table()) for number in range(2))
    assert read_by(queue, 1, "actor_train") == [0] * 6
    second.open()
    assert read_by(queue, 1, "actor_train") == [0, 0, 0, 1, 1, 1]
    second.open()
    first.open()
    assert read_by(queue, 1, "actor_train") == [1] * 6
    assert read_by(queue, 1, "actor_train-1") == [0] * 6
    monkeypatch.setattr(transfer_queue, "task_name", lambda: "actor_train-1")  # as rank 1 of a trainer calls itself
    assert bits(first.open()) == bits(odd_table())
    assert read_by(queue, 1, "actor_train-1") == [1, 1, 1, 0, 0, 0]
    client = queue._connection
    request = {"data_fields": ["tokens"], "batch_size": 1, "partition_id": "train_1", "task_name": "actor_train"}
    assert client.ask(lambda: client._client.async_get_meta(**request), "tell").size == 0  # it has read them all
    queue.clear(1)


def test_a_cleared_step_makes_room_and_its_tickets_are_lost(queue: QueueTransport) -> None:
    large = pa.concat_tables([odd_table()] * 15)  # 45 of the 48 rows that have room
    kept = queue.put(2, 0, large)
    full = queue.put(3, 0, odd_table().slice(0, 2))
    assert isinstance(full, QueueTicket)
    over = queue.put(3, 1, large)  # no room: the rows travel in the ticket
    assert isinstance(over, RowsTicket)
    assert bits(over.open()) == bits(large)
    queue.clear(2)
    with pytest.raises(TransportLost, match="could not give rows: the rows of train_2 are cleared"):
        kept.open()
    queue.clear(3)
    assert isinstance(queue.put(4, 0, large), QueueTicket)
    queue.clear(4)
    queue.clear(4)


@pytest.mark.parametrize("which", ["controller", "unit-0"])
def test_a_dead_queue_is_told_by_name_and_rows_go_on_without_it(which: str) -> None:
    transport = QueueTransport("queue-death", 1, 100, polling=False)
    ticket = transport.put(0, 0, odd_table())
    assert isinstance(ticket, QueueTicket)
    assert bits(ticket.open()) == bits(odd_table())  # what is ready needs no second question
    dead = f"{transport.address.name}-{which}"
    kill(dead)
    with pytest.raises(TransportLost, match=rf"TransferQueue queue-death.* could not give rows: {dead} died"):
        ticket.open()
    for number in (1, 2):
        instead = transport.put(0, number, odd_table())
        assert isinstance(instead, RowsTicket)
        assert bits(instead.open()) == bits(odd_table())
    transport.clear(0)
    transport.close()
    assert named("queue-death", NAMESPACE) == []


def test_a_queue_that_does_not_start_says_so_and_leaves_nothing() -> None:
    with pytest.raises(UserError, match=r"its 3 actors did not start within 0 s\. Look at what Ray has left"):
        QueueTransport("queue-late", 2, 100, timeout=0)
    assert named("queue-late", NAMESPACE) == []


# The same training over each


@pytest.fixture(scope="module")
def trainer(tiny_model: Path) -> Iterator[tuple[Any, int]]:
    """Rank 0 of two that share the samples of a batch, and the epoch of this driver."""
    config = with_options(
        RelaxConfig(),
        {
            "hf_checkpoint": str(tiny_model),
            "resource": {"actor": (1, 2), "rollout": (1, 1)},
            "global_batch_size": 8,
            "lr": 1e-3,
            "num_rollout": 4,
            "distributed_timeout_minutes": 1,
        },
    )
    handle = start_trainer(config, NAME, timeout=180)
    yield handle, result(handle.attach.remote())
    for rank in range(2):
        kill(f"{NAME}-rank-{rank}")


class _Tables(Transport):
    """No transport: the rows themselves, for what the others are compared with."""

    def put(self, step: int, number: int, rows: pa.Table) -> Any:
        return rows

    def clear(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass


def train(trainer: tuple[Any, int], transport: Transport, store: RunStore, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Two steps, each of two slices that come ahead of the stored batch: metrics, and the weights at the end."""
    handle, epoch = trainer

    def call(method: str, *arguments: Any) -> Any:
        return result(getattr(handle, method).remote(epoch, *arguments), 120, "the trainer")

    call("initialise")
    told = []
    for step in range(2):
        table = store.read_table(make_batch(store, f"batch-{step}", seed=step))
        place = table.schema.get_field_index("slice")
        table = table.set_column(place, table.schema.field(place), pa.array([0] * 4 + [1] * 4, pa.int32()))
        tickets: Sequence[Any] = [transport.put(step, number, table.slice(4 * number, 4)) for number in range(2)]
        for number, ticket in enumerate(tickets):
            assert call("accumulate", step, ticket, number)["accumulated"] == number + 1
        ref = store.write_table(f"sliced-{step}.parquet", table)
        done = call("train", step, step + 1, ref, store.url, f"w{step + 1}")
        assert done["streamed"] == 2  # nothing was computed a second time
        told.append(done["metrics"])
        transport.clear(step)
    transport.close()
    call("export_hf", str(folder))
    return told, load_file(folder / "model.safetensors")


def test_the_same_training_over_each_transport_gives_the_same_bits(
    trainer: tuple[Any, int], tmp_path: Path, tiny_model: Path
) -> None:
    store = RunStore(tmp_path / "run")
    sizes = {"rollout_batch_size": 4, "n_samples_per_prompt": 2, "data_transport": "transfer_queue"}
    queue = with_options(RelaxConfig(), sizes)
    each = with_options(queue, {"per_rank_fetch": True, "num_data_storage_units": 2, "polling_mode": False})
    plain, wanted = train(trainer, _Tables(), store, tmp_path / "tables")
    start = load_file(tiny_model / "model.safetensors")
    assert any((wanted[name] != start[name]).any() for name in wanted)
    for name, transport in {
        "ray": RayTransport(),
        "queue": open_transport(queue, "queue-run"),
        "each rank": open_transport(each, "queue-run"),
    }.items():
        metrics, weights = train(trainer, transport, store, tmp_path / name)
        assert metrics == plain, name
        assert {key: value.tobytes() for key, value in weights.items()} == {
            key: value.tobytes() for key, value in wanted.items()
        }, name
