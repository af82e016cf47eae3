"""Rows on their way to the trainer: as they are in Arrow, through Ray's memory, as columns of tensors."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from odd_tables import bits, odd_table, start_reader

from data.errors import UserError
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.run.transport.base import RowsTicket, TransportLost, handed_on, identity_of, packed, unpacked
from relax_core.run.transport.ray_objects import RayTicket, RayTransport
from relax_core.run.transport.select import queue_settings
from relax_core.run.transport.tensors import PRESENT, from_columns, to_columns

TABLES = {
    "whole": lambda table: table,
    "first row": lambda table: table.slice(0, 1),
    "empty row": lambda table: table.slice(1, 1),
    "last rows": lambda table: table.slice(1),
    "chunks": lambda table: pa.concat_tables([table.slice(2), table, table.slice(1, 1)]),
}


@pytest.mark.parametrize("part", TABLES.values(), ids=TABLES)
def test_a_stream_gives_the_bits_that_were_put(part: Any) -> None:
    table = part(odd_table())
    assert bits(unpacked(packed(table))) == bits(table)


@pytest.mark.parametrize("part", TABLES.values(), ids=TABLES)
def test_columns_of_tensors_give_the_bits_that_were_put(part: Any) -> None:
    table = part(odd_table())
    back = from_columns(to_columns(table), table.schema)
    back.validate(full=True)
    assert bits(back) == bits(table)


def test_columns_hold_values_of_their_type_and_leave_out_what_is_null_throughout() -> None:
    columns = to_columns(odd_table())
    assert str(columns["tokens"].dtype) == "torch.int32"
    assert [len(row) for row in columns["tokens"].unbind()] == [3, 0, 2]
    assert "values" not in columns  # the critic's: null in every row
    assert columns["reward" + PRESENT].values().tolist() == [0, 1, 1]
    assert "tokens" + PRESENT not in columns


def test_other_types_survive_too() -> None:
    table = pa.table(
        {
            "blob": pa.array([b"\0\xff", None, b""], pa.large_binary()),
            "switch": pa.array([True, None, False]),
            "big": pa.array([2**62, None, -1], pa.int64()),
        }
    )
    assert from_columns(to_columns(table), table.schema).equals(table)
    with pytest.raises(UserError, match=r"A column of struct.* cannot go through --data-transport transfer_queue"):
        to_columns(pa.table({"pair": [{"a": 1}]}))


def test_a_slice_is_packed_without_the_rows_around_it() -> None:
    # 100 rows of 1000 four-byte tokens are 400 kB, one of them 4 kB
    table = pa.table({"tokens": [list(range(1000))] * 100})
    assert packed(table.slice(7, 1)).size < packed(table).size / 50


def test_an_identity_tells_of_place_and_content() -> None:
    one, other = packed(odd_table()), packed(odd_table().slice(1))
    names = {identity_of(12, 3, one), identity_of(12, 3, other), identity_of(12, 4, one), identity_of(13, 3, one)}
    assert len(names) == 4
    assert identity_of(12, 3, packed(odd_table())) == identity_of(12, 3, one)
    assert identity_of(12, 3, one).startswith("step-000012/3/")


def test_a_ticket_that_ranks_do_not_open_each_is_read_once_for_all() -> None:
    table = odd_table()

    class Far(RowsTicket):
        every_rank_opens = False

    def ticket(kind: type[RowsTicket]) -> RowsTicket:
        return kind("one", 3, 9, packed(table))

    assert bits(handed_on(ticket(Far), 2)) == bits(table)
    far, near = ticket(Far), ticket(RowsTicket)
    assert handed_on(far, 1) is far
    assert handed_on(near, 2) is near
    assert handed_on(table, 2) is table


def test_a_queue_holds_the_samples_of_all_steps_that_may_be_unfinished() -> None:
    options = {
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 8,
        "max_staleness": 2,
        "num_data_storage_units": 3,
        "polling_mode": False,
        "per_rank_fetch": True,
    }
    assert queue_settings(with_options(RelaxConfig(), options)) is None
    settings = queue_settings(with_options(RelaxConfig(), {**options, "data_transport": "transfer_queue"}))
    assert settings is not None
    assert (settings.units, settings.capacity, settings.polling, settings.per_rank) == (3, 4 * 8 * 3, False, True)


def test_without_ray_rows_travel_in_the_ticket_and_the_queue_is_not_imported(tmp_path: Path) -> None:
    place = tmp_path / "ticket"
    write = (
        "import pickle, sys\n"
        "from odd_tables import odd_table\n"
        "from relax_core.config.sections import RelaxConfig\n"
        "from relax_core.run.transport.select import open_transport\n"
        "transport = open_transport(RelaxConfig(), 'run')\n"
        "ticket = transport.put(0, 0, odd_table())\n"
        f"pickle.dump(ticket, open({str(place)!r}, 'wb'))\n"
        "transport.clear(0); transport.clear(1); transport.close()\n"
        "print([name for name in ('transfer_queue', 'tensordict') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", write],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.strip() == "[]"
    ticket = pickle.loads(place.read_bytes())
    assert ticket.rows == 3
    assert bits(ticket.open()) == bits(odd_table())


@pytest.fixture
def reader(ray_head: str) -> Iterator[Any]:
    handle = start_reader()
    yield handle
    ray.kill(handle)


@pytest.mark.ray
def test_another_process_reads_what_lies_in_ray_as_often_as_it_likes(reader: Any) -> None:
    transport = RayTransport()
    table = odd_table()
    tickets = [transport.put(3, number, rows) for number, rows in enumerate((table, table.slice(1)))]
    assert [ticket.rows for ticket in tickets] == [3, 2]
    assert len(pickle.dumps(tickets[0].identity)) < 100
    for ticket, rows in ((tickets[1], table.slice(1)), (tickets[0], table), (tickets[0], table)):
        assert ray.get(reader.read.remote(ticket)) == bits(rows)
    opened = tickets[0].open()
    transport.clear(3)
    del tickets, ticket
    assert bits(opened) == bits(table)  # what is in use stays
    transport.close()


def test_rows_that_ray_has_lost_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = RayTicket("step-000004/1/abc", 3, 99, None)

    def lost(reference: Any) -> None:
        raise ray.exceptions.ObjectLostError("00", None, "")

    monkeypatch.setattr(ray, "get", lost)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(TransportLost, match=r"Ray has lost the rows of step-000004/1/abc \(ObjectLostError\)"):
        ticket.open()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(TransportLost, match="are in Ray, which this process is not connected to"):
        ticket.open()
