"""What a generation that begins more groups than it needs is known by."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from results import made, requests, rows

from data.store import RunStore, TableRef
from relax_core.config import RelaxConfig
from relax_core.config.derived import selects
from relax_core.config.options import with_options
from relax_core.run.records import StageRecord, StageRecords
from relax_core.run.selection import buffer_before


def reference(name: str) -> TableRef:
    return TableRef(f"{name}.parquet", 1, 1, name, "rollout/2")


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, False),
        ({"over_sampling_batch_size": 4}, False),
        ({"over_sampling_batch_size": 5}, True),
        ({"dynamic_sampling_filter_path": "mine.keep"}, True),
        ({"partial_rollout": True, "buffer_filter_path": "mine.choose"}, False),
    ],
)
def test_steps_begin_more_groups_than_they_need_where_two_options_say_so(options: dict[str, Any], more: bool) -> None:
    assert selects(with_options(RelaxConfig(), {"rollout_batch_size": 4, **options})) == more


def test_the_main_table_of_a_generation_is_its_rollout_whatever_the_order() -> None:
    tables = {name: reference(name) for name in ("buffer", "rollout")}
    record = StageRecord("generate", "key", tables)
    assert record.table == reference("rollout")
    assert record.inputs == {"rollout": reference("rollout")}
    assert StageRecord.from_json(record.to_json()) == record
    assert StageRecord("reward", "key", {"reward": reference("reward")}).table == reference("reward")


@pytest.fixture
def run(tmp_path: Any) -> Any:
    store = RunStore(str(tmp_path))
    return SimpleNamespace(store=store, records=StageRecords(store))


def test_the_buffer_is_that_of_the_step_before_by_its_record_or_its_manifest(run: Any) -> None:
    table: pa.Table = rows(*(made(request, [1]) for request in requests(1)))
    assert buffer_before(run, 0) is None
    assert buffer_before(run, 1) is None
    buffer = run.store.write_table("steps/000000/buffer.parquet", table)
    run.store.write_manifest(0, {"tables": {"generate/buffer": buffer.to_json()}})
    assert buffer_before(run, 1) == buffer
    other = run.store.write_table("steps/000000/other.parquet", table)
    rollout = run.store.write_table("steps/000000/rollout.parquet", table)
    run.records.write(0, StageRecord("generate", "key", {"buffer": other, "rollout": rollout}))
    assert buffer_before(run, 1) == other
    run.records.write(0, StageRecord("generate", "key", {"rollout": rollout}))
    assert buffer_before(run, 1) is None
