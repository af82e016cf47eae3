"""The columns of every table that a run stores.

Guarantee: a table that passed ``conform`` has exactly the columns of its schema in their order and types, no null where
none is allowed, one row per ``sample_id``, and lists whose lengths fit the row's lengths. The schema's name and version
travel in the file's metadata, and a file of a newer version is refused instead of being half understood.

Lengths: P = prompt_length, R = response_length, both in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.errors import UserError
from data.ragged import Ragged

SCHEMA_KEY = b"relax.schema"
STATUSES = ("completed", "truncated", "aborted", "failed")


def _list(kind: pa.DataType) -> pa.ListType:
    # "element" is the name that Parquet gives back: with another one, a table that was read and is written again would
    # have other bytes.
    return pa.list_(pa.field("element", kind))


def _need(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _may(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=True)


def _schema(name: str, fields: list[pa.Field]) -> pa.Schema:
    return pa.schema(fields, metadata={SCHEMA_KEY: name.encode()})


_IDS = [_need("sample_id", pa.string()), _need("group_id", pa.string())]

_ROLLOUT = [
    _need("prompt_id", pa.string()),
    _need("group_index", pa.int64()),  # the same for all samples of a group
    _need("index", pa.int64()),  # of the sample, over the whole run
    _need("step", pa.int32()),
    _need("seed", pa.int64()),  # sampling seed
    _need("prompt", pa.string()),  # rendered text
    _need("tokens", _list(pa.int32())),  # [P+R] prompt and response
    _need("prompt_length", pa.int32()),
    _need("response_length", pa.int32()),
    _need("response", pa.string()),
    _may("label", pa.string()),  # JSON text
    _need("metadata", pa.string()),  # JSON object
    _need("loss_mask", _list(pa.uint8())),  # [R] 1 = trained on
    _need("rollout_log_probs", _list(pa.float32())),  # [R] of the engine
    _need("weight_versions", _list(pa.int32())),  # versions that made the response, in order
    _may("token_versions", _list(pa.int32())),  # [R] version that made each token, -1: no engine did
    _need("status", pa.string()),  # one of STATUSES
    _need("finish_reason", pa.string()),
    _need("remove_sample", pa.bool_()),
    _may("teacher_log_probs", _list(pa.float32())),  # [R]
    _may("rollout_routed_experts", pa.large_binary()),
    _may("train_metadata", pa.string()),  # JSON
    _may("session_id", pa.string()),
    _may("spec_info", pa.string()),  # JSON
    _may("prefix_cache_info", pa.string()),  # JSON
    _need("abort_count", pa.int32()),
    _may("multimodal_inputs", pa.large_binary()),
    _may("multimodal_train_inputs", pa.large_binary()),
]

_REWARD = [
    _may("reward", pa.float32()),  # null = no score, which is not 0
    _may("raw_reward", pa.float32()),  # before normalisation and other processing
    _need("rm_type", pa.string()),
    _may("components", pa.string()),  # JSON object of numbers and texts
    _may("error", pa.string()),  # why there is no score, or no true one
    _may("outcome", pa.string()),  # scored, no_score, nan, failed
    _may("decision", pa.string()),  # how the reward was found: custom, explicit, inferred, fallback, distilled
    _may("decision_reason", pa.string()),  # why it was not found as said
    _may("judge_prompt", pa.string()),  # what a judge was asked
    _may("judge_output", pa.string()),  # what it answered
]

ROLLOUT = _schema("rollout/2", _IDS + _ROLLOUT)
"""One row per sample, written by generate. Version 1 had no token_versions."""

REWARD = _schema("reward/2", _IDS + _REWARD)
"""One row per sample, written by reward. Version 1 had no outcome, decision and texts of a judge."""

EVAL = _schema("eval/3", _IDS + _ROLLOUT + _REWARD)
"""One row per evaluation sample: the rollout and its reward. Version 2 had no token_versions."""

_FORWARD = [
    _may("old_log_probs", _list(pa.float32())),  # [R] of the policy before the step's first update
    _may("ref_log_probs", _list(pa.float32())),  # [R] of the reference
    _may("teacher_log_probs", _list(pa.float32())),  # [R] of the teacher
    _may("values", _list(pa.float32())),  # [R] of the critic, before the token is known
]

FORWARD = _schema("forward/1", [*_IDS, _need("response_length", pa.int32()), *_FORWARD])
"""One row per sample, written by forward: what passes of models without gradient gave; a column is null throughout
where nothing needs it."""

BATCH = _schema(
    "batch/3",
    [
        *_IDS,
        _need("tokens", _list(pa.int32())),  # [P+R]
        _need("response_length", pa.int32()),
        _need("loss_mask", _list(pa.uint8())),  # [R]
        _need("rollout_log_probs", _list(pa.float32())),  # [R]
        _need("advantages", _list(pa.float32())),  # [R]
        _need("returns", _list(pa.float32())),  # [R]
        _may("reward", pa.float32()),
        *_FORWARD,
        _may("slice", pa.int32()),  # of the first global batch, in the order of training; null: behind it, or unsliced
    ],
)
"""One row per sample to train on, written by advantage. Version 1 had no columns of forward passes, version 2 no
slices."""

SCHEMAS: dict[str, pa.Schema] = {"rollout": ROLLOUT, "reward": REWARD, "forward": FORWARD, "batch": BATCH, "eval": EVAL}
"""The newest schema of each name."""

FORWARD_COLUMNS = tuple(field.name for field in _FORWARD)
"""Columns of ``FORWARD`` and ``BATCH`` that come from models' passes without gradient."""

