"""Schemas: what a stored table must look like, and what is said of one that does not."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.ragged import Ragged
from data.schema import BATCH, EVAL, REWARD, ROLLOUT, SCHEMAS, STATUSES, check_version, conform, part, schema_id, table
from data.store import RunStore

# The fields of a sample that the specification names; `reward` is in the reward table, prompt_id and others are ours.
SAMPLE_FIELDS = [
    "group_index",
    "index",
    "prompt",
    "tokens",
    "response",
    "response_length",
    "label",
    "loss_mask",
    "weight_versions",
    "rollout_log_probs",
    "rollout_routed_experts",
    "remove_sample",
    "teacher_log_probs",
    "status",
    "metadata",
    "train_metadata",
    "session_id",
    "spec_info",
    "prefix_cache_info",
    "abort_count",
    "multimodal_inputs",
    "multimodal_train_inputs",
]


def rollout_columns(lengths: list[tuple[int, int]]) -> dict[str, Any]:
    """Columns without the optional ones, for samples of (prompt length, response length)."""
    n = len(lengths)
    response = [r for _, r in lengths]
    return {
        "sample_id": [f"000000-{i:04d}-000" for i in range(n)],
        "group_id": [f"000000-{i:04d}" for i in range(n)],
        "prompt_id": [f"{i:08d}" for i in range(n)],
        "group_index": np.arange(n),
        "index": np.arange(n),
        "step": np.zeros(n, np.int32),
        "seed": np.arange(n),
        "prompt": ["?"] * n,
        "tokens": Ragged.from_list([np.arange(p + r) for p, r in lengths], np.int32),
        "prompt_length": np.array([p for p, _ in lengths], np.int32),
        "response_length": np.array(response, np.int32),
        "response": ["!"] * n,
        "metadata": ["{}"] * n,
        "loss_mask": Ragged.from_list([np.ones(r) for r in response], np.uint8),
        "rollout_log_probs": Ragged.from_list([np.full(r, -0.5) for r in response], np.float32),
        "weight_versions": [[0]] * n,
        "status": [STATUSES[i % len(STATUSES)] for i in range(n)],
        "finish_reason": ["stop"] * n,
        "remove_sample": [False] * n,
        "abort_count": np.zeros(n, np.int32),
    }


def test_rollout_holds_every_field_of_a_sample() -> None:
    assert set(SAMPLE_FIELDS) <= set(ROLLOUT.names)
    assert set(EVAL.names) == set(ROLLOUT.names) | set(REWARD.names)
    assert {name: schema_id(schema) for name, schema in SCHEMAS.items()} == {
        "forward": "forward/1",
        **{name: f"{name}/2" for name in ("rollout", "reward")},
        **{name: f"{name}/3" for name in ("batch", "eval")},
    }


@settings(max_examples=30)
@given(lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=6), chunks=st.integers(1, 3))
def test_any_rollout_survives_the_way_through_a_file(lengths: list[tuple[int, int]], chunks: int) -> None:
    made = table(ROLLOUT, rollout_columns(lengths))
    assert made.schema.equals(ROLLOUT, check_metadata=True)
    cuts = [i * len(lengths) // chunks for i in range(chunks + 1)]
    parts = pa.concat_tables([made.slice(start, stop - start) for start, stop in pairwise(cuts)])
    store = RunStore("memory://schema")
    back = store.read_table(store.write_table("r.parquet", parts))
    assert back.equals(made)
    assert conform(back, ROLLOUT).equals(made)
    assert Ragged.from_arrow(back["tokens"]).lengths.tolist() == [p + r for p, r in lengths]


def test_a_rollout_of_version_1_is_read_and_has_no_token_versions() -> None:
    columns = {**rollout_columns([(1, 2), (1, 0)]), "token_versions": [[0, -1], []]}
    made = table(ROLLOUT, columns)
    assert made["token_versions"].to_pylist() == [[0, -1], []]
    old = made.drop_columns("token_versions").replace_schema_metadata({b"relax.schema": b"rollout/1"})
    store = RunStore("memory://schema-old")
    back = part(store.read_table(store.write_table("r.parquet", old)), ROLLOUT)
    assert back.schema.equals(ROLLOUT, check_metadata=True)
    assert back["token_versions"].to_pylist() == [None, None]
    with pytest.raises(UserError, match=r"'token_versions'.*sample 000000-0000-000"):
        table(ROLLOUT, {**columns, "token_versions": [[0], []]})


def test_absent_optional_columns_are_null() -> None:
    made = table(ROLLOUT, rollout_columns([(1, 2)]))
    assert made["label"].to_pylist() == [None]
    assert made["teacher_log_probs"].to_pylist() == [None]
    columns = {**rollout_columns([(1, 2), (1, 1)]), "teacher_log_probs": [[-1.0, -2.0], None], "label": ['"5"', None]}
    made = table(ROLLOUT, columns)
    assert made["teacher_log_probs"].to_pylist() == [[-1.0, -2.0], None]


def test_columns_are_put_in_order_and_cast_where_they_fit() -> None:
    made = conform(
        pa.table(
            {
                "rm_type": pa.array(["x", "x"]).dictionary_encode(),
                "reward": pa.array([1.0, None]),  # double
                "group_id": pa.array(["g", "g"], pa.large_string()),
                "sample_id": ["a", "b"],
            }
        ),
        REWARD,
    )
    assert made.schema.equals(REWARD, check_metadata=True)
    assert made["reward"].to_pylist() == [1.0, None]  # no score stays no score


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens": None}, "lacks its column 'tokens'"),
        ({"surprise": [1, 2]}, "no column 'surprise'"),
        ({"step": ["a", "b"]}, "'step'"),
        ({"step": [2**40, 0]}, "'step'"),
        ({"step": pa.array([2**40, 0])}, "Column 'step' of the rollout/2 table is int64 and must be int32"),
        ({"response": ["a", None]}, "'response' of the rollout/2 table is null in row 1"),
        ({"tokens": pa.array([[1, 2, None], [1, 2]])}, "'tokens' of the rollout/2 table has a null inside a list"),
        ({"tokens": [[1, 2], [1, 2]]}, "'tokens'.*prompt_length.*sample 000000-0000-000"),
        ({"loss_mask": [[1, 1], [1, 1]]}, r"'loss_mask'.*sample 000000-0001-000 \(row 1\)"),
        ({"loss_mask": [["x"], [1]]}, "'loss_mask'"),
        ({"rollout_log_probs": [[], [1.0]]}, "'rollout_log_probs'.*sample 000000-0000-000"),
        ({"teacher_log_probs": [None, [1.0, 2.0]]}, "'teacher_log_probs'.*sample 000000-0001-000"),
        ({"status": ["completed", "done"]}, "'status'.*must be one of completed, truncated, aborted, failed"),
        ({"response_length": [2, -1]}, "'response_length'.*must not be negative"),
        ({"sample_id": ["s", "s"]}, "has sample_id 's' more than once"),
        ({"sample_id": ["s"]}, "differ in length"),
    ],
)
def test_a_column_that_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    columns = {**rollout_columns([(1, 2), (1, 1)]), **change}
    with pytest.raises(UserError, match=says):
        table(ROLLOUT, {name: column for name, column in columns.items() if column is not None})


def test_a_batch_checks_its_lengths_too(batch: pa.Table) -> None:
    assert conform(batch, BATCH).equals(batch)
    assert conform(batch.slice(1), BATCH).num_rows == 2
    with pytest.raises(UserError, match="'tokens' of the batch/3 table must have at least response_length values"):
        conform(batch.set_column(2, "tokens", pa.array([[5], [6], [7]], pa.list_(pa.int32()))), BATCH)
    with pytest.raises(UserError, match="'advantages'"):
        conform(batch.set_column(6, "advantages", pa.array([[1.0], [], []], pa.list_(pa.float32()))), BATCH)


def test_a_column_named_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array(["a"])] * 2, names=["sample_id", "sample_id"])
    with pytest.raises(UserError, match="names a column twice"):
        conform(twice, REWARD)


def test_versions_that_are_known_pass() -> None:
    assert check_version(ROLLOUT, "x") == "rollout/2"
    assert check_version(pa.schema([]), "x") == ""


def test_lists_of_arrays_and_ragged_columns_give_the_same_table(tmp_path: Path) -> None:
    columns = rollout_columns([(1, 2), (3, 0)])
    lists = {name: list(column) if isinstance(column, Ragged) else column for name, column in columns.items()}
    store = RunStore(tmp_path)
    assert (
        store.write_table("a.parquet", table(ROLLOUT, columns)).sha256
        == store.write_table("b.parquet", table(ROLLOUT, lists)).sha256
    )
