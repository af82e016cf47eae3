"""Tables as the columns that TransferQueue stores, and back.

Guarantee: ``from_columns`` of ``to_columns`` is the table, bit by bit, whatever is null, empty or not a number. A
column is a flat tensor of values and the length of each row, so that a row's part of it can be stored and read alone;
columns that are null throughout are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from data.errors import UserError
from data.ragged import Ragged

PRESENT = ".present"
"""Behind a column's name: 1 where it is not null, for a column that has nulls."""


def to_columns(table: pa.Table) -> dict[str, torch.Tensor]:
    """Name to a jagged tensor of N rows.

    Raises:
        UserError: a type that no table of a run has.
    """
    columns: dict[str, torch.Tensor] = {}
    for field in table.schema:
        column = table[field.name].combine_chunks()
        if column.null_count == len(column):
            continue
        if column.null_count:
            present = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
            columns[field.name + PRESENT] = _jagged(Ragged.from_lengths(present, np.ones(len(column))))
        columns[field.name] = _jagged(_rows(column))
    return columns


def from_columns(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """The table of this schema; see ``to_columns``."""
    ragged = {name: _ragged(column) for name, column in columns.items()}
    rows = len(next(iter(ragged.values())))
    return pa.table([_array(ragged, field, rows) for field in schema], schema=schema)


def _rows(column: pa.Array) -> Ragged:
    """Numbers of each row; a null has none, or 0 where each row has one."""
    kind = column.type
    if pa.types.is_list(kind):
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return Ragged.from_lengths(_numbers(column.flatten()), lengths)
    if _is_text(kind):
        whole = column.fill_null("" if _is_utf8(kind) else b"").cast(pa.large_binary())
        offsets = np.frombuffer(whole.buffers()[1], dtype=np.int64)[whole.offset : whole.offset + len(whole) + 1]
        data = whole.buffers()[2]
        values = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        return Ragged.from_lengths(values[offsets[0] : offsets[-1]], np.diff(offsets))
    return Ragged.from_lengths(_numbers(column), np.ones(len(column)))


def _numbers(column: pa.Array) -> NDArray[Any]:
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
    if not pa.types.is_primitive(column.type):
        raise UserError(f"A column of {column.type} cannot go through --data-transport transfer_queue.", "Use ray.")
    return column.fill_null(0).to_numpy() if column.null_count else column.to_numpy()


def _array(ragged: Mapping[str, Ragged], field: pa.Field, rows: int) -> pa.Array:
    if field.name not in ragged:
        return pa.nulls(rows, field.type)
    column, present = ragged[field.name], ragged.get(field.name + PRESENT)
    mask = pa.array(present.values.astype(np.bool_)).buffers()[1] if present is not None else None
    kind = field.type
    if pa.types.is_list(kind):
        offsets = pa.py_buffer(column.offsets.astype(np.int32))
        return pa.Array.from_buffers(kind, rows, [mask, offsets], children=[_flat(column.values, kind.value_type)])
    if _is_text(kind):
        width = np.int64 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else np.int32
        offsets = pa.py_buffer(column.offsets.astype(width))
        return pa.Array.from_buffers(kind, rows, [mask, offsets, pa.py_buffer(column.values)])
    values = _flat(column.values, kind)
    return pa.Array.from_buffers(kind, rows, [mask, values.buffers()[1]])


def _flat(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values.astype(np.bool_) if pa.types.is_boolean(kind) else values, type=kind)


def _is_utf8(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_text(kind: pa.DataType) -> bool:
    return _is_utf8(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _jagged(rows: Ragged) -> torch.Tensor:
    # a copy: torch cannot say of a tensor that it is not to be written to, as Arrow's memory is not
    values, offsets = torch.from_numpy(np.array(rows.values)), torch.from_numpy(np.array(rows.offsets))
    if not len(values):  # from NumPy it has the stride 0, which TransferQueue cannot write
        values = torch.empty(0, dtype=values.dtype)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def _ragged(column: Any) -> Ragged:
    """Of a column as it comes back: jagged, or dense where that is how the store packed it."""
    if getattr(column, "layout", None) == torch.jagged:
        return Ragged(column.values().numpy(), column.offsets().numpy())
    rows = [row.reshape(-1) for row in _each(column)]
    return Ragged.from_lengths(torch.cat(rows).numpy(), [len(row) for row in rows])


def _each(column: Any) -> Iterator[torch.Tensor]:
    yield from column.unbind(0) if isinstance(column, torch.Tensor) else column.tolist()