_LISTS_OF_RESPONSE_LENGTH = (
    "loss_mask",
    "rollout_log_probs",
    "token_versions",
    *FORWARD_COLUMNS,
    "advantages",
    "returns",
)


def schema_id(schema: pa.Schema) -> str:
    """Name and version, e.g. ``rollout/2``; empty for a table that is not one of ours."""
    return (schema.metadata or {}).get(SCHEMA_KEY, b"").decode()


def check_version(schema: pa.Schema, where: str) -> str:
    """The schema's id, after making sure that this version of Relax understands it.

    Args:
        schema: as read from a file.
        where: the file, for the message.

    Raises:
        UserError: the file was written by a newer version, or under a name that is not known.
    """
    found = schema_id(schema)
    if not found:
        return found
    name, _, version = found.partition("/")
    if name not in SCHEMAS or not version.isdigit():
        raise UserError(
            f"{where} holds a table of the unknown kind '{found}'.",
            f"Known kinds: {', '.join(map(schema_id_of, SCHEMAS))}.",
        )
    newest = schema_id_of(name)
    if int(version) > int(newest.partition("/")[2]):
        raise UserError(
            f"{where} was written by a newer version of Relax (schema {found}; this one knows {newest}).",
            "Update Relax, or start a new run.",
        )
    return found


def schema_id_of(name: str) -> str:
    """The newest id under a name: ``rollout`` -> ``rollout/2``."""
    return schema_id(SCHEMAS[name])


