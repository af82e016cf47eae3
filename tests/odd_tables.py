"""A table with all that a transport may spoil, and what a reader in another process says of one."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data.schema import BATCH

BITS = np.array([0x7FC00001, 0xFFC0DEAD, 0x80000000, 0x7F800000, 0x00000001], dtype=np.uint32)
"""A quiet NaN with a payload, a negative one, -0, infinity, the smallest number."""


def odd_table() -> pa.Table:
    """Schema ``BATCH``, three rows of two groups: nulls, empty lists, columns that are null or empty throughout,
    numbers that are none."""
    floats = BATCH.field("returns").type
    numbers = pa.array(BITS.view(np.float32))
    offsets = pa.py_buffer(np.array([0, 3, 3, 5], dtype=np.int32))
    columns: dict[str, Any] = {
        "sample_id": ["a", "bé", ""],
        "group_id": ["g", "g", "h"],
        "tokens": [[1, 2, 3], [], [2**31 - 1, -1]],
        "response_length": [3, 0, 2],
        "loss_mask": [[1, 0, 255], [], [1, 1]],
        "rollout_log_probs": pa.Array.from_buffers(floats, 3, [None, offsets], children=[numbers]),
        "advantages": [[], [], []],
        "returns": [[1.0, 2.0, 3.0], [], [4.0, 5.0]],
        "reward": pa.array([None, float("nan"), -0.0], pa.float32(), from_pandas=False),
        "old_log_probs": [None, [], [6.0, 7.0]],
        "slice": [None, 0, 7],
    }
    arrays = [_array(columns.get(field.name, [None] * 3), field.type) for field in BATCH]
    return pa.table(arrays, schema=BATCH)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, type=kind)


def bits(table: pa.Table) -> dict[str, Any]:
    """All that is in a table, so that equal texts and bytes mean equal bits: NaN is not equal to itself."""
    found: dict[str, Any] = {"schema": table.schema.to_string(show_schema_metadata=True)}
    for name in table.column_names:
        column = table[name].combine_chunks()
        flat, shape = column, None
        if pa.types.is_list(column.type):
            flat, shape = column.flatten(), column.value_lengths().to_pylist()
        valid = flat.is_valid().to_pylist()
        values = flat.to_pylist() if pa.types.is_string(flat.type) else flat.fill_null(0).to_numpy().tobytes()
        found[name] = (shape, valid, values)
    return found


class Reader:
    """Opens tickets in a process of its own."""

    def read(self, ticket: Any) -> dict[str, Any]:
        """See ``bits``."""
        return bits(ticket.open())


def start_reader() -> Any:
    """A ``Reader`` under Ray."""
    import ray

    tests = Path(__file__).resolve().parent
    env = {"PYTHONPATH": f"{tests}:{tests.parent}"}  # a standing head knows nothing of ours
    return ray.remote(Reader).options(num_cpus=0, runtime_env={"env_vars": env}).remote()