def table(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Table:
    """A conforming table from columns.

    Args:
        schema: one of the constants above.
        columns: name to ``Ragged``, Arrow array, NumPy array or list. Columns that may be null can be left out.

    Raises:
        UserError: as ``conform``, or columns of unequal length.
    """
    arrays = {name: _to_arrow(name, column, schema) for name, column in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"The columns of a {schema_id(schema)} table differ in length: {lengths}.")
    return conform(pa.table(arrays), schema)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the schema's columns, order, types and metadata.

    Missing columns that may be null are added; values are cast where they fit (``large_string`` to ``string``,
    ``int64`` to ``int32`` in range, ``double`` rounded to ``float``).

    Raises:
        UserError: naming the column that is missing, unknown, of a wrong type, null or of a wrong length.
    """
    kind = schema_id(schema)
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise UserError(f"A {kind} table has no column '{unknown[0]}'.", f"Its columns: {', '.join(schema.names)}.")
    if len(set(table.column_names)) != table.num_columns:
        raise UserError(f"A {kind} table names a column twice: {', '.join(table.column_names)}.")
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            if not field.nullable:
                raise UserError(f"The {kind} table lacks its column '{field.name}'.")
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        if not column.type.equals(field.type, check_metadata=True):
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise UserError(
                    f"Column '{field.name}' of the {kind} table is {column.type} and must be {field.type}: {error}."
                ) from error
        if column.null_count and not field.nullable:
            row = int(pc.index(column.is_null(), True).as_py())
            raise UserError(f"Column '{field.name}' of the {kind} table is null in row {row}.")
        if pa.types.is_list(field.type) and pc.list_flatten(column).null_count:
            raise UserError(f"Column '{field.name}' of the {kind} table has a null inside a list.")
        columns.append(column)
    result = pa.table(columns, schema=schema)
    _check_rows(result, kind)
    return result


def part(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of one schema in a table that may have others, e.g. of ``EVAL``: conforming, with nulls for columns
    that the schema of an older version had not.

    Raises:
        UserError: as ``conform``.
    """
    return conform(table.select([name for name in schema.names if name in table.column_names]), schema)


def _to_arrow(name: str, column: Any, schema: pa.Schema) -> pa.Array | pa.ChunkedArray:
    if isinstance(column, Ragged):
        return column.to_arrow()
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    index = schema.get_field_index(name)
    kind = schema.field(index).type if index >= 0 else None
    try:
        if kind is not None and pa.types.is_list(kind) and all(row is not None for row in column):
            return Ragged.from_list(column, kind.value_type.to_pandas_dtype()).to_arrow()
        return pa.array(column, type=kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"Column '{name}' of a {schema_id(schema)} table must be {kind}: {error}.") from error


def _check_rows(table: pa.Table, kind: str) -> None:
    """Unique ids, known statuses, and list lengths that fit the row."""
    ids = table.column("sample_id")
    if pc.count_distinct(ids).as_py() != len(ids):
        counts = pc.value_counts(ids)
        twice = next(entry["values"] for entry in counts.to_pylist() if entry["counts"] > 1)
        raise UserError(f"The {kind} table has sample_id '{twice}' more than once.")
    if "status" in table.column_names:
        known = pc.is_in(table.column("status"), value_set=pa.array(STATUSES))
        _raise_at(table, kind, ~_numpy(known), "status", f"must be one of {', '.join(STATUSES)}")
    if "response_length" not in table.column_names:
        return
    response = _numpy(table.column("response_length"))
    _raise_at(table, kind, response < 0, "response_length", "must not be negative")
    for name in _LISTS_OF_RESPONSE_LENGTH:
        if name in table.column_names:
            wrong = pc.not_equal(pc.list_value_length(table.column(name)), table.column("response_length"))
            _raise_at(table, kind, _numpy(pc.fill_null(wrong, False)), name, "must have response_length values")
    if "tokens" not in table.column_names:
        return
    lengths = _numpy(pc.list_value_length(table.column("tokens")))
    if "prompt_length" in table.column_names:
        wrong_total = lengths != _numpy(table.column("prompt_length")) + response
        _raise_at(table, kind, wrong_total, "tokens", "must have prompt_length + response_length values")
    else:
        _raise_at(table, kind, lengths < response, "tokens", "must have at least response_length values")


def _numpy(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    return column.to_numpy()


def _raise_at(table: pa.Table, kind: str, wrong: np.ndarray[Any, Any], name: str, rule: str) -> None:
    """UserError for the first row where ``wrong`` [N] is true."""
    if wrong.any():
        row = int(np.argmax(wrong))
        sample = table.column("sample_id")[row].as_py()
        raise UserError(f"Column '{name}' of the {kind} table {rule}; sample {sample} (row {row}) breaks this.")
